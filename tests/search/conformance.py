"""Clips, texts and filters for the tests of what can be searched, and a loop over clips in float64 that says what must
be found.
"""

import hashlib
import math
import os
import random
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache

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
    nanoseconds from 1970, `said`, `None` if that is not known, the `file` if it is a window of one, the clip whose
    file has the same content."""

    name: str
    vectors: dict[str, np.ndarray]
    seconds: float | None = None
    changed: int | None = None
    recorded: int | None = None
    said: str | None = ""
    file: str | None = None
    copy_of: str | None = None

    @property
    def date(self):
        """When its file was recorded, or if that is unknown, changed."""
        return self.changed if self.recorded is None else self.recorded

    @property
    def sha256(self):
        """Of its file."""
        return hashlib.sha256(os.fsencode(self.copy_of or self.file or self.name)).hexdigest()

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
        noted = [clip for clip in new if clip.changed is not None]
        files = {
            clip.file or clip.name: MediaFile(
                clip.file or clip.name, 1, clip.changed, clip.sha256, recorded_ns=clip.recorded
            )
            for clip in noted
        }
        with GalleryWriter(folder, self.dtype) as writer:
            calibration = {"modality_scale": self.scale, "modality_offset": self.offset}
            options = {name: list(values) for name, values in calibration.items() if values is not None}
            writer.metadata = MADE_BY | {"modalities": list(self.modalities)} | self.metadata
            writer.metadata |= {"score_options": {"method": "scalar"} | options} if options else {}
            writer.put_clips(
                [clip.name for clip in new], torch.tensor(np.array(embeds)).float(), mask,
                seconds=[clip.seconds for clip in new],
            )  # fmt: skip
            writer.put_files(list(files.values()))
            writer.remove_clips(gone)
            writer.commit()
            for clip in noted:
                if clip.said:
                    path = Transcripts(folder).path_of(clip.sha256)
                    path.parent.mkdir(exist_ok=True)
                    write_transcript(path, [Cue(0, 1, clip.said)], "nobody")
            return writer.gallery()

    def scores(self, text, temperature=0.1, modalities=None, scale=None, offset=None, among=None):
        """The score and the weights of every clip among some that has anything that is looked at, by its name."""
        found = {}
        modalities = self.seen(text, modalities)
        scale, offset = (
            [neutral] * len(self.modalities) if values is None else values
            for values, neutral in ((scale, 1.0), (offset, 0.0))
        )
        for clip in self.clips:
            cosines = {
                name: scale[place] * float(text @ clip.vectors[name]) + offset[place]
                for place, name in enumerate(self.modalities)
                if name in clip.vectors and (modalities is None or name in modalities)
            }
            if not cosines or not (among is None or among(clip)):
                continue
            highest = max(cosines.values())
            parts = {name: math.exp((cosine - highest) / temperature) for name, cosine in cosines.items()}
            weights = {name: part / sum(parts.values()) for name, part in parts.items()}
            norm = np.linalg.norm(sum(weight * clip.vectors[name] for name, weight in weights.items()))
            found[clip.name] = sum(weights[n] * cosines[n] for n in cosines) / max(norm, MIN_NORM), weights
        return found

    def like_scores(self, clip, modalities=None, among=None):
        """The scores of the clips that may be like one of them, which scale and offset change nothing of."""
        vectors = {
            name: vector.astype(np.float32) / np.linalg.norm(vector.astype(np.float32))
            for name, vector in clip.vectors.items()
            if modalities is None or name in modalities
        }
        total = sum(vectors.values())
        norm = np.linalg.norm(total)
        centroid = total / norm if len(vectors) > 1 and norm > 1e-6 else next(iter(vectors.values()))
        others = replace(self, clips=[other for other in self.clips if other is not clip])
        return others.scores(centroid.astype(float), modalities=modalities, among=among)

    def own_scores(self, text, **options):
        """The scores of one vector, calibrated as those of the gallery."""
        return self.scores(text.double().numpy(), scale=self.scale, offset=self.offset, **options)


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
    names, presence = names_of(hits), {clip.name: set(clip.vectors) for clip in made.clips}
    best = sorted((score for score, _ in expected.values()), reverse=True)[:k]
    assert len(names) == len(set(names)) == len(best)
    assert hits.num_clips == len(made.clips) and len(hits) <= hits.num_scored <= hits.num_allowed
    for rank, (hit, at_rank) in enumerate(zip(hits, best, strict=True), 1):
        score, weights = expected[hit.clip_id]
        assert abs(score - at_rank) <= near * max(1, abs(score)) and hit.rank == rank
        assert hit.score == pytest.approx(score, rel=1e-6, abs=1e-6 + near)
        assert {name for name, is_there in hit.presence.items() if is_there} == presence[hit.clip_id]
        assert tuple(hit.presence) == tuple(hit.weights) == made.modalities
        assert hit.weights == pytest.approx(dict.fromkeys(made.modalities, 0.0) | weights, abs=1e-3)
    same = {}
    for clip in made.clips:
        if clip.name in expected:
            same.setdefault(clip.content(modalities), []).append(clip.name)
    for group in same.values():
        found = [name for name in names if name in group]
        assert found == group[: len(found)]


def nanoseconds(moment):
    since = datetime.fromisoformat(moment).replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return since // timedelta(microseconds=1) * 1000


def fulfils(clip, wanted, fits_path=lambda name: True):
    """Whether a clip fulfils a filter as far as is known, and what is not known of it."""
    fits, unknown = fits_path(clip.name), set()
    fits &= all(name in clip.vectors for name in wanted.get("has", ()))
    fits &= not any(name in clip.vectors for name in wanted.get("lacks", ()))
    for value, what, (least, most), is_within in (
        (clip.seconds, "duration", ("min_duration", "max_duration"), lambda value, most: value <= most),
        (clip.date, "date", ("after", "before"), lambda value, most: value < most),
    ):
        limits = [wanted.get(name) for name in (least, most)]
        limits = [nanoseconds(limit) if isinstance(limit, str) else limit for limit in limits]
        if limits != [None, None] and value is None:
            unknown.add(what)
        elif limits != [None, None]:
            fits &= (limits[0] is None or value >= limits[0]) and (limits[1] is None or is_within(value, limits[1]))
    for word in wanted.get("words", ()):
        if clip.said is None:
            unknown.add("words")
        else:
            fits &= f" {word} " in f" {clip.said} "
    return fits, unknown


ODD_NAMES = (
    "/clips/it's.mp4", '/clips/"quoted" \\" \\\\.mp4', "/clips/'); DROP TABLE clips; --.mp4", "/clips/a;b,c|d\te.mp4",
    "/clips/%s %(name)s {0} $1 $$ :name ? ??.mp4", "/clips/\n\r\x1b[31m.mp4", "/clips/日本語 🎬.mp4", "/clips/a.mp4",
    "/clips/A.mp4", "/clips/\ufeff\u202e.mp4", "/clips/" + 4000 * "x", "/clips/ ends in spaces  ", " ", "NULL", "\\N",
    "{a,b}", "-1", "1e5", "None", "/clips/#t=1,2", "\x01\x7f\x85",
)  # fmt: skip
FILTERS = (
    {},
    {"has": ("audio",)},
    {"lacks": ("audio", "subtitle")},
    {"min_duration": 7, "max_duration": 31.0},
    {"min_duration": 0.5},
    {"max_duration": 50, "after": "1970-01-10"},
    {"after": "1970-01-10", "before": "1970-02-20T12:00", "has": ("video",)},
    {"after": "1970-01-10T00:00:00.000001"},
    {"after": "1969-12-31", "before": "1970-01-10"},
    {"before": "1970-01-01"},
    {"min_duration": 1, "max_duration": 50, "after": "1970-01-10", "lacks": ("audio", "subtitle")},
    {"min_duration": 1000},
    {"after": "1970-01-10", "before": "1970-02-20", "min_duration": 5, "has": ("video",), "lacks": ("subtitle",)},
)
PATHS = {
    "a/**": lambda name: "/a/" in name,
    "*.mkv": lambda name: name.endswith(".mkv"),
    "/clips/b/?.mp4": lambda name: name.startswith("/clips/b/") and name.endswith(".mp4") and len(name) == 14,
    "nowhere": lambda name: False,
}
WORDS = ({"words": ("karin",)}, {"words": ("good dog",), "has": ("audio",)}, {"words": ("karin", "dog")})


ODD_PATHS = (
    "/clips/café.mp4", "/clips/cafe\u0301.mp4", "\uffff", "/clips/\uffff0.mp4", "/clips/0.mp4", "/clips/\ufffe.mp4",
    "/clips/[a].mp4", "/clips/*?.mp4", "/clips/-^]\\.mp4", "/clips/{2}+.(x)$.mp4", "a/b.mkv",
    "/a/b.mkv/c.mp4", "/clips/ß İ ı.MP4",
)  # fmt: skip
ODD_TEXTS = (
    "a", "b", "0", "é", "e\u0301", "\0", "\ud800", "\udc00", "\udce9", "\uffff", "\ufffe", "\U0010ffe9", "*",
    "?", "**", "**/", "[", "]", "[a-z]", "[!a-z]", "[a-c-e]", "[a-]", "[:alpha:]", "[[:alpha:]]", "[.a.]",
    "[!\0]", "[!\uffff]", "-", "^", "$", "\\", "\\d", "\\m", "~", "&", "|", ".", "(", ")", "{2}", "+", "%", "_",
    "'", '"', "\n", " ", "/", "./", "日", "🎬", "#t=1,2", ".mp4", "/clips/", "karin", "dog", "İ", "\u200d",
    "(?i)", "***:", "***=",
)  # fmt: skip
ODD_FACTS = {
    "min_duration": (0, -0.0, 1e-9, 0.1, 0.3, 0.1 + 0.2, 1 / 3, 1e300, 5e-324, 2**63, 10**400, -1, math.inf, math.nan),
    "max_duration": (0, 1e-9, 0.3, 0.1 + 0.2, 1 / 3, 0.333333, 31.0, 1e300, 2**63, 10**400, True, "7", -math.inf),
    "after": ("0001-01-01", "0001-01-01T00:00+14:00", "1677-09-21", "1969-12-31T23:59:59.999999", "9999-12-31", "\0"),
    "before": ("0001-01-02", "1970-01-10T00:00:00.000001", "2262-04-12", "9999-12-31T23:59-23:59", "tomorrow", ""),
    "has": ("video", PAPER, "video\0", "vid\ud800eo", "", ("video.audio",), 'video" IS NULL OR "', "_path", "screen"),
    "lacks": ("audio", PAPER, ("video", "video"), "\0", "video[0]", "Video", "video ", (("video",),)),
}
"""Values of filters, many of which make no sense."""


def odd_text(generator, most):
    return "".join(generator.choices(ODD_TEXTS, k=generator.randint(1, most)))


def odd_path(generator):
    """A pattern of odd texts, of a name with one of its characters replaced, or a very long one."""
    name = generator.choice(ODD_NAMES + ODD_PATHS)
    place = generator.randrange(len(name))
    return generator.choice(
        (
            odd_text(generator, 5),
            "*" + odd_text(generator, 2),
            odd_text(generator, 3) * generator.choice((10, 10, 400)),
            name,
            name[:place] + generator.choice(("?", "*", odd_text(generator, 1))) + name[place + 1 :],
        )
    )


def odd_filters(count):
    """The arguments of filters, the same ones each time."""
    generator = random.Random(0)
    for _ in range(count):
        wanted = {}
        if generator.random() < 0.7:
            wanted["paths"] = tuple(odd_path(generator) for _ in range(generator.choice((1, 1, 2))))
        if generator.random() < 0.2:
            wanted["words"] = ("karin" * generator.randrange(2) + odd_text(generator, 2), "good dog" * 500)[
                : generator.choice((1, 1, 1, 2))
            ]
        for name, values in ODD_FACTS.items():
            if generator.random() < 0.06:
                wanted[name] = generator.choice(values)
        yield wanted


@cache
def make_facts():
    """Clips of which facts are known, at and around limits, and of which they are not."""
    clips = []
    for number, clip in enumerate(make_clips(seed=3, kinds=("random",), count=70)[:70]):
        date = (-DAY, -DAY - 1, -1)[number] if number < 3 else number * DAY + number % 3 * 999
        changed, recorded = (10_000 * DAY, date) if number % 4 == 1 else (date, None)
        is_noted, said = number not in (33, 34), ("karin sees a good dog", "a dog good for karin", "good")[number % 3]
        if "subtitle" not in clip.vectors:
            said = ""
        elif number % 5 == 4 or not is_noted:
            said = None
        name = f"/clips/{'ab'[number % 2]}/{number}.{('mp4', 'mkv')[number % 3 == 2]}"
        seconds = None if number % 10 == 9 else float(number)
        times = {"changed": changed, "recorded": recorded} if is_noted else {}
        clips.append(replace(clip, name=name, seconds=seconds, said=said, **times))
    return Made(clips)


SLICES = [[14, 24], [0, 6], [6, 14], [0, 6]]
CALIBRATED = (
    Made(make_clips(seed=12), PAPER, "float16", (0.9, 1.0, 1.2), (0.0, 0.1, -0.3)),
    Made(make_clips(("audio", "order"), "float32", 1), ("audio", "order"), "float32", (0.7, 1.3)),
    Made(make_clips(seed=2)),
    Made(make_clips(dtype="float32", seed=3), PAPER, "float32", (0.7, 1.0, 1.3), (-2.0, -2.3, -2.0)),  # all below 0
    Made(
        make_clips((*PAPER, LONG), seed=4), (*PAPER, LONG), "float16", (1.3, 0.8, 1.0, 0.6), (0.1, -0.2, 0.0, 0.3)
    ),
    Made(
        make_clips((*PAPER, "title"), seed=5, slices=SLICES), (*PAPER, "title"), "float16", (1.3, 0.8, 1.0, 0.6),
        metadata={"modality_slices": SLICES},
    ),
)  # fmt: skip
