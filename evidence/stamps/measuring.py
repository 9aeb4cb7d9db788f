"""Fits every method to one half of the items, and ranks the other half under every draw of every regime."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from scalar_retrieval.eval.protocol.statistics import paired_bootstrap
from scalar_retrieval.gallery.store.files import write_json
from scalar_retrieval.gallery.store.provenance import versions

from .embedding import Half, embed_half
from .items import Item, digest_of, read_items
from .languages import rank_languages
from .regimes import REGIMES, draw
from .rivals import CALIBRATED, RIVALS, SCALAR, Scene, fit, held_out

# The files of a folder of results.
RANKS = "ranks.parquet"
LANGUAGE_RANKS = "languages.parquet"
FACTS = "stamps.json"

# Draws of each regime but the complete one, for the half that fits and the half that is shown.
FIT_DRAWS = 20
SHOWN_DRAWS = 100

_FIT_SEED = 0
_SHOWN_SEED = 1
_HIGHEST = 255  # a rank is a byte


def _scenes(half: Half, num_draws: int, seed: int) -> dict[str, Scene]:
    return {regime: Scene(draw(half, regime, num_draws, seed)) for regime in REGIMES}


def _counts(items: Sequence[Item]) -> dict[str, int]:
    """How many items a half has, and queries of each kind."""
    kinds = Counter(caption=0, definition=0, none=0)
    kinds.update(item.kind for item in items)
    return {"items": len(items), **kinds}


def rank_halves(
    fitted: Half, shown: Half, print_line: Callable[[str], Any] = print
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """
    Fit every method to one half, and rank the other.

    Args:
        fitted, shown ([`Half`]): the halves.
        print_line (`Callable`): prints a line.

    Returns:
        Rows with `regime`, `method` and `ranks`, the bytes of `(draws, queries)`; and what was fitted: `fits` by
        method, `gain`, the held-out gain of SCALAR's scales and offsets in points of MRR, and `claimed`, the method
        that stands for SCALAR in the claims.
    """
    with torch.inference_mode():
        # All numbers are fitted before the other half is read.
        scenes = _scenes(fitted, FIT_DRAWS, _FIT_SEED)
        fits = {}
        for name, rival in RIVALS.items():
            fits[name] = fit(rival, scenes)
            print_line(f"{rival.title}: {fits[name].mrr:.1f} on the half that fits")

        # Scales and offsets stand for SCALAR only if they help queries that they were not fitted to.
        before = held_out(RIVALS[SCALAR], scenes)
        after = held_out(RIVALS[CALIBRATED], scenes)
        gain = paired_bootstrap(100 * after, 100 * before)
        claimed = CALIBRATED if gain["low"] > 0 else SCALAR

        # Ranks of the other half, under all draws of every regime.
        scenes = _scenes(shown, SHOWN_DRAWS, _SHOWN_SEED)
        rows = []
        for regime, scene in scenes.items():
            for name, rival in RIVALS.items():
                ranks = scene.ranks(rival.score(scene, fits[name].numbers)).clip(max=_HIGHEST)
                rows.append({"regime": regime, "method": name, "ranks": ranks.astype(np.uint8).tobytes()})
    fitted_numbers = {name: asdict(each) for name, each in fits.items()}
    return rows, {"fits": fitted_numbers, "gain": gain, "claimed": claimed}


def measure(root: Path, output: Path, print_line: Callable[[str], Any] = print) -> None:
    """
    Measure all methods on the stamps, and write the results.

    Args:
        root (`Path`): the folder of stamps.
        output (`Path`): folder for the results.
        print_line (`Callable`): prints a line.

    Raises:
        FileNotFoundError: there are no stamps.
        ModuleNotFoundError: a package of `light` is not installed.
    """
    items = read_items(root)
    print_line(f"{len(items)} photographs with captions of their own")
    halves: dict[str, list[Item]] = {"fit": [], "shown": []}
    for item in items:
        half = "shown" if item.is_shown else "fit"
        halves[half].append(item)
    rows, found = rank_halves(embed_half(halves["fit"], root), embed_half(halves["shown"], root), print_line)
    languages = rank_languages(halves["shown"], root)

    # What was fitted, and what two results that are compared must share.
    facts = {
        "counts": {name: _counts(half) for name, half in halves.items()},
        "digest": digest_of(items, root),
        "draws": {"fit": FIT_DRAWS, "shown": SHOWN_DRAWS},
        **found,
        "versions": versions(),
    }
    output.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), output / RANKS, compression="zstd", compression_level=19)
    pq.write_table(pa.Table.from_pylist(languages), output / LANGUAGE_RANKS, compression="zstd")
    write_json(facts, output / FACTS)


__all__ = ["FACTS", "FIT_DRAWS", "LANGUAGE_RANKS", "RANKS", "SHOWN_DRAWS", "measure", "rank_halves"]
