"""Measures how captions in sixteen languages find their pictures: `python -m evidence.stamps.languages ROOT`.

The file of ranks holds those of `light` and of its English encoder alone; the table is computed from them.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch.nn.functional import normalize

from evidence.stamps.items import Item, on_white, read_items
from scalar_retrieval.eval.protocol.statistics import paired_bootstrap
from scalar_retrieval.modeling_scalar.light_model import light_folder
from scalar_retrieval.modeling_scalar.picture_tagger import LightEncoder

LANGUAGES = "ar de en es fr it ja ko nl pl pt ru th tr zh_CN zh_TW".split()
"""The languages that `light` reads, as the package names them."""

RANKS = Path(__file__).parent / "results" / "languages.parquet"
"""The shipped ranks."""

_ENGLISH = 384  # the first components of a vector, of the English encoder


def captions(item: Item, root: Path) -> dict[str, str]:
    """Return the captions of an item by language."""
    found = {"en": item.caption}
    lines = (root / item.path).with_suffix(".txt").read_text(encoding="utf-8").split("\n")
    for line in lines[1:]:
        language, mark, caption = line.partition(".utf8=")
        if mark and caption.strip():
            found[language] = caption.strip()
    return found


def _ranks(queries: torch.Tensor, pictures: torch.Tensor, relevant: torch.Tensor) -> list[int]:
    cosines = normalize(queries, dim=1) @ normalize(pictures, dim=1).T
    return ((cosines > cosines.gather(1, relevant[:, None])).sum(dim=1) + 1).tolist()


@torch.inference_mode()
def measure(root: Path) -> list[dict[str, Any]]:
    """Rank the shown half's pictures for each caption: rows of `language`, and of ranks, `light` and `english`."""
    items = [item for item in read_items(root) if item.is_shown]
    encoder = LightEncoder(light_folder()).eval()
    rows = []
    for item in items:
        features = encoder.preprocess([on_white(root / item.path)])
        rows.append(encoder(features)["sentence_embedding"])
    pictures = torch.cat(rows)
    texts = [captions(item, root) for item in items]
    found = []
    for language in LANGUAGES:
        relevant = [place for place, known in enumerate(texts) if language in known]
        asked = [texts[place][language] for place in relevant]
        places = torch.tensor(relevant)
        light = _ranks(encoder.texts.embed(asked, are_queries=True), pictures, places)
        english = _ranks(encoder.texts.embed(asked)[:, :_ENGLISH], pictures[:, :_ENGLISH], places)
        found.append({"language": language, "light": light, "english": english})
    return found


def compare(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return, by language, the MRR of both in points, their `difference`, and whether the claim is `met`."""
    found = []
    for row in rows:
        light, english = (100 / np.array(row[name], float) for name in ("light", "english"))
        entry = paired_bootstrap(light, english)
        is_met = entry["high"] >= 0 if row["language"] == "en" else entry["difference"] >= 5
        found.append(
            {"language": row["language"], "light": light.mean(), "english": english.mean(), "met": is_met} | entry
        )
    return found


def lines_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The comparison as a table in Markdown."""
    lines = [
        "| language | captions | English encoder alone | `light` | difference | claim |",
        "|---|---|---|---|---|---|",
    ]
    for row, entry in zip(rows, compare(rows), strict=True):
        interval = f"{entry['difference']:+.1f} [{entry['low']:+.1f}, {entry['high']:+.1f}]"
        verdict = "met" if entry["met"] else "not met"
        numbers = f"{entry['english']:.1f} | {entry['light']:.1f} | {interval}"
        lines.append(f"| {entry['language']} | {len(row['light'])} | {numbers} | {verdict} |")
    return lines


if __name__ == "__main__":
    rows = measure(Path(sys.argv[1]))
    pq.write_table(pa.Table.from_pylist(rows), RANKS, compression="zstd")
    print("\n".join(lines_of(rows)))
