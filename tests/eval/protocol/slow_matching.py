"""Clips in memory, and the cross-encoder over one pair at a time."""

import math
import zlib

import numpy as np
import torch
from datasets import Dataset

from scalar_retrieval.eval.benchmarks.annotations import FEATURES
from scalar_retrieval.eval.protocol.second_stage import TwoStage
from scalar_retrieval.gallery.decoding import SandboxedReader
from scalar_retrieval.modeling_scalar import MODALITIES, Clip
from scalar_retrieval.modeling_scalar.processing_scalar import FROM_VIDEO


def evaluate_two_stage(model, processor, dataset, embeddings, depths=(50,), weight=None, **options):
    """The metrics at some depths, of one reading of the clips."""
    return TwoStage(model, processor, dataset, embeddings, max(depths, default=1), **options).metrics(depths, weight)


# What the clips hold: (video, audio, subtitle).
CONTENTS = [
    (True, True, "hello weather"),
    (True, False, None),
    (False, True, None),
    (False, False, "cat says hello"),
    (True, True, None),
    (False, True, "low tone"),
    (True, False, "the dog says music"),
]


CAPTIONS = ["a red circle", "the dog barks and the cat meows", "high tone", "hello", "about music", "low", "a cat"]


class MemoryProcessor:
    """The tiny processor over clips that are not read from files; remembers which were read."""

    reader, modalities = SandboxedReader(), MODALITIES

    def __init__(self, processor):
        self.processor = processor
        self.read = []

    def read_clip(self, video, audio=FROM_VIDEO, subtitle=None, processed=False):
        self.read.append(video or audio or subtitle)
        # No two files alike: which of two equal clips comes first would be decided by rounding.
        numbers = np.random.default_rng(zlib.crc32(str(video or audio).encode()))
        return Clip(
            frames=None if video is None else numbers.integers(0, 256, (2, 32, 32, 3), dtype=np.uint8),
            waveform=None if audio is None else numbers.standard_normal(16_000).astype(np.float32) * 0.1,
            subtitle=subtitle,
        )

    def __call__(self, **inputs):
        return self.processor(**inputs)


def make_rows(contents=CONTENTS, captions=CAPTIONS):
    return [
        {
            "video_id": f"clip{i}",
            "caption": caption,
            "video_path": f"{i}.mp4" if video else None,
            "audio_path": f"{i}.mp4" if audio and video else f"{i}.wav" if audio else None,
            "subtitle": subtitle,
        }
        for i, ((video, audio, subtitle), caption) in enumerate(zip(contents, captions, strict=True))
    ]


def make_dataset(rows):
    return Dataset.from_list(rows, features=FEATURES)


def make_clips(rows):
    return [{name: row[name] for name in FEATURES if name != "caption"} for row in rows]


class PairByPair:
    """One pair at a time: no padding, no batches, and condition tokens from the layers themselves."""

    shapes = {"video": (1, 2, 5, 32), "audio": (1, 1, 16, 24)}  # frames, tokens and width of the tiny towers

    def __init__(self, model, processor, rows):
        self.model, self.processor, self.rows = model, processor, rows
        self.tokens, self.known = {}, {}

    @torch.no_grad()
    def __call__(self, caption, index, shown, policy):
        """Match logit, NaN if there is nothing to read. `shown` are three booleans: video, audio, subtitle."""
        what = index, tuple(shown), policy
        if (caption, *what) not in self.known:
            if what not in self.tokens:
                self.tokens[what] = self._read(*what)
            self.known[caption, *what] = self._match(caption, self.tokens[what])
        return self.known[caption, *what]

    def _read(self, index, shown, policy):
        row, model = self.rows[index], self.model
        clip = self.processor.read_clip(row["video_path"], row["audio_path"], subtitle=row["subtitle"] or "hello")
        features, tokens = self.processor(clips=[clip]), []
        inputs = {"video": "pixel_values_videos", "audio": "input_features"}
        for name, is_shown in zip(inputs, shown, strict=False):
            if name not in model.config.condition_on:
                continue
            condition = getattr(model, f"{name}_condition")
            if is_shown and row[f"{name}_path"] is not None:
                states = model.get_tower_features(**{inputs[name]: features[inputs[name]]})
                tokens.append(condition(states[f"{name}_states"]))
            elif policy == "zeros":
                tokens.append(condition(torch.zeros(self.shapes[name])))
        if shown[2] and row["subtitle"] is not None and "subtitle" in model.config.condition_on:
            words = self.processor(text=[row["subtitle"]])
            states = model.get_subtitle_features(words["input_ids"], words["attention_mask"]).last_hidden_state
            tokens.append(model.subtitle_condition(states[:, None]))
        return tokens

    def _match(self, caption, tokens):
        if not tokens:
            return math.nan
        text, states = self.processor(text=[caption]), torch.cat(tokens, dim=1)
        mask = torch.ones(states.shape[:2], dtype=torch.bool)
        no, yes = self.model.match_logits(text["input_ids"], text["attention_mask"], states, mask)[0].tolist()
        return yes - no
