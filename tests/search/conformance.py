"""What every engine must do: the tests of [`Conformance`], each against a loop over clips in float64.

An engine of these tests is a class of three members. `hold(gallery)` puts a gallery into the engine, or what has
changed of it since, and gives its `Searcher`; `refuses` names what of [`OPTIONAL`] it does not do, which it must say;
`close()` lets go of it. It begins empty.
"""

import hashlib
import itertools
import math
import os
import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from gallery.filters import Filter
from gallery.gallery import GalleryWriter, MediaFile
from gallery.hits import Certainty
from gallery.querying import Likeness, NothingToCompareError
from gallery.transcripts import Cue, Transcripts, write_transcript
from tests.gallery.conftest import MADE_BY
from tests.gallery.exact.test_screening import make_vectors, mixes_of

OPTIONAL = {"paths", "words", "unique", "method", "calibration", "mask", "outside"}
DIM, DAY, MIN_NORM = 24, 86_400 * 10**9, 1e-3
PAPER = ("video", "audio", "subtitle")
LONG = "words_in_a_picture_that_is_described_by_a_name_of_more_letters_than_columns_may_have"
TEMPERATURES = (0.001, 0.03, 0.1, 1.0, math.inf)


@dataclass(frozen=True)
class Clip:
    """A clip, its vectors as they are stored, and what is known of it: `changed` in nanoseconds from 1970, `said`,
    `None` if that is not known, the `file` if it is a window of one, the clip whose file has the same content."""

    name: str
    vectors: dict[str, np.ndarray]
    seconds: float | None = None
    changed: int | None = None
    said: str | None = ""
    file: str | None = None
    copy_of: str | None = None

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

    def write(self, folder, new=None, gone=()):
        """The gallery of these clips; or the one that is there, with the new ones, and without some."""
        new = self.clips if new is None else new
        mask = torch.tensor([[name in clip.vectors for name in self.modalities] for clip in new])
        zero = np.zeros(DIM)
        embeds = [[clip.vectors.get(name, zero) for name in self.modalities] for clip in new]
        noted = [clip for clip in new if clip.changed is not None]
        files = {
            clip.file or clip.name: MediaFile(clip.file or clip.name, 1, clip.changed, clip.sha256) for clip in noted
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


def make_clips(modalities=PAPER, dtype="float16", seed=0, kinds=("random", "cancelling", "tied"), count=30):
    """Clips of every mix of modalities; the last ten are others again."""
    generator, mixes = torch.Generator().manual_seed(seed), mixes_of(len(modalities))
    vectors = torch.cat([make_vectors(kind, count, DIM, seed, len(modalities)) for kind in kinds])
    vectors = vectors.to(getattr(torch, dtype)).double().numpy()
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
    return [hit.clip_id for hit in hits]


def check(hits, made, expected, k, modalities=None, near=1e-8):
    """Hits are the k best of what is expected, those of equal scores in the order of the gallery, and all of each is
    right. Scores nearer than `near` may change places, unless the clips are the same."""
    names, presence = names_of(hits), {clip.name: set(clip.vectors) for clip in made.clips}
    best = sorted((score for score, _ in expected.values()), reverse=True)[:k]
    assert len(names) == len(set(names)) == len(best) and hits.certainty is Certainty.EXACT
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
        (clip.changed, "date", ("after", "before"), lambda value, most: value < most),
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


def refusing(engine, what):
    """Whatever an engine refuses to do it says, and the rest is not run."""
    is_refused = what in engine.refuses
    return pytest.raises(ValueError, match="folder|`Filter`") if is_refused else nullcontext()


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
    os.fsdecode(b"/clips/caf\xe9.mp4"), os.fsdecode(b"/clips/\xff\xfe/\xc3\xa9.mp4"), "/clips/café.mp4", "\uffff",
    "/clips/cafe\u0301.mp4", "/clips/\uffff0.mp4", "/clips/\uffff1.mp4", "/clips/0.mp4", "/clips/a\0b.mp4",
    "/clips/\ufffe.mp4", "/clips/[a].mp4", "/clips/*?.mp4", "/clips/-^]\\.mp4", "/clips/{2}+.(x)$.mp4", "a/b.mkv",
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


def make_facts():
    """Clips of which facts are known, at and around limits, and of which they are not."""
    clips = []
    for number, clip in enumerate(make_clips(seed=3, kinds=("random",), count=70)[:70]):
        changed = (-DAY, -DAY - 1, -1)[number] if number < 3 else number * DAY + number % 3 * 999
        is_noted, said = number not in (33, 34), ("karin sees a good dog", "a dog good for karin", "good")[number % 3]
        if "subtitle" not in clip.vectors:
            said = ""
        elif number % 5 == 4 or not is_noted:
            said = None
        name = f"/clips/{'ab'[number % 2]}/{number}.{('mp4', 'mkv')[number % 3 == 2]}"
        seconds = None if number % 10 == 9 else float(number)
        clips.append(replace(clip, name=name, seconds=seconds, changed=changed if is_noted else None, said=said))
    return Made(clips)


CALIBRATED = (
    Made(make_clips(seed=12), PAPER, "float16", (0.9, 1.0, 1.2), (0.0, 0.1, -0.3)),
    Made(make_clips(("audio", "order"), "float32", 1), ("audio", "order"), "float32", (0.7, 1.3)),
    Made(make_clips(seed=2)),
    Made(make_clips(dtype="float32", seed=3), PAPER, "float32", (0.7, 1.0, 1.3), (-2.0, -2.3, -2.0)),  # all below 0
    Made(
        make_clips((*PAPER, LONG), seed=4), (*PAPER, LONG), "float16", (1.3, 0.8, 1.0, 0.6), (0.1, -0.2, 0.0, 0.3)
    ),
)  # fmt: skip


class Conformance:
    """Tests of an `engine`, which is a fixture."""

    @pytest.mark.parametrize("made", CALIBRATED, ids=lambda made: f"{len(made.modalities)} {made.scale} {made.offset}")
    def test_the_best_clips_are_those_that_a_loop_in_float64_finds(self, engine, made, tmp_path):
        searcher = engine.hold(made.write(tmp_path))
        assert searcher.modalities == made.modalities and len(searcher) == len(made.clips)
        assert (searcher.fingerprint, searcher.query_temperature) == (MADE_BY["fingerprint"], 0.1)
        for seed, (temperature, modalities) in enumerate(
            itertools.product(TEMPERATURES, (None, made.modalities[:1], made.modalities[-2:]))
        ):
            texts, asked = make_texts(made, 2, seed), {"query_temperature": temperature, "modalities": modalities}
            for text, few, more in zip(texts, *(searcher.search(texts, k, **asked) for k in (7, 1000)), strict=True):
                expected = made.own_scores(text, temperature=temperature, modalities=modalities)
                check(few, made, expected, 7, modalities)
                check(more, made, expected, 1000, modalities)
                assert names_of(few) == names_of(more)[:7]

    def test_the_best_clips_are_found_where_little_is_known_of_scores_by_bounds(self, engine, tmp_path):
        made = Made(make_clips(seed=11, kinds=("cancelling",), count=250))
        searcher, texts = engine.hold(made.write(tmp_path)), make_texts(made, 6)
        for temperature in (0.001, math.inf):
            for text, hits in zip(texts, searcher.search(texts, 5, temperature), strict=True):
                check(hits, made, made.own_scores(text, temperature=temperature), 5)

    def test_equal_scores_stand_in_the_order_of_the_gallery_whatever_came_when(self, engine, tmp_path):
        vector = np.full(DIM, DIM**-0.5)
        clips = [Clip(f"{number}", dict.fromkeys(PAPER, vector)) for number in range(9)]
        opposite = replace(clips[1], vectors=dict.fromkeys(PAPER, -vector))
        first = Made(clips[:6], dtype="float32")
        engine.hold(first.write(tmp_path))
        first.write(tmp_path, [*clips[6:], opposite])
        made = Made([clips[number] for number in (0, 2, 4, 5, 6, 7, 8, 1)], dtype="float32")
        # as it was, but last now
        searcher = engine.hold(first.write(tmp_path, [clips[1]], gone=["3"]))
        text = torch.tensor(vector).float()
        for k in (2, 7, 20):
            (hits,) = searcher.search(text[None], k)
            check(hits, made, made.own_scores(text), k)
            assert names_of(hits) == list("02456781")[:k]

    def test_what_grows_changes_and_goes_is_followed(self, engine, tmp_path):
        old, new = (make_clips(seed=seed, kinds=("random",), count=20) for seed in (5, 6))
        engine.hold(Made(old).write(tmp_path))
        new = [replace(clip, name=clip.name.replace("/clips/1", "/clips/new")) for clip in new]
        gone = [clip.name for clip in old if clip.name.startswith("/clips/1")][:4]
        searcher = engine.hold(Made(old).write(tmp_path, new, gone))
        names = {clip.name for clip in new}.union(gone)
        made = Made([clip for clip in old if clip.name not in names] + new)
        for text in make_texts(made, 4):
            check(searcher.search(text[None], 100)[0], made, made.own_scores(text), 100)

    def test_filters_leave_what_a_loop_over_clips_leaves(self, engine, tmp_path):
        made = make_facts()
        searcher, (text,) = engine.hold(made.write(tmp_path)), make_texts(made, 1)
        counts, some = set(), [] if "paths" in engine.refuses else list(PATHS.items())
        asked = [(wanted, (), lambda name: True) for wanted in FILTERS + (() if "words" in engine.refuses else WORDS)]
        asked += [({}, (path,), fits) for path, fits in some]
        asked += [({"min_duration": 20, "lacks": ("audio",)}, (path,), fits) for path, fits in some]
        for wanted, paths, fits in asked:
            found = {clip.name: fulfils(clip, wanted, fits) for clip in made.clips}
            left_out = [what for is_fit, unknown in found.values() if is_fit for what in unknown]
            expected = made.own_scores(text, among=lambda clip, found=found: found[clip.name] == (True, set()))
            for k in (8, 100):
                (hits,) = searcher.search(text[None], k, allowed=Filter(paths, **wanted))
                check(hits, made, expected, k)
                assert hits.num_allowed == len(expected), wanted
                assert hits.unknown == {what: left_out.count(what) for what in set(left_out)}, wanted
            counts.add(len(expected))
        assert len(counts) > 8 and 0 in counts
        for wanted, modalities in ((Filter(min_duration=1000), None), (Filter(lacks="audio"), ["audio"])):
            (nothing,) = searcher.search(text[None], allowed=wanted, modalities=modalities)
            assert nothing == [] and nothing.reason and nothing.remarks()[0].startswith("No hits")

    def test_odd_filters_find_what_they_find_in_the_folder_or_are_the_same_error(self, engine, tmp_path):
        names, seconds = ODD_NAMES + ODD_PATHS, (1 / 3, 0.3, 0.1 + 0.2, 1e-7, 10**9 / 7)
        clips = [
            replace(clip, name=name, seconds=clip.seconds and seconds[place % 5])
            for place, (clip, name) in enumerate(zip(make_facts().clips, names, strict=False))
        ]
        made = Made(clips)
        gallery = made.write(tmp_path)
        searcher, (text,) = engine.hold(gallery), make_texts(made, 1)

        def answer(searcher, wanted):
            try:
                (hits,) = searcher.search(text[None], 100, allowed=Filter(**wanted))
            except Exception as error:
                return type(error)
            return [(hit.clip_id, hit.score) for hit in hits], hits.num_allowed, hits.unknown

        num_errors, num_hits = 0, []
        for wanted in odd_filters(200):
            for name in engine.refuses & wanted.keys():
                del wanted[name]
            known = answer(gallery, wanted)
            assert answer(searcher, wanted) == known, wanted
            num_errors += isinstance(known, type)
            num_hits += [] if isinstance(known, type) else [len(known[0])]
        assert num_errors > 20 and 0 in num_hits and len(set(num_hits)) > 5

    def test_quoted_words_must_be_said(self, engine, tmp_path):
        made = make_facts()
        searcher, (text,) = engine.hold(made.write(tmp_path)), make_texts(made, 1)
        searcher.query_model = SimpleNamespace(embed=lambda texts: text[None], method="scalar", learned={}, model=None)
        check(searcher.search("a dog", 9), made, made.own_scores(text), 9)
        if "words" in engine.refuses:
            with pytest.raises(ValueError, match="words in quotation marks"):
                searcher.search('a "good dog"')
            return
        found = {clip.name: fulfils(clip, {"words": ("good dog",)}) for clip in made.clips}
        expected = made.own_scores(text, among=lambda clip: found[clip.name] == (True, set()))
        first, second = searcher.search(['a "Good dog"', "a dog"], 100)
        check(first, made, expected, 100)
        check(second, made, made.own_scores(text), 100)
        assert 0 < len(first) < len(second) and first.unknown["words"] > 0

    def test_clips_like_one_are_those_that_a_loop_finds(self, engine, tmp_path):
        made = replace(
            CALIBRATED[0], dtype="float32", clips=make_clips(dtype="float32", kinds=("random", "tied"), count=45)
        )
        searcher, refused = engine.hold(made.write(tmp_path)), 0
        keys = {hit.clip_id: hit.key or hit.clip_id for hit in searcher.search(make_texts(made, 1), 1000)[0]}
        for clip in made.clips[::9]:
            for modalities, has in ((None, ()), (("audio", "video"), ()), (None, ("audio",))):
                asked = {"modalities": modalities, "allowed": Filter(has=has)}
                if modalities and not clip.vectors.keys() & set(modalities):
                    with pytest.raises(NothingToCompareError):
                        searcher.search(like=clip.name, **asked)
                    refused += 1
                    continue
                expected = made.like_scores(clip, modalities, lambda other, has=has: other.vectors.keys() >= set(has))
                hits = searcher.search(like=clip.name, k=9, **asked)
                check(hits, made, expected, 9, modalities, near=1e-6)  # the query is of float32
                assert hits.like == clip.name and clip.name not in names_of(hits)
                assert modalities or hits.num_allowed == len(expected)
                assert searcher.search(like=keys[clip.name], k=9, **asked) == hits
        assert refused
        nothing = searcher.search(like=clip.name, allowed=Filter(min_duration=1))
        assert nothing == [] and nothing.remarks()[0].startswith(f"No hits for {clip.name!r}: ")
        with pytest.raises(KeyError):
            searcher.search(like="/clips/none.mp4")

    def test_names_come_back_as_they_are_and_clips_are_found_by_them(self, engine, tmp_path):
        names = [*ODD_NAMES, os.fsdecode(b"/clips/caf\xe9.mp4"), "/clips/café.mp4", "/clips/cafe\u0301.mp4"]
        clips = make_clips(kinds=("random",), count=len(names))[: len(names)]
        made = Made([replace(clip, name=name, changed=0) for clip, name in zip(clips, names, strict=True)])
        gallery = made.write(tmp_path)
        engine.hold(gallery)
        searcher, (text,) = engine.hold(gallery), make_texts(made, 1)
        (hits,) = searcher.search(text[None], 100)
        check(hits, made, made.own_scores(text), 100)
        assert [hits.place_of(hit).path for hit in hits] == names_of(hits) and len(searcher) == len(names)
        for clip in made.clips:
            assert searcher.clip_named(clip.name) == clip.name
            check(searcher.search(like=clip.name, k=3), made, made.like_scores(clip), 3, near=1e-6)

    def test_of_windows_each_file_comes_once_by_its_best_one(self, engine, tmp_path):
        windows = [(f"/clips/{name}.mp4", second) for name, count in (("a", 60), ("d", 6)) for second in range(count)]
        windows = [(f"{file}#t={second},{second + 1}", file) for file, second in windows]
        whole = [(file, file) for file in ("/clips/b.mp4#t=5", "/clips/b.mp4", "/clips/c.mp4", "/clips/#t=5")]
        text, generator = normalize(torch.ones(DIM), dim=0), torch.Generator().manual_seed(1)
        clips = []
        for place, (name, file) in enumerate(windows[:60] + whole[:1] + windows[60:] + whole[1:]):
            noise = torch.randn(3, DIM, generator=generator) * (0.2 + 0.02 * place)
            vectors = normalize(text + noise, dim=-1).half().double().numpy()
            has = {mode: vector for mode, vector in zip(PAPER, vectors, strict=True) if place % 3 or mode != "audio"}
            clips.append(Clip(name, has, seconds=2.0 if name == file else 1.0, changed=0, file=file))
        made = Made(clips, metadata={"segment": 1})
        searcher = engine.hold(made.write(tmp_path))
        for wanted, among in (
            (None, None),
            (Filter(has="audio", max_duration=1.5), lambda clip: "audio" in clip.vectors and clip.seconds < 2),
        ):
            expected = made.own_scores(text, among=among)
            files, best = {clip.name: clip.file for clip in clips}, {}
            for name in sorted(expected, key=lambda name: -expected[name][0]):
                best.setdefault(files[name], name)
            for k in (2, 5, 100):
                (hits,) = searcher.search(text[None], k, per_file=True, allowed=wanted)
                assert names_of(hits) == list(best.values())[:k] and hits.certainty is Certainty.EXACT
                assert [hits.place_of(hit).path for hit in hits] == list(best)[:k]
                assert hits.num_scored <= hits.num_allowed == len(expected)

    def test_what_only_some_engines_do_is_done_or_refused(self, engine, tmp_path):
        assert engine.refuses <= OPTIONAL
        made = Made(make_clips(seed=7, kinds=("random", "tied")))
        searcher, texts = engine.hold(made.write(tmp_path)), make_texts(made, 3)
        text, scale = texts[0], (0.5, 2.0, 1.0)
        with refusing(engine, "calibration"):
            (hits,) = searcher.search(text[None], 9, modality_scale=list(scale))
            check(hits, made, replace(made, scale=scale).own_scores(text), 9)
        with refusing(engine, "mask"):
            names = {clip.name for clip in made.clips[::3]}
            allowed = torch.tensor([clip.name in names for clip in made.clips])
            (hits,) = searcher.search(text[None], 9, allowed=allowed)
            check(hits, made, made.own_scores(text, among=lambda clip: clip.name in names), 9)
        with refusing(engine, "method"):
            (hits,) = searcher.search(text[None], 9, method="uniform")
            expected = made.own_scores(text, temperature=math.inf)
            for hit in hits:
                assert hit.score == pytest.approx(expected[hit.clip_id][0], abs=1e-5)
        with refusing(engine, "outside"):
            clip = Clip("outside", dict(zip(PAPER, texts.double().numpy(), strict=True)))
            hits = searcher.search(like=Likeness(clip.name, texts, torch.ones(3).bool()), k=9)
            check(hits, made, made.like_scores(clip), 9, near=1e-6)
        with refusing(engine, "paths"):
            searcher.search(text[None], allowed=Filter("*.mkv"))
        with refusing(engine, "words"):
            searcher.search(text[None], allowed=Filter(words="karin"))

    def test_copies_come_once_and_are_named(self, engine, tmp_path):
        clips = [replace(clip, changed=0) for clip in make_clips(seed=8, kinds=("random",))[:30]]
        copies = [replace(clip, name=f"{clip.name} copy", copy_of=clip.name) for clip in clips[::4]]
        made = Made([*clips, *copies, replace(copies[0], name="another")])
        searcher, (text,) = engine.hold(made.write(tmp_path)), make_texts(made, 1)
        with refusing(engine, "unique"):
            (hits,) = searcher.search(text[None], 40, unique=True)
            first = {clip.name for clip in clips}
            check(hits, made, made.own_scores(text, among=lambda clip: clip.name in first), 40)
            copied = {clip.copy_of: [c.name for c in made.clips if c.copy_of == clip.copy_of] for clip in copies}
            assert {hit.clip_id: list(hit.copies) for hit in hits if hit.copies} == copied

    def test_what_makes_no_sense_is_reported(self, engine, tmp_path):
        made = Made(make_clips(seed=9, kinds=("random",)))
        searcher, text = engine.hold(made.write(tmp_path)), make_texts(made, 1)
        for error, reported, arguments, options in (
            (ValueError, "at least 1", (text, 0), {}),
            (ValueError, f"must have shape .*{DIM}", (text[:, :-1],), {}),
            (ValueError, "unit norm", (2 * text,), {}),
            (ValueError, "must be positive", (text, 5, 0.0), {}),
            (ValueError, "must name some of", (text,), {"modalities": ["smell"]}),
            (ValueError, "must name some of", (text,), {"allowed": Filter(has="smell")}),
            (ValueError, "Every clip has a modality", (text,), {"allowed": Filter(lacks=PAPER)}),
            (ValueError, "second stage", (text,), {"rerank": 5}),
            (ValueError, "Give either", (text,), {"like": made.clips[0].name}),
            (ValueError, "must be one of|bounds of the score", (text,), {"method": "best"}),
            (TypeError, "typing", (text,), {"typing": 1}),
        ):
            with pytest.raises(error, match=reported):
                searcher.search(*arguments, **options)
        with pytest.raises(ValueError, match="no clip 'none'"):
            searcher.clip_named("none")

    def test_many_ask_at_once(self, engine, tmp_path):
        made = Made(make_clips(seed=10))
        searcher, texts = engine.hold(made.write(tmp_path)), make_texts(made, 24)
        with ThreadPoolExecutor(6) as threads:
            found = list(threads.map(lambda text: searcher.search(text[None], 9)[0], texts))
        for text, hits in zip(texts, found, strict=True):
            check(hits, made, made.own_scores(text), 9)
