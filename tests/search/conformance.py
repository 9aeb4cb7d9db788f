"""Clips, texts and filters for the tests of what can be searched, and a loop over clips in float64 that says what must
be found.
"""

import hashlib
import math
import os
import random
from collections import defaultdict
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from scalar_retrieval.gallery.gallery import GalleryWriter, MediaFile
from scalar_retrieval.gallery.words.transcripts import Cue, Transcripts, write_transcript
from tests.gallery.conftest import MADE_BY
from tests.gallery.exact.test_screening import make_vectors, mixes_of

DIM, DAY, MIN_NORM = 24, 86_400 * 10**9, 1e-3
PAPER = ("video", "audio", "subtitle")
LONG = "words_in_a_picture_that_is_described_by_a_name_of_more_letters_than_columns_may_have"
TEMPERATURES = (0.001, 0.03, 0.1, 1.0, math.inf)


@dataclass(frozen=True)
class Clip:
    """A clip, its vectors as they are stored, and what is known of it: when its file was `changed` and `recorded` in
    nanoseconds from 1970, `said`, `None` if that is not known, the `file` if it is a window of one."""

    name: str
    vectors: dict[str, np.ndarray]
    seconds: float | None = None
    changed: int | None = None
    recorded: int | None = None
    said: str | None = ""
    file: str | None = None

    @property
    def media(self):
        """Its file."""
        name = self.file or self.name
        sha256 = hashlib.sha256(os.fsencode(name)).hexdigest()
        return MediaFile(name, 1, self.changed, sha256, recorded_ns=self.recorded)

    def content(self, modalities=None):
        """What clips of equal scores share."""
        return tuple((name, v.tobytes()) for name, v in self.vectors.items() if name in (modalities or self.vectors))


@dataclass
class Made:
    """Clips in the order of their gallery, and how they are scored."""

    clips: list[Clip]
    modalities: tuple[str, ...] = PAPER
    dtype: str = "float16"
    scale: tuple[float, ...] | None = None
    offset: tuple[float, ...] | None = None
    metadata: dict = field(default_factory=dict)

    def seen(self, text, modalities=None):
        """The modalities of which a vector has components, if each has a slice of its own."""
        names = modalities or self.modalities
        slices = self.metadata.get("modality_slices") or [[0, DIM]] * len(self.modalities)
        ends = dict(zip(self.modalities, slices, strict=True))
        return tuple(name for name in names if text[slice(*ends[name])].any())

    def write(self, folder, new=None, gone=()):
        """The gallery of these clips; or the one that is there, with the new ones, and without some."""
        new = self.clips if new is None else new
        mask = torch.tensor([[name in clip.vectors for name in self.modalities] for clip in new])
        zero = np.zeros(DIM)
        embeds = [[clip.vectors.get(name, zero) for name in self.modalities] for clip in new]
        noted = {clip.media.path: clip for clip in new if clip.changed is not None}
        with GalleryWriter(folder, self.dtype) as writer:
            calibration = {"modality_scale": self.scale, "modality_offset": self.offset}
            options = {name: list(values) for name, values in calibration.items() if values is not None}
            writer.metadata = MADE_BY | {"modalities": list(self.modalities)} | self.metadata
            writer.metadata |= {"score_options": {"method": "scalar"} | options} if options else {}
            writer.put_clips(
                [clip.name for clip in new], torch.tensor(np.array(embeds)).float(), mask,
                seconds=[clip.seconds for clip in new],
            )  # fmt: skip
            writer.put_files([clip.media for clip in noted.values()])
            writer.remove_clips(gone)
            writer.commit()
            for clip in noted.values():
                if clip.said:
                    path = Transcripts(folder).path_of(clip.media.sha256)
                    path.parent.mkdir(exist_ok=True)
                    write_transcript(path, [Cue(0, 1, clip.said)], "nobody")
            return writer.gallery()

    def scores(self, text, temperature=0.1, modalities=None):
        """The score and the weights of every clip that has anything that is looked at, by its name."""
        scale = dict(zip(self.modalities, self.scale or [1.0] * len(self.modalities), strict=True))
        offset = dict(zip(self.modalities, self.offset or [0.0] * len(self.modalities), strict=True))
        text, found = np.asarray(text, dtype=float), {}
        seen = self.seen(text, modalities)
        for clip in self.clips:
            names = [name for name in seen if name in clip.vectors]
            if names:
                vectors = np.array([clip.vectors[name] for name in names])
                cosines = np.array([scale[name] * (clip.vectors[name] @ text) + offset[name] for name in names])
                weights = np.exp((cosines - cosines.max()) / temperature)
                weights /= weights.sum()
                norm = np.linalg.norm(weights @ vectors)
                found[clip.name] = weights @ cosines / max(norm, MIN_NORM), dict(zip(names, weights, strict=True))
        return found

    def like_scores(self, clip, modalities=None):
        """The scores of the clips that may be like one of them, which scale and offset change nothing of."""
        named = modalities or self.modalities
        vectors = [vector / np.linalg.norm(vector) for name, vector in clip.vectors.items() if name in named]
        norm = np.linalg.norm(sum(vectors))
        centroid = sum(vectors) / norm if norm > 1e-6 else vectors[0]
        others = [other for other in self.clips if other is not clip]
        return replace(self, clips=others, scale=None, offset=None).scores(centroid, modalities=modalities)


def make_clips(
    modalities=PAPER, dtype="float16", seed=0, kinds=("random", "cancelling", "tied"), count=30, slices=None
):
    """Clips of every mix of modalities, perhaps with a slice of the dimensions each; the last ten are others again."""
    generator, mixes = torch.Generator().manual_seed(seed), mixes_of(len(modalities))
    vectors = torch.cat([make_vectors(kind, count, DIM, seed, len(modalities)) for kind in kinds])
    for place, (start, stop) in enumerate(slices or ()):
        vectors[:, place, :start] = vectors[:, place, stop:] = 0
    vectors = normalize(vectors, dim=-1).to(getattr(torch, dtype)).double().numpy()
    order = torch.randperm(max(len(vectors), len(mixes)), generator=generator)[: len(vectors)]
    clips = [
        Clip(f"/clips/{row}.mp4", {name: v for name, v, has in zip(modalities, line, mix, strict=True) if has})
        for row, (line, mix) in enumerate(zip(vectors, mixes[order % len(mixes)].tolist(), strict=True))
    ]
    return clips + [replace(clip, name=clip.name + " again") for clip in clips[-40::4]]


def make_texts(made, count=3, seed=0):
    """Vectors near to clips, so that scores are of all sizes; the first is one of a clip's own."""
    generator = torch.Generator().manual_seed(seed)
    clips = [made.clips[row] for row in torch.randint(len(made.clips), (count,), generator=generator)]
    own = [list(clip.vectors.values()) for clip in clips]
    near = torch.tensor(np.array([own[0][-1], *map(sum, own[1:])])).float()
    noise = torch.randn(near.shape, generator=generator) * torch.rand(count, 1, generator=generator)
    noise[0] = 0
    return normalize(near + noise / 3, dim=-1)


def names_of(hits):
    return list(hits.clip_ids)


def check(hits, made, expected, k, modalities=None, near=1e-8):
    """Hits are the k best of what is expected, those of equal scores in the order of the gallery, and all of each is
    right. Scores nearer than `near` may change places, unless the clips are the same."""
    names, clips = names_of(hits), {clip.name: clip for clip in made.clips}
    best = sorted((score for score, _ in expected.values()), reverse=True)[:k]
    assert len(names) == len(set(names)) == len(best)
    assert hits.num_clips == len(made.clips) and len(hits) <= hits.num_scored <= hits.num_allowed
    for rank, (hit, at_rank) in enumerate(zip(hits, best, strict=True), 1):
        score, weights = expected[hit.clip_id]
        assert abs(score - at_rank) <= near * max(1, abs(score)) and hit.rank == rank
        assert hit.score == pytest.approx(score, rel=1e-6, abs=1e-6 + near)
        has = clips[hit.clip_id].vectors
        assert list(hit.presence.items()) == [(name, name in has) for name in made.modalities]
        assert hit.weights == pytest.approx(dict.fromkeys(made.modalities, 0.0) | weights, abs=1e-3)
    same = defaultdict(list)
    for name in expected:
        same[clips[name].content(modalities)].append(name)
    for group in same.values():
        found = [name for name in names if name in group]
        assert found == group[: len(found)]


ODD_NAMES = (
    "/clips/it's.mp4", '/clips/"quoted" \\" \\\\.mp4', "/clips/'); DROP TABLE clips; --.mp4", "/clips/a;b,c|d\te.mp4",
    "/clips/%s %(name)s {0} $1 $$ :name ? ??.mp4", "/clips/\n\r\x1b[31m.mp4", "/clips/日本語 🎬.mp4", "/clips/a.mp4",
    "/clips/A.mp4", "/clips/\ufeff\u202e.mp4", "/clips/" + 4000 * "x", "/clips/ ends in spaces  ", " ", "NULL", "\\N",
    "{a,b}", "-1", "1e5", "None", "/clips/#t=1,2", "\x01\x7f\x85", "/clips/café.mp4", "/clips/cafe\u0301.mp4",
    "/clips/[a].mp4", "/clips/*?.mp4", "/clips/-^]\\.mp4", "/clips/{2}+.(x)$.mp4", "a/b.mkv", "/a/b.mkv/c.mp4",
    "/clips/ß İ ı.MP4", "\uffff",
)  # fmt: skip
FILTERS = (
    {},
    {"has": "audio"},
    {"lacks": ("audio", "subtitle")},
    {"min_duration": 7, "max_duration": 31.0},
    {"after": "1970-01-10", "max_duration": 50},
    {"after": "1970-01-10", "before": "1970-02-20T12:00", "has": "video"},
    {"after": "1970-01-10T00:00:00.000001"},
    {"after": "1969-12-31", "before": "1970-01-10"},
    {"before": "1970-01-01"},
    {"min_duration": 1, "max_duration": 50, "after": "1970-01-10", "lacks": ("audio", "subtitle")},
    {"paths": "a/**", "min_duration": 20, "lacks": "audio"},
    {"paths": ("*.mkv", "/clips/b/?.mp4")},
    {"paths": "nowhere"},
    {"words": "karin"},
    {"words": ("karin", "good dog"), "has": "audio"},
)
ODD_TEXTS = (
    "a", "é", "e\u0301", "\0", "\ud800", "\uffff", "\ufffe", "\U0010ffe9", "*",
    "?", "**", "**/", "[", "]", "[a-z]", "[!a-z]", "[a-]", "[:alpha:]", "[[:alpha:]]",
    "[!\0]", "[!\uffff]", "-", "^", "$", "\\", "\\d", ".", "(", ")", "{2}", "+", "%", "_",
    "'", '"', "\n", " ", "/", "./", "🎬", "#t=1,2", ".mp4", "/clips/", "karin", "dog", "İ", "\u200d",
    "***:", "***=",
)  # fmt: skip
ODD_FACTS = {
    "min_duration": (0, -0.0, 1e-9, 0.1 + 0.2, 1e300, 5e-324, 2**63, -1),
    "max_duration": (1e-9, 1 / 3, 0.333333, 31.0, 2**63, "7", math.inf),
    "after": ("0001-01-01T00:00+14:00", "1969-12-31T23:59:59.999999", "9999-12-31", "\0"),
    "before": ("0001-01-02", "2262-04-12", "9999-12-31T23:59-23:59"),
    "has": ("video", PAPER, "video\0", 'video" IS NULL OR "', "_path"),
    "lacks": (("video", "video"), "video[0]", "vid\ud800eo"),
    "words": ("\0", "karin '", "good dog" * 500),
}
"""Values of filters, many of which make no sense."""


def odd_filters(count):
    """The arguments of filters, the same ones each time. Patterns of paths are odd texts, names in which some replace
    a character, or very long ones."""
    dice = random.Random(0)
    for _ in range(count):
        name, odd = dice.choice(ODD_NAMES), "".join(dice.choices(ODD_TEXTS, k=dice.randint(1, 4)))
        place = dice.randrange(len(name))
        patterns = odd, f"*{odd}", 400 * odd, name, f"{name[:place]}?{name[place + 1 :]}", f"{name[:place]}{odd}*"
        wanted = {"paths": dice.choice(patterns)}
        for name, values in ODD_FACTS.items():
            if dice.random() < 0.08:
                wanted[name] = dice.choice(values)
        yield wanted


def make_facts():
    """Clips of odd names and others, of which facts are known, at and around limits, and of which they are not."""
    clips = []
    for number, clip in enumerate(make_clips(seed=3, kinds=("random",), count=70)[:70]):
        date = number * DAY + (number % 3 - 1) * 999
        changed, recorded = (10_000 * DAY, date) if number % 4 == 1 else (date, None)
        said = ("karin sees a good dog", "a dog good for karin", None)[number % 3]
        if "subtitle" not in clip.vectors:
            said = ""
        name = f"/clips/{'ab'[number % 2]}/{number}.{('mp4', 'mkv')[number % 3 == 2]}"
        if number % 2 and number < 2 * len(ODD_NAMES):
            name = ODD_NAMES[number // 2]
        seconds = (float(number), number / 3, None)[number % 3]
        known = {"changed": changed, "recorded": recorded, "said": said} if number % 30 else {"said": None}
        clips.append(replace(clip, name=name, seconds=seconds, **known))
    return Made(clips)


SLICES = [[14, 24], [0, 6], [6, 14], [0, 6]]
CALIBRATED = (
    Made(make_clips(seed=12), PAPER, "float16", (0.9, 1.0, 1.2), (0.0, 0.1, -0.3)),
    Made(make_clips(("audio", "order"), "float32", 1), ("audio", "order"), "float32", (0.7, 1.3)),
    Made(make_clips(seed=2)),
    Made(make_clips(seed=11, kinds=("cancelling",), count=150)),
    Made(make_clips(dtype="float32", seed=3), PAPER, "float32", (0.7, 1.0, 1.3), (-2.0, -2.3, -2.0)),  # all below 0
    Made(
        make_clips((*PAPER, LONG), seed=4), (*PAPER, LONG), "float16", (1.3, 0.8, 1.0, 0.6), (0.1, -0.2, 0.0, 0.3)
    ),
    Made(
        make_clips((*PAPER, "title"), seed=5, slices=SLICES), (*PAPER, "title"), "float16", (1.3, 0.8, 1.0, 0.6),
        metadata={"modality_slices": SLICES},
    ),
)  # fmt: skip
