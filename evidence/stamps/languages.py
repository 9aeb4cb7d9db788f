"""Measures how captions in sixteen languages find their pictures.

The ranks are those of `light` and of its English encoder alone; the table is computed from them.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import normalize

from scalar_retrieval.eval.protocol.statistics import paired_bootstrap
from scalar_retrieval.modeling_scalar.light_model import light_folder
from scalar_retrieval.modeling_scalar.picture_tagger import LightEncoder

from .items import Item, on_white

LANGUAGES = "ar de en es fr it ja ko nl pl pt ru th tr zh_CN zh_TW".split()
"""The languages that `light` reads, as the package names them."""

_ENGLISH = 384  # the first components of a vector, of the English encoder


def _captions(item: Item, root: Path) -> dict[str, str]:
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
def rank_languages(items: Sequence[Item], root: Path) -> list[dict[str, Any]]:
    """
    Rank the pictures of items for each caption.

    Args:
        items (`Sequence[Item]`): of the half that is shown.
        root (`Path`): the folder of stamps.

    Returns:
        Rows of `language`, and of ranks, from 1, `light` and `english`: those of its English encoder alone.
    """
    encoder = LightEncoder(light_folder()).eval()
    rows = []
    for item in items:
        features = encoder.preprocess([on_white(root / item.path)])
        rows.append(encoder(features)["sentence_embedding"])
    pictures = torch.cat(rows)
    texts = [_captions(item, root) for item in items]
    found = []
    for language in LANGUAGES:
        # The items with a caption in this language.
        relevant = []
        asked = []
        for place, known in enumerate(texts):
            if language in known:
                relevant.append(place)
                asked.append(known[language])
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


__all__ = ["LANGUAGES", "compare", "rank_languages"]
