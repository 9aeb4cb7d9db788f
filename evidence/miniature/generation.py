"""Generates the miniature benchmark in a folder: rendered clips, the annotation, and a manifest to repeat it."""

import hashlib
import json
import logging
import os
import shutil
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any

from tqdm import tqdm

from evidence.miniature.ceilings import recall_ceilings
from evidence.miniature.clips import SPLITS, MiniatureClip, draw_split, kinds_of, views_alone
from evidence.miniature.rendering import render
from evidence.miniature.vocabulary import EVIDENCE, FACTORS, VOCABULARY
from scalar_retrieval.gallery.store.files import read_json

logger = logging.getLogger(__name__)

VERSION = 3  # of drawing and rendering: a change of either is a different benchmark


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Delay Ctrl-C: an exception raised while a process forks is lost after Python prints its traceback."""
    if current_thread() is not main_thread():  # other threads never receive it
        yield
        return
    received: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: received.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if received:
        signal.raise_signal(signal.SIGINT)


def _render_all(clips: Sequence[MiniatureClip], folder: Path, num_proc: int) -> None:
    with tqdm(total=len(clips), desc="Rendering clips", unit="clip") as progress:
        if num_proc == 1:
            for clip in clips:
                render(clip, folder)
                progress.update()
            return
        # A terminal sends Ctrl-C to all processes; this one handles it and ends the others.
        ignoring = {"initializer": signal.signal, "initargs": (signal.SIGINT, signal.SIG_IGN)}
        with ProcessPoolExecutor(num_proc, **ignoring) as pool:
            try:
                with _interrupts_held():
                    rendered = pool.map(render, clips, [folder] * len(clips), chunksize=16)
                for _ in rendered:
                    progress.update()
            except BrokenProcessPool as error:
                raise OSError(
                    "A process that writes clips was killed, perhaps because memory ran out. Run the command "
                    "again with a smaller --num-proc."
                ) from error
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise


def check_version(manifest: dict[str, Any], folder: Path) -> None:
    """Raise a ValueError if a manifest is of another version of the miniature benchmark."""
    version = manifest.get("version")
    if version != VERSION:
        raise ValueError(
            f"{folder} was made by version {version} of the miniature benchmark, and this is version {VERSION}. "
            f"Remove it and make it again: `python -m evidence miniature --output {folder}`."
        )


def _is_finished(output: Path, settings: dict[str, Any]) -> bool:
    """Whether `output` holds exactly this set; raise a ValueError if it holds anything else."""
    manifest_path = output / "miniature.json"
    if manifest_path.exists():
        manifest = read_json(manifest_path)
        check_version(manifest, output)
        found = {name: manifest.get(name) for name in settings}
        if found != settings:
            raise ValueError(
                f"{output} holds a miniature benchmark with {found}, but {settings} was requested. "
                "Choose another folder or remove this one."
            )
        return True
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ValueError(f"{output} exists and is not a miniature benchmark. Choose another folder or remove it.")
    return False


def _manifest(
    settings: dict[str, Any], clips: dict[str, list[MiniatureClip]], hashes: dict[str, str]
) -> dict[str, Any]:
    evidence = settings["evidence"]
    kinds = kinds_of(evidence)
    vocabulary = VOCABULARY | {name: EVIDENCE[name] for name in evidence}
    words = {}
    for modality, names in vocabulary.items():
        words[modality] = {name: list(values) for name, values in names.items()}

    # Counts and ceilings of each split.
    absent = {}
    counts = {}
    ceilings = {}
    for split, drawn in clips.items():
        absent[split] = dict.fromkeys(vocabulary, 0)
        counts[split] = dict.fromkeys(kinds, 0)
        for clip in drawn:
            counts[split][clip.kind] += 1
            for modality in vocabulary.keys() - clip.attributes.keys():
                absent[split][modality] += 1
        ceilings[split] = {}
        for modality in (None, *vocabulary):
            ceilings[split][modality or "all"] = recall_ceilings(drawn, kinds, modality, settings["shared"])
    return {
        **settings,
        "absent": absent,
        "kinds": counts,
        "recall_at_1_ceilings": ceilings,
        "vocabulary": words,
        "factors": FACTORS,
        "sha256": hashes,
    }


def generate(
    output: str | os.PathLike,
    *,
    num_train: int = 1500,
    num_validation: int = 300,
    num_test: int = 300,
    seed: int = 0,
    shared: float = 0.6,
    complete: bool = False,
    disagree: float = 0.0,
    alone: bool = False,
    evidence: Sequence[str] = (),
    num_proc: int | None = None,
) -> Path:
    """Generate the miniature benchmark in a folder.

    The folder gets its name only when it is complete: until then it is `<output>.partial`, and what an interrupted
    call left there is generated again. A complete folder with the same settings is returned unchanged.

    Args:
        output (`str` or `os.PathLike`): the folder to create.
        num_train (`int`, defaults to 1500), num_validation (`int`, defaults to 300), num_test (`int`, defaults to
            300): number of clips of each split, which may be empty.
        seed (`int`, defaults to 0): not negative. The same settings give the same set.
        shared (`float`, defaults to 0.6): in [0, 1]: the probability, for each factor of a clip (subject, tempo,
            scene), that all its modalities agree. At 0 they are independent.
        complete (`bool`): give every clip all modalities. By default `ABSENT_SHARES` of the clips, also in the
            manifest, lack video, audio or subtitle.
        disagree (`float`, defaults to 0): in [0, 1]: the probability that what a clip's caption does not describe is
            taken from another clip.
        alone (`bool`): add a row per modality to each clip, with that modality alone and a caption of it, for training
            a backbone.
        evidence (`Sequence[str]`): further evidence, "title" and "screen". The clips are the same otherwise, and some
            have other captions, which need it. Without it the set does not change.
        num_proc (`int`, *optional*): number of processes; by default one per CPU. The set does not depend on it.
    Returns:
        `Path`: the folder, with `<split>/` and `<split>.jsonl` for each split, and `miniature.json`.
    Raises:
        ValueError: there is no such evidence, or the folder holds anything but this set.
    """
    # The settings are the identity of a set: the same ones give the same set.
    counts = {"num_train": num_train, "num_validation": num_validation, "num_test": num_test}
    unknown = set(evidence) - set(EVIDENCE)
    if unknown:
        raise ValueError(f"`evidence` must be among {list(EVIDENCE)}, got {sorted(unknown)}.")
    evidence = [name for name in EVIDENCE if name in evidence]
    if num_proc is None:
        num_proc = os.cpu_count() or 1
    output = Path(output).absolute()
    options = {"shared": float(shared), "complete": complete, "disagree": float(disagree), "evidence": evidence}
    settings = {"version": VERSION, "seed": seed, **counts, **options, "alone": alone}
    if _is_finished(output, settings):
        return output

    # What an interrupted call left may be of other settings.
    partial = output.with_name(output.name + ".partial")
    if partial.exists():
        logger.warning("Removing %s, left by an interrupted run.", partial)
        shutil.rmtree(partial)
    # Draw all clips, then render them.
    clips = {}
    for split in SPLITS:
        clips[split] = draw_split(seed, split, counts[f"num_{split}"], **options)
        (partial / split).mkdir(parents=True)
    _render_all([*chain.from_iterable(clips.values())], partial, num_proc)

    # The annotation has a line for each clip, and for each of its views if these were requested.
    hashes = {}
    for split, drawn in clips.items():
        lines = []
        for clip in drawn:
            views = views_alone(clip) if alone else []
            for row in (clip, *views):
                lines.append(json.dumps(row.row()) + "\n")
        content = "".join(lines).encode()
        (partial / f"{split}.jsonl").write_bytes(content)
        hashes[f"{split}.jsonl"] = hashlib.sha256(content).hexdigest()

    # The manifest is the last file, and the folder gets its name after it.
    (partial / "miniature.json").write_text(json.dumps(_manifest(settings, clips, hashes), indent=2) + "\n")
    partial.replace(output)
    return output


__all__ = ["VERSION", "check_version", "generate"]
