"""Chooses every method's numbers on the half that fits, and ranks the half that is shown."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from tqdm import tqdm

from evidence.settings import EncodersConfig
from evidence.study.measure import write_ranks
from evidence.study.ranks import HIGHEST, own_ranks
from scalar_retrieval.gallery.store.files import write_json
from scalar_retrieval.gallery.store.provenance import versions

from .methods import METHODS, choose, scored
from .sets import ClipSet, read_composed, read_miniature, read_stamps

RANKS, FACTS = "ranks.parquet", "encoders.json"
"""The files of a folder of results."""


@torch.no_grad()
def rank_set(name: str, clips: ClipSet) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """
    Rank the half of a set that is shown, by every method, in all draws and both directions.

    Args:
        name (`str`): the name of the set.
        clips ([`ClipSet`]): both halves.

    Returns:
        Rows with `set`, `regime`, `method`, `direction` and `ranks`, the bytes of `(draws, captions)`; and the chosen
        numbers by method.
    """
    rows = []
    chosen = {}
    for method in tqdm(METHODS, desc=name, unit="method"):
        chosen[method] = choose(method, clips)
        for regime, draws in clips.regimes.items():
            found: dict[str, bytes] = {}
            for draw in draws:
                embeddings, choice = scored(method, clips, draw, draw.shown, chosen[method])
                (ranks,) = own_ranks(embeddings, [embeddings.modality_mask], choice)
                for direction, values in ranks.items():
                    found[direction] = found.get(direction, b"") + bytes(values.clamp(max=HIGHEST).tolist())
            for direction, stored in found.items():
                row = {"set": name, "regime": regime, "method": method, "direction": direction, "ranks": stored}
                rows.append(row)
    return rows, chosen


def measure(config: EncodersConfig) -> None:
    """
    Measure all methods on every set, and write the results.

    Raises:
        FileNotFoundError, ModuleNotFoundError: a package, the recogniser or the model of `make demo` is not there.
    """
    # What may be missing on a machine is read first.
    composed = read_composed(Path(config.stamps), Path(config.prompts))
    sets = {
        "miniature": read_miniature(Path(config.model), Path(config.root)),
        "stamps": read_stamps(Path(config.stamps)),
        "composed": composed,
    }
    rows = []
    facts: dict[str, Any] = {"versions": versions(), "sets": {}}
    for name, clips in sets.items():
        ranked, chosen = rank_set(name, clips)
        rows += ranked
        captions = len(next(iter(clips.regimes.values()))[0].shown.captions)
        facts["sets"][name] = {"captions": captions, "regimes": list(clips.regimes), "numbers": chosen}
    output = Path(config.output)
    output.mkdir(parents=True, exist_ok=True)
    write_ranks(pa.Table.from_pylist(rows), output / RANKS)
    write_json(facts, output / FACTS)


__all__ = ["FACTS", "RANKS", "measure", "rank_set"]
