"""Renders a clip of the miniature benchmark: its frames, its sound and its file."""

import math
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from av.subtitles.subtitle import SubtitleSet

from evidence.miniature.clips import MiniatureClip
from evidence.miniature.vocabulary import COLOURS, ENTRIES, GROUNDS, PITCHES

FRAME_SIZE = 64
FRAME_RATE = 10
NUM_FRAMES = 12
SAMPLE_RATE = 16_000
NUM_SAMPLES = SAMPLE_RATE * NUM_FRAMES // FRAME_RATE


def _signed_distance(shape: str, x: np.ndarray, y: np.ndarray, radius: float) -> np.ndarray:
    """Return the distance in pixels to the outline of a shape around the origin, negative inside; y points down."""
    if shape == "circle":
        return np.hypot(x, y) - 0.9 * radius
    if shape == "ring":
        return np.abs(np.hypot(x, y) - 0.8 * radius) - 0.2 * radius
    if shape == "square":
        return np.maximum(np.abs(x), np.abs(y)) - 0.8 * radius
    if shape == "cross":
        lying = np.maximum(np.abs(x) - radius, np.abs(y) - 0.3 * radius)
        standing = np.maximum(np.abs(x) - 0.3 * radius, np.abs(y) - radius)
        return np.minimum(lying, standing)
    if shape == "triangle":
        sides = [x * np.sin(angle) + y * np.cos(angle) for angle in (0, 2 * np.pi / 3, -2 * np.pi / 3)]
        return np.maximum.reduce(sides) - 0.55 * radius
    # A star: fold the plane into half of one of five arms; its edge runs from the tip to the notch.
    angle = np.arctan2(x, -y)
    angle = np.abs((angle + np.pi / 5) % (2 * np.pi / 5) - np.pi / 5)
    across = np.hypot(x, y) * np.sin(angle)
    along = np.hypot(x, y) * np.cos(angle)
    tip = np.array([0, 1.1 * radius])
    notch = 0.45 * radius * np.array([np.sin(np.pi / 5), np.cos(np.pi / 5)])
    edge = (tip - notch) / np.linalg.norm(tip - notch)
    return (across - notch[0]) * edge[1] - (along - notch[1]) * edge[0]


def draw_frames(attributes: dict[str, str], rng: np.random.Generator) -> np.ndarray:
    """Draw the video track as a uint8 array `(NUM_FRAMES, FRAME_SIZE, FRAME_SIZE, 3)`.

    Each motion is visible in the set of frames whatever their order: by places, sizes, or absence.
    """
    grid = np.arange(FRAME_SIZE) + 0.5
    centre = FRAME_SIZE / 2 + rng.uniform(-2, 2, size=2)
    radius = rng.uniform(16, 18)
    phase = rng.uniform(0, 2 * np.pi)
    if attributes["size"] == "small":
        radius *= 0.6
    shade = rng.uniform(-8, 8, size=3)
    offset = rng.uniform(0, 12)
    sign = rng.choice([-1, 1])
    first, second = (np.array(colour, dtype=float) for colour in GROUNDS[attributes["ground"]])
    ground = np.broadcast_to(first, (FRAME_SIZE, FRAME_SIZE, 3))
    if attributes["pattern"] == "striped":
        # Diagonal stripes of six pixels.
        stripe = (grid[:, None] + sign * grid[None, :] + offset) % 12 < 6
        ground = np.where(stripe[..., None], first, second)
    colour = np.array(COLOURS[attributes["colour"]]) + shade

    # The shape moves over the ground, with soft edges.
    frames = []
    for number in range(NUM_FRAMES):
        swing = np.sin(2 * np.pi * number / NUM_FRAMES + phase)
        x = grid[None, :] - centre[0]
        y = grid[:, None] - centre[1]
        size = radius
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


# Capitals and digits of 5 x 7 pixels; a byte is a column, its lowest bit the top.
_GLYPHS = {" ": bytes(5)}
for _letter, _columns in zip(
    "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789",
    "7E1111117E 7F49494936 3E41414122 7F4141221C 7F49494941 7F09090901 3E4149497A 7F0808087F 00417F4100 "
    "2040413F01 7F08142241 7F40404040 7F020C027F 7F0408107F 3E4141413E 7F09090906 3E4151215E 7F09192946 "
    "4649494931 01017F0101 3F4040403F 1F2040201F 3F4038403F 6314081463 0708700807 6151494543 3E5149453E "
    "00427F4000 4261514946 2141454B31 1814127F10 2745454539 3C4A494930 0171090503 3649494936 064949291E".split(),
    strict=True,
):
    _GLYPHS[_letter] = bytes.fromhex(_columns)


def write_on(frames: np.ndarray, text: str) -> np.ndarray:
    """Write a line of capitals, digits and spaces into a dark bar of 9 pixels at the foot of frames, which it copies.

    A frame of `FRAME_SIZE` has room for ten of them, white and 5 x 7 pixels large.
    """
    columns = np.frombuffer(b"\0".join(map(_GLYPHS.get, text)), np.uint8)  # a gap between two letters
    line = (columns[None] >> np.arange(7, dtype=np.uint8)[:, None]) & 1  # (7, width)
    frames = frames.copy()
    left = (frames.shape[2] - line.shape[1]) // 2
    frames[:, -9:] = 16
    frames[:, -8:-1, left : left + line.shape[1]][:, line == 1] = 255
    return frames


def _harmonics(fundamental: np.ndarray, highest: float) -> np.ndarray:
    """Return the imaginary part of the sum of z^k / k for k up to `highest` and 30, by Horner's rule."""
    total = np.zeros_like(fundamental)
    for k in range(min(30, math.ceil(highest) - 1), 0, -1):
        total = (total + 1 / k) * fundamental
    return total.imag


def _tone(timbre: str, phase: np.ndarray, frequency: np.ndarray, age: np.ndarray, rng: np.random.Generator):
    """Return the bare tone: `phase` in radians, `age` the seconds since the last stroke."""
    if timbre == "flute":
        return np.sin(phase)
    if timbre == "warble":
        time = np.arange(NUM_SAMPLES) / SAMPLE_RATE
        return np.sin(phase + 0.2 * frequency / 9 * np.sin(2 * np.pi * 9 * time))  # ±20 %, nine times per second
    if timbre == "noise":
        ratios = 2 ** rng.uniform(-0.3, 0.3, size=40)
        starts = rng.uniform(0, 6.3, size=40)
        return sum(np.sin(ratio * phase + start) for ratio, start in zip(ratios, starts, strict=True))
    highest = 0.95 * SAMPLE_RATE / 2 / frequency.max()  # of the audible partials, over the fundamental
    if timbre == "bell":
        total = 0
        for ratio, level in ((1.0, 1.0), (2.76, 0.8), (5.4, 0.6)):
            if ratio < highest:
                total = total + level * np.sin(ratio * phase)
        return np.exp(-age / 0.5) * total
    if timbre == "buzz":
        return _harmonics(np.exp(1j * phase), highest)
    string = _harmonics(np.exp(1j * phase - age / 0.15), highest)  # the higher, the sooner it dies away
    return string + 1.5 * rng.standard_normal(NUM_SAMPLES) * np.exp(-age / 0.006)  # the pick on the string


def draw_waveform(attributes: dict[str, str], rng: np.random.Generator) -> np.ndarray:
    """Draw the audio track as float32 `(NUM_SAMPLES,)` at `SAMPLE_RATE`, peak below 1."""
    time = np.arange(NUM_SAMPLES) / SAMPLE_RATE
    duration = NUM_SAMPLES / SAMPLE_RATE
    rhythm = attributes["rhythm"]
    since = time - ENTRIES[attributes["entry"]] * duration
    length = duration - ENTRIES[attributes["entry"]] * duration
    glide = {"rising": 1, "falling": -1}.get(rhythm, 0)  # octaves from its entry to its end
    frequency = PITCHES[attributes["pitch"]] * rng.uniform(0.95, 1.05) * 2 ** (glide * (since / length - 0.5))
    phase = 2 * np.pi * np.cumsum(frequency) / SAMPLE_RATE

    # Strokes of a rhythm begin anew, and end before the next one.
    period = {"slow": duration / 3, "quick": duration / 12}.get(rhythm, length)
    age = since % period
    tone = _tone(attributes["timbre"], phase, frequency, age, rng) * (since >= 0)
    stroke = period
    if period != length:
        stroke = 0.6 * period
    tone = tone * np.clip(np.minimum(age, stroke - age) / 0.005, 0, 1)  # no clicks at either end
    wave = 0.5 * tone / np.abs(tone).max()

    # What sounds behind it does so from the start.
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


# PyAV's encoder of text tracks needs the header of an ASS file, which is not written to the track.
_ASS_HEADER = (
    b"[Script Info]\nScriptType: v4.00+\n\n[V4+ Styles]\nFormat: Name\nStyle: Default\n\n[Events]\nFormat: Text\n"
)


def render(clip: MiniatureClip, folder: Path) -> None:
    """Write the file of a clip: h264 video, AAC audio and a text track, each only if the clip has it; also further
    evidence, a title as a tag and words on the screen in the video."""
    rng = np.random.default_rng(clip.key)
    with av.open(folder / clip.path, "w") as container:
        if clip.texts.get("title"):
            container.metadata["title"] = clip.texts["title"]
        # All streams have to exist before the first packet.
        if "video" in clip.attributes:
            # Without "zerolatency" (no B-frames, no lookahead) x264 sometimes encodes the same frames differently.
            options = {"crf": "23", "preset": "veryfast", "tune": "zerolatency"}
            video = container.add_stream("libx264", rate=FRAME_RATE, options=options)
            video.width = video.height = FRAME_SIZE
            video.pix_fmt = "yuv420p"
            video.thread_count = 1
        if "audio" in clip.attributes:
            # FFmpeg's "fast" coder takes about half the time, and is closer to these short tones than its default.
            audio = container.add_stream("aac", rate=SAMPLE_RATE, layout="mono", options={"aac_coder": "fast"})
            audio.bit_rate = 32_000
        if clip.subtitle is not None:
            text = container.add_stream("mov_text")
            text.time_base = Fraction(1, 1000)
            text.codec_context.subtitle_header = _ASS_HEADER

        # Video is drawn before audio: both take numbers from one generator.
        if "video" in clip.attributes:
            images = draw_frames(clip.attributes["video"], rng)
            if clip.texts.get("screen"):
                images = write_on(images, clip.texts["screen"])
            for number, image in enumerate(images):
                frame = av.VideoFrame.from_ndarray(image, format="rgb24")
                frame.pts = number
                frame.time_base = Fraction(1, FRAME_RATE)
                container.mux(video.encode(frame))
            container.mux(video.encode())
        if "audio" in clip.attributes:
            wave = draw_waveform(clip.attributes["audio"], rng)
            frame = av.AudioFrame.from_ndarray(wave[None], format="fltp", layout="mono")
            frame.sample_rate = SAMPLE_RATE
            frame.pts = 0
            frame.time_base = Fraction(1, SAMPLE_RATE)
            container.mux(audio.encode(frame))
            container.mux(audio.encode())
        if clip.subtitle is not None:
            line = SubtitleSet.create(f"0,0,Default,,0,0,0,,{clip.subtitle}".encode(), start=0, end=1200)
            packet = text.codec_context.encode_subtitle(line)
            packet.stream = text
            packet.pts = packet.dts = 0
            packet.duration = 1000 * NUM_FRAMES // FRAME_RATE
            packet.time_base = Fraction(1, 1000)
            container.mux(packet)


__all__ = ["draw_frames", "draw_waveform", "render", "write_on"]
