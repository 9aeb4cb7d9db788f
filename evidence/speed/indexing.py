"""Clips per second of indexing, compared with decoding only on all cores.

    python -m evidence speed indexing [--clips 48] [--workers 1 --workers 2] [--repeats 3] [--model light]

The clips are generated: 10 s, 640x360, 30 fps h264 with AAC audio, every second one with a subtitle file. The model is
the small one of `recipes/miniature_backbone`, or `--model`. The methods take turns; the fastest of `--repeats` runs
counts:

- decoding alone: one process per core decodes the frames and audio of each clip that the model needs;
- reading in processes: as many processes prepare the model's inputs with `ScalarProcessor.read_clip`;
- indexing: `scalar_retrieval.search.indexing.Indexer` into a new gallery, with the given number of clips read at a
  time.

"ratio" is the rate of a row divided by that of decoding alone. It is meaningless if other programs use the machine;
then compare the CPU seconds per clip of all processes: "best" is the ratio they would give with all cores busy. If the
model runs on the same cores, "best" includes its time.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from fractions import Fraction
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import av
import numpy as np
import psutil
import torch
from transformers.utils import logging

from evidence.speed.decoding import pan
from evidence.speed.settings import IndexingConfig
from scalar_retrieval.gallery.decoding import sandboxed, tolerant
from scalar_retrieval.gallery.gallery import GalleryWriter
from scalar_retrieval.gallery.store.provenance import provenance_of
from scalar_retrieval.modeling_scalar import load_model
from scalar_retrieval.modeling_scalar.image_processing_scalar import frame_indices
from scalar_retrieval.modeling_scalar.media_scalar import MediaReader
from scalar_retrieval.modeling_scalar.model_identity import device_of_name
from scalar_retrieval.search.indexing import Indexer
from scalar_retrieval.search.reading import default_workers
from scalar_retrieval.search.setup import Loaded
from scalar_retrieval.search.sources import find_files
from scalar_retrieval.search.states import Status

MODEL = Path(__file__).parents[2] / "recipes" / "miniature_backbone"


def make_clip(path: Path, seed: int, seconds: int = 10) -> None:
    """Write a clip: a pan over a blocky texture with noise, and a noisy tone."""
    rng = np.random.default_rng(seed)
    with av.open(str(path), "w") as output:
        # All streams have to exist before the first packet.
        video = output.add_stream("libx264", rate=30, options={"g": "250", "preset": "veryfast"})
        video.width = 640
        video.height = 360
        video.pix_fmt = "yuv420p"
        video.bit_rate = 1_000_000
        audio = output.add_stream("aac", rate=44_100)
        audio.layout = "stereo"
        for frame in pan(640, 360, 30 * seconds, rng):
            output.mux(video.encode(frame))
        output.mux(video.encode(None))
        times = np.arange(44_100 * seconds) / 44_100
        sound = 0.3 * np.sin(2 * np.pi * 440 * times) + 0.05 * rng.standard_normal(len(times))
        for start in range(0, len(sound), 1024):
            piece = np.stack([sound[start : start + 1024]] * 2).astype(np.float32)
            frame = av.AudioFrame.from_ndarray(piece, format="fltp", layout="stereo")
            frame.sample_rate = 44_100
            frame.pts = start
            frame.time_base = Fraction(1, 44_100)
            output.mux(audio.encode(frame))
        output.mux(audio.encode(None))


def decode(path: str, num_frames: int) -> None:
    """Decode the frames and audio of one clip in this process, with one thread."""
    reader = MediaReader()
    reader.read_frames(path, lambda available: frame_indices(available, num_frames))
    reader.read_audio(path)


_processor = None


def _begin(name: str) -> None:
    global _processor
    torch.set_num_threads(1)
    _processor = sandboxed(load_model(name)[1])


def _decode(path: str) -> None:
    decode(path, _processor.num_frames)


def _read(path: str) -> None:
    _processor(clips=[_processor.read_clip(path, processed=True)])


def _in_processes(work: Callable[[str], None], files: list[str], pool: ProcessPoolExecutor) -> None:
    list(pool.map(work, files))


def _index(files: list[str], folder: Path, num_workers: int, name: str, model, processor) -> float:
    shutil.rmtree(folder, ignore_errors=True)
    with GalleryWriter(folder) as writer:
        writer.metadata = provenance_of(model, name)
        loaded = Loaded(model, processor, None, None)
        indexer = Indexer(writer, lambda: loaded, tolerant(processor).reader, num_workers=num_workers)
        begun = time.perf_counter()
        report = indexer.update(files)
        seconds = time.perf_counter() - begun
    if len(report.of(Status.NEW)) != len(files):
        raise ValueError(f"Expected {len(files)} new clips, got {report}.")
    return seconds


def _computed() -> float:
    """CPU seconds of this process and its children."""
    mine = psutil.Process()
    times = mine.cpu_times()
    seconds = times.children_user + times.children_system  # of those that have ended
    for process in (mine, *mine.children(recursive=True)):
        times = process.cpu_times()
        seconds += times.user + times.system
    return seconds


def main(config: IndexingConfig) -> None:
    """Measure and print one line per method."""
    cores = config.cores or len(os.sched_getaffinity(0))
    workers_tried = config.workers or [default_workers()]
    device = device_of_name(config.device)
    name = config.model or str(MODEL)
    logging.disable_progress_bar()
    with (
        tempfile.TemporaryDirectory() as temporary,
        ProcessPoolExecutor(cores, get_context("spawn"), _begin, (name,)) as pool,
    ):
        # Four different clips, each copied many times.
        folder = Path(temporary) / "clips"
        folder.mkdir()
        for number in range(config.clips):
            path = folder / f"{number:04d}.mp4"
            if number < 4:
                make_clip(path, number)
            else:
                shutil.copy(folder / f"{number % 4:04d}.mp4", path)
            if number % 2:
                path.with_suffix(".srt").write_text("1\n00:00:00,000 --> 00:00:09,000\nwords that are said\n")

        # The ways to read or index them.
        files = find_files([folder])
        model, processor = load_model(name, None, device)
        ways = {
            "decoding alone": partial(_in_processes, _decode, files, pool),
            "reading in processes": partial(_in_processes, _read, files, pool),
        }
        for workers in workers_tried:
            ways[f"indexing, {workers} at a time"] = partial(
                _index, files, Path(temporary) / "gallery", workers, name, model, processor
            )

        # They take turns, so that a slow moment of the machine meets all of them.
        times: dict[str, list[float]] = {}
        computed: dict[str, list[float]] = {}
        list(pool.map(_decode, files[: 4 * cores]))  # every process has started
        for _ in range(config.repeats):
            for name, way in ways.items():
                before = _computed()
                begun = time.perf_counter()
                seconds = way()  # indexing leaves out what comes before it
                if seconds is None:
                    seconds = time.perf_counter() - begun
                times.setdefault(name, []).append(seconds)
                computed.setdefault(name, []).append(_computed() - before)
    # The fastest run of each way, by the clock and by the processor.
    print(f"{len(files)} clips, {cores} cores, {device}, fastest of {config.repeats}")
    print(f"{'':<28}{'clips/s':>9}{'ratio':>8}{'CPU s/clip':>12}{'best':>8}")
    first = min(times["decoding alone"])
    least = min(computed["decoding alone"])
    for name, taken in times.items():
        spent = min(computed[name])
        print(f"{name:<28}{len(files) / min(taken):>9.1f}{first / min(taken):>8.2f}", end="")
        print(f"{spent / len(files):>12.3f}{least / spent:>8.2f}")
