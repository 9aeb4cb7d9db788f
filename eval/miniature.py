"""The miniature benchmark: small real video files whose captions speak of one or two modalities only.

What a clip shows, sounds like and says are drawn independently, so the modality that answers a query depends on the
query, as in the benchmarks of the paper; some clips lack a track. Nothing here is in the paper. A set is a function of
its seed and its two counts: `draw_split` decides what every clip is, `render` writes one file.
"""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from av.subtitles.subtitle import SubtitleSet
from tqdm import tqdm

logger = logging.getLogger(__name__)

VERSION = 1  # of the drawing and rendering: a change of either is a different benchmark
SPLITS = ("train", "test")

FRAME_SIZE = 64
FRAME_RATE = 10
NUM_FRAMES = 12
SAMPLE_RATE = 16_000
NUM_SAMPLES = SAMPLE_RATE * NUM_FRAMES // FRAME_RATE

# Share of the clips without this track. No clip lacks two, so that something is always left to retrieve by.
ABSENT_SHARES = {"video": 0.05, "audio": 0.15, "subtitle": 0.20}

COLOURS = {
    "red": (225, 25, 30),
    "orange": (255, 135, 0),
    "yellow": (250, 225, 20),
    "green": (20, 165, 45),
    "turquoise": (0, 210, 215),
    "blue": (25, 55, 240),
    "purple": (155, 35, 215),
    "pink": (255, 105, 190),
}
# Of each ground, the plain colour and that of the second stripe.
GROUNDS = {
    "black": ((8, 8, 8), (62, 62, 62)),
    "brown": ((84, 52, 30), (128, 92, 64)),
    "grey": ((112, 112, 112), (160, 160, 160)),
    "white": ((244, 244, 244), (196, 196, 196)),
}
# Fundamentals in Hz; a glide of half an octave either way leaves them apart.
PITCHES = {"deep": 150, "low": 350, "high": 800, "shrill": 1800}

# Modality, attribute, value and the ways a caption may put it. The keys of the values are what a row records.
VOCABULARY = {
    "video": {
        "shape": {name: (name,) for name in ("circle", "square", "triangle", "star", "cross", "ring")},
        "colour": {name: (name,) for name in COLOURS},
        "ground": {name: (name,) for name in GROUNDS},
        "pattern": {"plain": ("plain", "smooth"), "striped": ("striped", "banded")},
        "motion": {
            "still": ("staying still", "that does not move"),
            "slide": ("sliding from side to side", "moving left and right"),
            "bounce": ("bouncing up and down", "hopping up and down"),
            "grow": ("growing and shrinking", "that swells and shrinks"),
            "blink": ("blinking on and off", "that keeps vanishing"),
        },
    },
    "audio": {
        "pitch": {name: (name,) for name in PITCHES},
        "timbre": {
            "flute": ("flute", "pure tone"),
            "buzz": ("buzzer", "buzzing tone"),
            "noise": ("hiss", "whoosh of noise"),
            "bell": ("bell", "ringing bell"),
            "pluck": ("plucked string", "guitar string"),
            "warble": ("siren", "warbling siren"),
        },
        "rhythm": {
            "steady": ("held steadily", "in one go"),
            "slow": ("in slow beats", "repeated slowly"),
            "quick": ("in quick beats", "repeated quickly"),
            "rising": ("rising", "going upwards"),
            "falling": ("falling", "going downwards"),
        },
        "backing": {
            "alone": ("with nothing behind it", "all alone"),
            "hum": ("over an electric hum", "with humming behind it"),
            "whistle": ("under a thin whistle", "with whistling behind it"),
            "crackle": ("amid crackling", "with crackling behind it"),
            "drum": ("over a drum", "with drumming behind it"),
            "birds": ("among birdsong", "with birds behind it"),
        },
    },
    "subtitle": {
        "speaker": {
            name: (name,)
            for name in (
                "Anna Boris Clara David Emma Felix Greta Hugo Ines Jonas Karin Leon "
                "Maria Nils Olga Pablo Rosa Simon Tanja Umar Vera Walter Yusuf Zoe"
            ).split()
        },
        "topic": {
            name: (name,)
            for name in (
                "apples bridges castles dragons elephants football gardens history islands jazz knitting lemons "
                "mountains novels oceans planets robots sailing tigers uniforms volcanoes weather yoga zebras"
            ).split()
        },
        "weekday": {name: (name,) for name in "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()},
    },
}

SUBTITLES = (
    "Hello, I am {speaker}, and this {weekday} we talk about {topic}.",
    "It is {weekday}. My name is {speaker} and I love {topic}.",
    "{speaker} here! Let me tell you everything about {topic} this {weekday}.",
    "Welcome to the {weekday} show on {topic}, with your host {speaker}.",
    "Today is {weekday}, so {topic} it is, says {speaker}.",
    "Good evening, this is {speaker} with news of {topic} for {weekday}.",
)

PAIRS = ("{0}, while there is {1}", "{0}, together with {1}", "{0} and {1}", "there is {0}, and also {1}")
ALONE = {
    "video": ("{0}", "the picture shows {0}", "one sees {0}"),
    "audio": ("{0}", "the sound of {0}", "one hears {0}"),
    "subtitle": ("{0}", "a clip of {0}", "one listens to {0}"),
}


@dataclass(frozen=True)
class MiniatureClip:
    """What one clip is, before it is rendered.

    Args:
        split (`str`): "train" or "test".
        index (`int`): number of the clip in its split.
        key (`tuple[int, ...]`): seed of the clip's own generator.
        attributes (`dict[str, dict[str, str]]`): modality → attribute → value, for the modalities the clip has.
        mentions (`dict[str, list[str]]`): one or two modalities → attributes of them that the caption speaks of.
        caption (`str`): the query for which this clip is the answer.
        subtitle (`str` or `None`): what is said, `None` for a clip without subtitle track.
    """

    split: str
    index: int
    key: tuple[int, ...]
    attributes: dict[str, dict[str, str]]
    mentions: dict[str, list[str]]
    caption: str
    subtitle: str | None

    @property
    def path(self) -> str:
        """File of the clip, relative to the folder of the set."""
        return f"{self.split}/{self.index:06d}.mp4"

    def row(self) -> dict[str, object]:
        """Return the clip's line of the annotation file; `None` stands for a track the clip lacks."""
        return {
            "video_id": f"mini_{self.split}_{self.index:06d}",
            "caption": self.caption,
            "video_path": self.path if "video" in self.attributes else None,
            "audio_path": self.path if "audio" in self.attributes else None,
            "subtitle": self.subtitle,
            "about": list(self.mentions),
            "mentions": self.mentions,
            "attributes": self.attributes,
        }

    def satisfies(self, query: "MiniatureClip") -> bool:
        """Tell whether everything that the caption of `query` mentions is true of this clip."""
        return all(
            modality in self.attributes
            and all(self.attributes[modality][name] == query.attributes[modality][name] for name in names)
            for modality, names in query.mentions.items()
        )


def _generator(*key: int) -> np.random.Generator:
    return np.random.default_rng(key)


def _choice(rng: np.random.Generator, values: Sequence[str]) -> str:
    return values[int(rng.integers(len(values)))]


def _with_article(phrase: str) -> str:
    return f"an {phrase}" if phrase[0] in "aeiou" else f"a {phrase}"


def _video_phrase(words: dict[str, str], rng: np.random.Generator) -> str:
    thing = _with_article(" ".join(words[name] for name in ("colour", "shape") if name in words))
    if "motion" in words:
        thing += f" {words['motion']}"
    ground = " ".join(words[name] for name in ("pattern", "ground") if name in words)
    if not ground:
        return thing
    ground = f"on {_with_article(ground)} {_choice(rng, ('ground', 'background'))}"
    return f"{thing} {ground}"


def _audio_phrase(words: dict[str, str], rng: np.random.Generator) -> str:
    tone = _with_article(" ".join(words[name] for name in ("pitch", "timbre") if name in words))
    return " ".join([tone, *(words[name] for name in ("rhythm", "backing") if name in words)])


def _subtitle_phrase(words: dict[str, str], rng: np.random.Generator) -> str:
    phrase = f"{words.get('speaker', 'someone')} {_choice(rng, ('talking', 'speaking', 'chatting'))}"
    if "topic" in words:
        phrase += f" about {words['topic']}"
    return f"{phrase} on {words['weekday']}" if "weekday" in words else phrase


_PHRASES = {"video": _video_phrase, "audio": _audio_phrase, "subtitle": _subtitle_phrase}
# What a caption may leave out, one at a time. A caption of one modality leaves something out less often, and never
# the speaker or the topic: a few hundred clips could not be told apart by the rest.
_OMISSIBLE = {
    "video": ("shape", "colour", "ground", "pattern", "motion"),
    "audio": ("pitch", "timbre", "rhythm", "backing"),
    "subtitle": ("speaker", "topic", "weekday"),
}
_OMISSIBLE_ALONE = {**_OMISSIBLE, "subtitle": ("weekday",)}
_NOUNS = {"shape": "shape", "timbre": "sound"}  # what stands for an omitted noun


def _draw_caption(attributes: dict[str, dict[str, str]], rng: np.random.Generator) -> tuple[str, dict[str, list[str]]]:
    """Draw which modalities the caption speaks of, what it leaves out, and its wording."""
    num_about = 1 + int(rng.integers(2))
    about = [list(attributes)[i] for i in rng.permutation(len(attributes))[:num_about]]
    omissible, omit_rate = (_OMISSIBLE_ALONE, 0.2) if num_about == 1 else (_OMISSIBLE, 0.5)
    mentions, phrases = {}, []
    for modality in about:
        omitted = _choice(rng, omissible[modality]) if rng.random() < omit_rate else None
        mentions[modality] = [name for name in attributes[modality] if name != omitted]
        words = {
            name: _choice(rng, VOCABULARY[modality][name][attributes[modality][name]]) for name in mentions[modality]
        }
        if omitted in _NOUNS:
            words[omitted] = _NOUNS[omitted]
        phrases.append(_PHRASES[modality](words, rng))
    template = _choice(rng, PAIRS if num_about == 2 else ALONE[about[0]])
    return template.format(*phrases), {modality: mentions[modality] for modality in attributes if modality in mentions}


def draw_clip(seed: int, split: str, index: int, absent: str | None = None, attempt: int = 0) -> MiniatureClip:
    """Draw what one clip shows, sounds like and says, and its caption.

    Args:
        seed (`int`): of the whole set, not negative.
        split (`str`): "train" or "test".
        index (`int`): number of the clip in its split.
        absent (`str`, *optional*): the modality the clip lacks.
        attempt (`int`, defaults to 0): another value gives another, independent clip.
    """
    rng = _generator(seed, SPLITS.index(split), 1, index, attempt)
    attributes = {
        modality: {name: _choice(rng, list(values)) for name, values in names.items()}
        for modality, names in VOCABULARY.items()
    }
    subtitle = _choice(rng, SUBTITLES).format(**attributes["subtitle"])
    attributes.pop(absent, None)
    caption, mentions = _draw_caption(attributes, rng)
    return MiniatureClip(
        split=split,
        index=index,
        key=(seed, SPLITS.index(split), 2, index, attempt),
        attributes=attributes,
        mentions=mentions,
        caption=caption,
        subtitle=subtitle if absent != "subtitle" else None,
    )


def draw_split(seed: int, split: str, count: int) -> list[MiniatureClip]:
    """Draw the clips of one split: captions are unique in it, and `ABSENT_SHARES` hold to the nearest clip."""
    absent = [modality for modality, share in ABSENT_SHARES.items() for _ in range(round(share * count))]
    absent += [None] * (count - len(absent))
    order = _generator(seed, SPLITS.index(split), 3).permutation(count)
    clips, captions = [], set()
    for index in range(count):
        attempt = 0
        clip = draw_clip(seed, split, index, absent[order[index]])
        while clip.caption in captions:
            attempt += 1
            clip = draw_clip(seed, split, index, absent[order[index]], attempt)
        captions.add(clip.caption)
        clips.append(clip)
    return clips


def recall_ceiling(clips: Sequence[MiniatureClip]) -> float:
    """Return the R@1, in [0, 1], expected of a perfect model that breaks ties at random.

    A caption that is true of n clips contributes 1 / n.
    """
    return float(np.mean([1 / sum(clip.satisfies(query) for clip in clips) for query in clips]))


def _signed_distance(shape: str, x: np.ndarray, y: np.ndarray, radius: float) -> np.ndarray:
    """Return the distance in pixels to the outline of a shape around the origin, negative inside; y points down."""
    if shape == "circle":
        return np.hypot(x, y) - 0.9 * radius
    if shape == "ring":
        return np.abs(np.hypot(x, y) - 0.8 * radius) - 0.2 * radius
    if shape == "square":
        return np.maximum(np.abs(x), np.abs(y)) - 0.8 * radius
    if shape == "cross":
        bars = [np.maximum(np.abs(x) - a * radius, np.abs(y) - b * radius) for a, b in ((1, 0.3), (0.3, 1))]
        return np.minimum(*bars)
    if shape == "triangle":
        sides = [x * np.sin(angle) + y * np.cos(angle) for angle in (0, 2 * np.pi / 3, -2 * np.pi / 3)]
        return np.maximum.reduce(sides) - 0.55 * radius
    # star: fold the plane into half of one of five arms; its edge runs from the tip to the notch
    angle = np.arctan2(x, -y)
    angle = np.abs((angle + np.pi / 5) % (2 * np.pi / 5) - np.pi / 5)
    across, along = np.hypot(x, y) * np.sin(angle), np.hypot(x, y) * np.cos(angle)
    tip = np.array([0, 1.1 * radius])
    notch = 0.45 * radius * np.array([np.sin(np.pi / 5), np.cos(np.pi / 5)])
    edge = (tip - notch) / np.linalg.norm(tip - notch)
    return (across - notch[0]) * edge[1] - (along - notch[1]) * edge[0]


def draw_frames(attributes: dict[str, str], rng: np.random.Generator) -> np.ndarray:
    """Draw the picture track as a uint8 array `(NUM_FRAMES, FRAME_SIZE, FRAME_SIZE, 3)`.

    Each motion leaves its trace in the set of frames whatever their order: places, sizes, or absence.
    """
    grid = np.arange(FRAME_SIZE) + 0.5
    centre = FRAME_SIZE / 2 + rng.uniform(-2, 2, size=2)
    radius, phase = rng.uniform(16, 18), rng.uniform(0, 2 * np.pi)
    shade = rng.uniform(-8, 8, size=3)
    offset, sign = rng.uniform(0, 12), rng.choice([-1, 1])
    first, second = (np.array(colour, dtype=float) for colour in GROUNDS[attributes["ground"]])
    ground = np.broadcast_to(first, (FRAME_SIZE, FRAME_SIZE, 3))
    if attributes["pattern"] == "striped":
        stripe = (grid[:, None] + sign * grid[None, :] + offset) % 12 < 6
        ground = np.where(stripe[..., None], first, second)
    colour = np.array(COLOURS[attributes["colour"]]) + shade

    frames = []
    for number in range(NUM_FRAMES):
        swing = np.sin(2 * np.pi * number / NUM_FRAMES + phase)
        x, y, size = grid[None, :] - centre[0], grid[:, None] - centre[1], radius
        if attributes["motion"] == "slide":
            x = x - 16 * swing
        elif attributes["motion"] == "bounce":
            y = y - 16 * swing
        elif attributes["motion"] == "grow":
            size = radius * (1 + 0.6 * swing)
        cover = np.clip(0.5 - _signed_distance(attributes["shape"], x, y, size), 0, 1)[..., None]
        if attributes["motion"] == "blink" and number % 6 >= 3:
            cover = np.zeros_like(cover)
        frames.append(cover * colour + (1 - cover) * ground)
    return np.clip(np.round(frames), 0, 255).astype(np.uint8)


def _tone(timbre: str, phase: np.ndarray, frequency: np.ndarray, age: np.ndarray, rng: np.random.Generator):
    """Return the bare tone: `phase` in radians, `age` the seconds since the last stroke."""
    if timbre == "flute":
        return np.sin(phase)
    if timbre == "warble":
        time = np.arange(NUM_SAMPLES) / SAMPLE_RATE
        return np.sin(phase + 0.2 * frequency / 9 * np.sin(2 * np.pi * 9 * time))  # ±20 %, nine times a second
    if timbre == "noise":
        ratios = 2 ** rng.uniform(-0.3, 0.3, size=40)
        return sum(np.sin(ratio * phase + start) for ratio, start in zip(ratios, rng.uniform(0, 6.3, 40), strict=True))
    if timbre == "bell":
        partials = {1.0: 1.0, 2.76: 0.8, 5.4: 0.6}
    else:
        partials = {float(k): 1 / k for k in range(1, 31)}
    audible = {ratio: level for ratio, level in partials.items() if ratio * frequency.max() < 0.95 * SAMPLE_RATE / 2}
    if timbre == "buzz":
        return sum(level * np.sin(ratio * phase) for ratio, level in audible.items())
    if timbre == "bell":
        return np.exp(-age / 0.5) * sum(level * np.sin(ratio * phase) for ratio, level in audible.items())
    string = sum(level * np.sin(ratio * phase) * np.exp(-age * ratio / 0.15) for ratio, level in audible.items())
    return string + 1.5 * rng.standard_normal(NUM_SAMPLES) * np.exp(-age / 0.006)  # the pick on the string


def draw_waveform(attributes: dict[str, str], rng: np.random.Generator) -> np.ndarray:
    """Draw the sound track as float32 `(NUM_SAMPLES,)` at `SAMPLE_RATE`, peak below 1."""
    time = np.arange(NUM_SAMPLES) / SAMPLE_RATE
    duration = NUM_SAMPLES / SAMPLE_RATE
    rhythm = attributes["rhythm"]
    glide = {"rising": 1, "falling": -1}.get(rhythm, 0)  # octaves over the clip
    frequency = PITCHES[attributes["pitch"]] * rng.uniform(0.95, 1.05) * 2 ** (glide * (time / duration - 0.5))
    phase = 2 * np.pi * np.cumsum(frequency) / SAMPLE_RATE
    period = {"slow": duration / 3, "quick": duration / 12}.get(rhythm, duration)
    age = time % period
    tone = _tone(attributes["timbre"], phase, frequency, age, rng)
    length = period if period == duration else 0.6 * period
    tone = tone * np.clip(np.minimum(age, length - age) / 0.005, 0, 1)  # no clicks at either end
    wave = 0.5 * tone / np.abs(tone).max()
    if attributes["backing"] == "hum":
        wave += 0.25 * np.sin(2 * np.pi * 60 * time)
    elif attributes["backing"] == "whistle":
        wave += 0.08 * np.sin(2 * np.pi * 7000 * time)
    elif attributes["backing"] == "crackle":
        strokes = rng.random(NUM_SAMPLES) < 30 / SAMPLE_RATE
        decay = np.exp(-np.arange(64) / 16)
        wave += 0.4 * np.convolve(strokes, decay)[:NUM_SAMPLES] * rng.uniform(-1, 1, NUM_SAMPLES)
    elif attributes["backing"] == "drum":
        since = time % (duration / 4)
        wave += 0.6 * np.sin(2 * np.pi * 80 * since) * np.exp(-since / 0.06)
    elif attributes["backing"] == "birds":
        since = (time + rng.uniform(0, 0.2)) % 0.2
        chirp = np.sin(2 * np.pi * (4500 + 1e4 * since) * since)  # from 4.5 to 6.5 kHz in a tenth of a second
        wave += 0.15 * chirp * np.sin(np.pi * np.minimum(since / 0.1, 1))
    return (np.clip(wave, -0.95, 0.95) * rng.uniform(0.7, 1)).astype(np.float32)


# PyAV's encoder of text tracks wants the head of an ASS file; none of it reaches the track.
_ASS_HEADER = (
    b"[Script Info]\nScriptType: v4.00+\n\n[V4+ Styles]\nFormat: Name\nStyle: Default\n\n[Events]\nFormat: Text\n"
)


def render(clip: MiniatureClip, folder: Path) -> None:
    """Write the file of a clip: h264 picture, AAC sound and a text track, each only if the clip has it."""
    rng = _generator(*clip.key)
    with av.open(folder / clip.path, "w") as container:
        # All streams have to exist before the first packet.
        if "video" in clip.attributes:
            # Without "zerolatency" (no B-frames, no lookahead) x264 encodes the same frames differently now and then.
            options = {"crf": "23", "preset": "veryfast", "tune": "zerolatency"}
            video = container.add_stream("libx264", rate=FRAME_RATE, options=options)
            video.width = video.height = FRAME_SIZE
            video.pix_fmt = "yuv420p"
            video.thread_count = 1
        if "audio" in clip.attributes:
            audio = container.add_stream("aac", rate=SAMPLE_RATE, layout="mono")
            audio.bit_rate = 32_000
        if clip.subtitle is not None:
            text = container.add_stream("mov_text")
            text.time_base = Fraction(1, 1000)
            text.codec_context.subtitle_header = _ASS_HEADER

        if "video" in clip.attributes:
            for number, image in enumerate(draw_frames(clip.attributes["video"], rng)):
                frame = av.VideoFrame.from_ndarray(image, format="rgb24")
                frame.pts, frame.time_base = number, Fraction(1, FRAME_RATE)
                container.mux(video.encode(frame))
            container.mux(video.encode())
        if "audio" in clip.attributes:
            wave = draw_waveform(clip.attributes["audio"], rng)
            frame = av.AudioFrame.from_ndarray(wave[None], format="fltp", layout="mono")
            frame.sample_rate, frame.pts, frame.time_base = SAMPLE_RATE, 0, Fraction(1, SAMPLE_RATE)
            container.mux(audio.encode(frame))
            container.mux(audio.encode())
        if clip.subtitle is not None:
            line = SubtitleSet.create(f"0,0,Default,,0,0,0,,{clip.subtitle}".encode(), start=0, end=1200)
            packet = text.codec_context.encode_subtitle(line)
            packet.stream, packet.pts, packet.dts, packet.duration = text, 0, 0, 1000 * NUM_FRAMES // FRAME_RATE
            packet.time_base = Fraction(1, 1000)
            container.mux(packet)


def _render_all(clips: Sequence[MiniatureClip], folder: Path, num_proc: int) -> None:
    with tqdm(total=len(clips), desc="Rendering clips", unit="clip") as progress:
        if num_proc == 1:
            for clip in clips:
                render(clip, folder)
                progress.update()
            return
        with ProcessPoolExecutor(num_proc) as pool:
            for _ in pool.map(render, clips, [folder] * len(clips), chunksize=16):
                progress.update()


def _write_annotation(path: Path, clips: Sequence[MiniatureClip]) -> str:
    """Write one JSON line per clip and return the SHA-256 of the file."""
    content = "".join(json.dumps(clip.row()) + "\n" for clip in clips).encode()
    path.write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def generate(
    output: str | os.PathLike,
    num_train: int = 1500,
    num_test: int = 300,
    seed: int = 0,
    num_proc: int | None = None,
) -> Path:
    """Write the miniature benchmark into a folder.

    The folder appears under its name only when it is complete: until then it is called `<output>.partial`, and what an
    interrupted call left there is made anew. A complete folder with the same settings is returned as it is.

    Args:
        output (`str` or `os.PathLike`): the folder to make.
        num_train (`int`, defaults to 1500): clips of the split "train".
        num_test (`int`, defaults to 300): clips of the split "test".
        seed (`int`, defaults to 0): not negative. The same seed and counts give the same set.
        num_proc (`int`, *optional*): processes; all processors if not given. The set does not depend on it.
    Returns:
        `Path`: the folder, with `train/`, `test/`, `train.jsonl`, `test.jsonl` and `miniature.json`.
    Raises:
        ValueError: a number is out of range, or the folder holds something else than this set.
    """
    if num_train < 1 or num_test < 1 or seed < 0:
        raise ValueError(
            "`num_train` and `num_test` must be at least 1 and `seed` at least 0, "
            f"got {num_train!r}, {num_test!r} and {seed!r}."
        )
    num_proc = num_proc if num_proc is not None else os.cpu_count() or 1
    if num_proc < 1:
        raise ValueError(f"`num_proc` must be at least 1, got {num_proc!r}.")

    output = Path(output).absolute()
    settings = {"version": VERSION, "seed": seed, "num_train": num_train, "num_test": num_test}
    manifest_path = output / "miniature.json"
    if manifest_path.exists():
        manifest = json.loads(manifest_path.read_text())
        found = {name: manifest.get(name) for name in settings}
        if found != settings:
            raise ValueError(
                f"{output} holds a miniature benchmark with {found}, asked for was one with {settings}. "
                "Choose another folder or remove this one."
            )
        return output
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ValueError(f"{output} exists and is not a miniature benchmark. Choose another folder or remove it.")

    partial = output.with_name(output.name + ".partial")
    if partial.exists():
        logger.warning("Removing %s, left by an interrupted run.", partial)
        shutil.rmtree(partial)
    clips = {split: draw_split(seed, split, settings[f"num_{split}"]) for split in SPLITS}
    for split in SPLITS:
        (partial / split).mkdir(parents=True)
    _render_all([clip for split in SPLITS for clip in clips[split]], partial, num_proc)
    manifest = {
        **settings,
        "absent": {
            split: {modality: sum(modality not in clip.attributes for clip in clips[split]) for modality in VOCABULARY}
            for split in SPLITS
        },
        "test_recall_at_1_ceiling": recall_ceiling(clips["test"]),
        "vocabulary": {
            modality: {name: list(values) for name, values in names.items()} for modality, names in VOCABULARY.items()
        },
        "sha256": {f"{split}.jsonl": _write_annotation(partial / f"{split}.jsonl", clips[split]) for split in SPLITS},
    }
    (partial / "miniature.json").write_text(json.dumps(manifest, indent=2) + "\n")
    partial.replace(output)
    return output


__all__ = [
    "ABSENT_SHARES",
    "SPLITS",
    "VERSION",
    "VOCABULARY",
    "MiniatureClip",
    "draw_clip",
    "draw_frames",
    "draw_split",
    "draw_waveform",
    "generate",
    "recall_ceiling",
    "render",
]
