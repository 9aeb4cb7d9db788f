"""Time of filters on the metadata of clips.

    python -m evidence speed filters [--clips 1000000]

The clips are synthetic, as whole files and as windows. For each filter it prints the first time, in which columns are
read, and the best of three later times.
"""

import time

import numpy as np
import pyarrow as pa
import torch

from evidence.speed.settings import FiltersConfig
from scalar_retrieval.gallery.exact.clip_facts import ClipFacts
from scalar_retrieval.gallery.filters import Filter
from scalar_retrieval.gallery.store.columns import clip_table
from scalar_retrieval.gallery.store.contents import Contents
from scalar_retrieval.gallery.store.storage import Part
from scalar_retrieval.gallery.store.windows import SEGMENT
from scalar_retrieval.modeling_scalar.modalities_scalar import PAPER_MODALITIES

FILTERS = {
    "pattern": Filter(paths="17/**"),
    "duration": Filter(min_duration=5, max_duration=30),
    "date": Filter(after="1980-01-01"),
    "modality": Filter(has="audio"),
    "all of them": Filter("17/**", 5, 30, "1980-01-01", None, "audio"),
}


def main(config: FiltersConfig) -> None:
    """Measure and print."""
    count = config.clips
    paths = [f"/home/someone/Videos/{number % 1000}/some clip {number}.mp4" for number in range(count)]
    files = pa.table({"path": paths, "mtime_ns": np.arange(count) * 10**12})
    files = files.append_column("sha256", pa.array(["0" * 64] * count))
    mask = torch.rand(count, 3) < 0.8
    seconds = (np.random.default_rng(0).random(count) * 60).tolist()

    # The same clips as whole files and as windows of them.
    for suffix in ("", "#t=0,30"):
        names = [path + suffix for path in paths]
        clips = clip_table(names, torch.ones(count, 3, 1), mask, PAPER_MODALITIES, seconds=seconds)
        metadata = {}
        kind = "files"
        if suffix:
            metadata[SEGMENT] = 30
            kind = "windows"
        print(f"{count:,} {kind}")
        for name, wanted in FILTERS.items():
            # Columns are read at the first time and kept.
            facts = ClipFacts(Contents([Part(clips)], files=[Part(files)], metadata=metadata))
            times = []
            for _ in range(4):
                begun = time.perf_counter()
                facts.allowed(wanted)
                times.append(1e3 * (time.perf_counter() - begun))
            print(f"  {name:12} {times[0]:7.0f} ms first, {min(times[1:]):7.0f} ms again")
