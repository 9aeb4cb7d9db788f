"""`scalar eval mteb`: evaluates tasks of mteb with several scores, embedding each clip and query once.

Results are mteb's own, in its folders: `results/<model>/<revision>/<task>.json`, where each score is a model with a
`ModelMeta` of its own, such as `organisation/model-scalar`. Existing results are not computed again.
"""

import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mteb
from mteb.models.model_implementations import MODEL_REGISTRY
from mteb.types import PromptType
from tqdm.auto import tqdm

from eval.adapters.mteb_model import ScalarSearch, why_not
from eval.embedding.embed_fused import fuses
from eval.embedding.embeddings import FUSED
from eval.settings import MtebConfig
from gallery.decoding import sandboxed
from modeling_scalar import load_model
from modeling_scalar.devices import default_device, device_of_name, dtype_of_name, said_of
from modeling_scalar.model_identity import ModelIdentity, identify

logger = logging.getLogger(__name__)

JOINT = {"scalar": "SCALAR", "uniform": "equal weights", FUSED: "fused"}
"""Scores that read all modalities of a clip, and their headings."""

_COLUMNS = {"video": "video", "audio": "audio", "text": "subtitle"}  # mteb's names, and the modalities that read them


@dataclass
class Comparison:
    """
    A comparison of scores.

    Args:
        singles (`list[str]`): modalities that are scored alone.
        rows (`list[dict]`): a row for each task: `task`, `metric`, mteb's main score, and `scores`, fractions by
            score.
        left_out (`list[str]`): sentences about tasks of a benchmark that this model cannot do.
        problems (`list[str]`): what could not be read and counts as absent.
    """

    singles: list[str]
    rows: list[dict[str, Any]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def best_single(self, scores: dict[str, float]) -> str | None:
        """Return the modality with the highest score, `None` if none has one."""
        return max((name for name in self.singles if name in scores), key=scores.get, default=None)

    def table(self) -> str:
        """Return a table of the main scores with a row per task and a column per score, and notes on it."""
        ways = [way for way in (*JOINT, *self.singles) if any(way in row["scores"] for row in self.rows)]
        lines = [["task", "metric", *(JOINT.get(way, way) for way in ways), "best single"]]
        for row in self.rows:
            scores, best = row["scores"], self.best_single(row["scores"])
            cells = [f"{scores[way]:.4f}" if way in scores else "-" for way in ways]
            lines.append([row["task"], row["metric"], *cells, "-" if best is None else f"{scores[best]:.4f} {best}"])
        if len(self.rows) > 1:
            lines.append(["mean", "", *(self._mean([row["scores"].get(way) for row in self.rows]) for way in ways)])
            best = [row["scores"].get(self.best_single(row["scores"])) for row in self.rows]
            lines[-1].append(self._mean(best))
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        text = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
        ]
        text += ["", "The best single modality of a task is chosen by the scores shown, which flatters it."]
        return "\n".join(text + [f"Left out: {reason}" for reason in self.left_out])

    @staticmethod
    def _mean(scores: Sequence[float | None]) -> str:
        return "-" if None in scores else f"{sum(scores) / len(scores):.4f}"


def _named(name: str) -> tuple[list[Any], bool]:
    """Return the tasks of a benchmark or task name of mteb, and whether it is a benchmark's."""
    try:
        return list(mteb.get_benchmark(name).tasks), True
    except KeyError as error:
        similar = [str(error)]
    try:
        return [mteb.get_task(name)], False
    except KeyError as error:
        similar.append(str(error))
    found = [match[1] for text in similar if (match := re.search(r"Did you mean: '?(.*?)'?\?", text))]
    hint = f" Did you mean {' or '.join(map(repr, found))}?" if found else ""
    raise ValueError(f"mteb {mteb.__version__} has neither a benchmark nor a task {name!r}.{hint}")


def find_tasks(names: Iterable[str]) -> list[tuple[Any, bool]]:
    """
    Find tasks by names of benchmarks and of tasks; each name may be a comma-separated list.

    Returns:
        `list` of unique tasks, and whether each was requested only by the name of a benchmark.

    Raises:
        ValueError: mteb has no such benchmark and no such task.
    """
    found: dict[str, tuple[Any, bool]] = {}
    for given in names:
        for name in filter(None, map(str.strip, re.split(r",(?![^()]*\))", given))):  # "MVEB(text, video, v1)" is one
            tasks, is_benchmark = _named(name)
            for task in tasks:
                earlier = found.get(task.metadata.name, (task, True))
                found[task.metadata.name] = earlier[0], earlier[1] and is_benchmark
    if not found:
        raise ValueError("Name at least one benchmark or task of mteb.")
    return list(found.values())


def _name_of(identity: ModelIdentity) -> str:
    return f"local/{Path(identity.name).name}" if identity.is_folder else identity.name


def load_way(name: str, revision: str | None, model_path: str, method: str, device: str | None = None) -> ScalarSearch:
    """Load a model with one of the scores; `mteb.get_model` calls this for what [`ways_of`] registers."""
    device = default_device() if device is None else device_of_name(device)
    model, processor = load_model(model_path, device=device)
    options = model.score_options() | {"method": method}
    meta = {"revision": revision, "experiment_kwargs": None}
    return ScalarSearch(model, processor, name, score_options=options, fused=method == FUSED, **meta)


def ways_of(
    search: ScalarSearch, model_path: str, name: str, experiment: dict[str, Any] | None = None
) -> dict[str, ScalarSearch]:
    """
    Create a model for each score, registered with mteb in this process: SCALAR, equal weights, the fused vectors if
    `search` embeds them, and every modality alone.

    Args:
        search ([`ScalarSearch`]): embeds for all of them.
        model_path (`str`): path or id that the model was loaded from.
        name (`str`): `organisation/model`, to which the score is appended.
        experiment (`dict`, *optional*): further settings that affect the scores, by which mteb separates results.
    """
    singles = [column for column in _COLUMNS.values() if column in search.modalities]
    joint = [way for way in JOINT if way != FUSED or search.fuses or FUSED in search.modalities]
    ways = {}
    for way in (*joint, *singles):
        meta = {
            "name": f"{name}-{way}",
            "experiment_kwargs": experiment,
            "loader": load_way,
            "loader_kwargs": {"model_path": model_path, "method": way},
            "adapted_from": None if name.startswith("local/") else name,
        }
        ways[way] = search.scored_by(way, **meta)
        MODEL_REGISTRY[meta["name"]] = ways[way].mteb_model_meta
    return ways


def _ways_in(metadata: Any, ways: Iterable[str]) -> list[str]:
    """Return the scores that apply to a task: a modality alone needs to be one of the clips'."""
    sides = [set(metadata.get_modalities(side)) for side in (PromptType.document, PromptType.query)]
    columns = next((side for side in sides if side & {"video", "audio"}), set())
    here = {_COLUMNS[column] for column in columns}
    return [way for way in ways if way in JOINT or way in here]


def compare(
    search: ScalarSearch, ways: dict[str, ScalarSearch], tasks: Sequence[Any], config: MtebConfig
) -> Comparison:
    """
    Evaluate every score on every task, embedding each task once.

    Args:
        search, ways: from [`ways_of`].
        tasks (`Sequence[mteb.AbsTask]`): tasks without a [`why_not`].
        config ([`MtebConfig`]): `output` and how clips are read.
    """
    cache = mteb.ResultCache(config.output)
    found = Comparison([way for way in ways if way not in JOINT])
    options = {"batch_size": config.batch_size, "show_progress_bar": config.progress}
    for task in (bar := tqdm(tasks, desc="tasks", unit="task", disable=not config.progress)):
        name = task.metadata.name
        bar.set_postfix_str(name)
        here = _ways_in(task.metadata, ways)
        if any(cache.load_task_result(name, ways[way].mteb_model_meta) is None for way in here):
            task.load_data()  # once for all scores
        scores = {}
        for way in here:
            run = mteb.evaluate(ways[way], task, cache=cache, encode_kwargs=dict(options), show_progress_bar=False)
            scores[way] = run.task_results[0].get_score()
        task.unload_data()
        search.forget()
        found.rows.append({"task": name, "metric": task.metadata.main_score, "scores": scores})
    found.problems = list(dict.fromkeys(search.problems))
    return found


def evaluate(config: MtebConfig) -> Comparison:
    """
    Evaluate a model on tasks of mteb; see [`MtebConfig`].

    Returns:
        [`Comparison`], whose table is also written to `table.txt` in the output folder.

    Raises:
        ValueError: a task is unknown, or this model cannot do it. Such tasks of a benchmark are left out, as long as
            one is left.
    """
    asked = find_tasks(config.tasks)
    identity = identify(config.model_path).at_hand()
    model, processor = load_model(config.model_path, dtype_of_name(config.model_dtype), device_of_name(config.device))
    logger.info("%s: %s.", config.model_path, said_of(model))
    reasons = {task.metadata.name: why_not(task.metadata, model.config.modalities) for task, _ in asked}
    tasks = [task for task, _ in asked if reasons[task.metadata.name] is None]
    unfit = [reasons[task.metadata.name] for task, of_benchmark in asked if not of_benchmark]
    if refused := [reason for reason in unfit if reason] or ([] if tasks else list(filter(None, reasons.values()))):
        raise ValueError(" ".join(refused))
    name = config.name or _name_of(identity)
    search = ScalarSearch(
        model,
        sandboxed(processor, config.limits),
        name,
        on_error=config.on_error,
        num_workers=config.num_workers,
        fused=config.fused and fuses(model),
        revision=identity.commit or identity.fingerprint[:40],
    )
    settings = {"model_dtype": config.model_dtype, "on_error": config.on_error}
    experiment = {name: value for name, value in settings.items() if value not in (None, "raise")} or None
    found = compare(search, ways_of(search, str(config.model_path), name, experiment), tasks, config)
    found.left_out = [reason for reason in reasons.values() if reason]
    Path(config.output, "table.txt").write_text(found.table() + "\n", encoding="utf-8")
    return found


__all__ = ["JOINT", "Comparison", "compare", "evaluate", "find_tasks", "load_way", "ways_of"]
