# /// script
# requires-python = ">=3.11"
# dependencies = ["mteb[audio,embeddinggemma,video]", "scalar-retrieval[mteb]"]
# ///
"""SCALAR against the same encoder's fused vector on mteb's video tasks, also with masked modalities, on a GPU:

    hf jobs uv run --flavor a100-large --secrets HF_TOKEN evidence/mveb.py

mteb's own wrapper embeds all that a clip has into one vector, with its own frames. Both lose the same modalities."""

import copy
import sys
from itertools import compress

import mteb
import torch
from mteb.models import SearchEncoderWrapper

from scalar_retrieval.eval.adapters.mteb_model import ScalarSearch
from scalar_retrieval.eval.protocol.missing import mask_modalities

MODEL = "google/embeddinggemma-2"
TASKS = ["VALOR32KT2VARetrieval", "YouCook2T2VARetrieval"]  # clips of video and sound for a text


class Masked:
    """mteb's search interface over a corpus of which a fraction `rate` of documents lose one modality."""

    def __init__(self, model, rate):
        self.model = model
        self.rate = rate
        settings = (model.mteb_model_meta.experiment_kwargs or {}) | {"masked": rate}
        self.mteb_model_meta = model.mteb_model_meta.model_copy(update={"experiment_kwargs": settings})

    def index(self, corpus, *, task_metadata, **options) -> None:
        asked, letters = task_metadata.category.split("2")  # such as "t2va"
        mask = mask_modalities(corpus["id"], torch.ones(len(corpus), len(letters), dtype=torch.bool), self.rate)
        self.parts = []
        for kept in mask.unique(dim=0):  # documents of the same modalities are a corpus of their own
            rows = (mask == kept).all(dim=1).nonzero().flatten().tolist()
            left = "".join(compress(letters, kept))
            metadata = task_metadata.model_copy(update={"category": f"{asked}2{left}"})
            part = copy.copy(self.model)
            part.index(corpus.select(rows), task_metadata=metadata, **options)  # columns of no letter are not read
            self.parts.append((part, metadata))

    def search(self, queries, *, task_metadata, **options) -> dict[str, dict[str, float]]:
        found = {}
        for part, metadata in self.parts:  # cosines, so what is found in one is comparable with the others
            for query, scores in part.search(queries, task_metadata=metadata, **options).items():
                found.setdefault(query, {}).update(scores)
        return found


if __name__ == "__main__":
    fused = mteb.get_model(MODEL, use_image=True, use_audio=True)
    for name, model in (("SCALAR", ScalarSearch.from_pretrained(MODEL)), ("fused", SearchEncoderWrapper(fused))):
        for rate in (0.0, 0.5):
            for result in mteb.evaluate(Masked(model, rate), mteb.get_tasks(tasks=sys.argv[1:] or TASKS)).task_results:
                print(f"{result.task_name}, {rate:.0%} masked, {name}: {100 * result.get_score():.1f}")
