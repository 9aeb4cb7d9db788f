"""The miniature benchmark: what is drawn, what is written, and that it does not depend on how it was made."""

import hashlib
import json
from collections import Counter
from itertools import combinations

import av
import numpy as np
import pytest

from eval import miniature
from eval.miniature import (
    ABSENT_SHARES,
    VOCABULARY,
    draw_clip,
    draw_frames,
    draw_split,
    draw_waveform,
    generate,
    recall_ceiling,
)
from modeling_scalar.configuration_scalar import MODALITIES

COUNTS = {"train": 24, "test": 12}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return generate(tmp_path_factory.mktemp("miniature") / "set", COUNTS["train"], COUNTS["test"], seed=3, num_proc=2)


@pytest.fixture(scope="module")
def train_clips():
    return draw_split(0, "train", 1500)


@pytest.fixture(scope="module")
def test_clips():
    return draw_split(0, "test", 300)


def read_rows(folder, split):
    return [json.loads(line) for line in (folder / f"{split}.jsonl").read_text().splitlines()]


def decoded(path):
    """Everything a decoder gets out of a file: frames, samples, lines of text."""
    with av.open(path) as container:
        frames = [f.to_ndarray(format="rgb24") for s in container.streams.video for f in container.decode(s)]
    with av.open(path) as container:
        samples = [f.to_ndarray() for s in container.streams.audio for f in container.decode(s)]
    with av.open(path) as container:
        packets = [p for s in container.streams.subtitles for p in container.demux(s) if p.size]
        lines = [line.dialogue.decode() for packet in packets for line in packet.stream.decode(packet)]
    return frames, samples, lines


def test_the_vocabulary_is_in_the_order_of_modalities():
    assert tuple(VOCABULARY) == MODALITIES


def test_every_listed_clip_and_nothing_else_is_written(folder):
    for split, count in COUNTS.items():
        rows = read_rows(folder, split)
        assert [row["video_id"] for row in rows] == [f"mini_{split}_{index:06d}" for index in range(count)]
        written = {path.relative_to(folder).as_posix() for path in (folder / split).iterdir()}
        assert written == {row["video_path"] or row["audio_path"] for row in rows}
    assert not folder.with_name("set.partial").exists()


def test_files_hold_the_promised_tracks(folder):
    seen = Counter()
    for row in read_rows(folder, "train") + read_rows(folder, "test"):
        frames, samples, lines = decoded(folder / (row["video_path"] or row["audio_path"]))
        assert len(frames) == (miniature.NUM_FRAMES if row["video_path"] else 0)
        assert bool(samples) == (row["audio_path"] is not None)
        if samples:
            wave = np.concatenate(samples, axis=1)[0]
            assert miniature.NUM_SAMPLES <= wave.size <= miniature.NUM_SAMPLES + 1024  # AAC fills its last frame
            assert 0.05 < np.abs(wave).max() < 1.1  # heard, and clipped by no more than the codec's ripple
        assert lines == ([row["subtitle"]] if row["subtitle"] is not None else [])
        tracks = {"video": row["video_path"], "audio": row["audio_path"], "subtitle": row["subtitle"]}
        assert set(row["attributes"]) == {modality for modality, track in tracks.items() if track is not None}
        seen.update(modality for modality, track in tracks.items() if track is None)
    assert set(seen) == set(MODALITIES)


def test_rendered_frames_are_close_to_the_drawn_ones(folder):
    clip = next(clip for clip in draw_split(3, "test", COUNTS["test"]) if "video" in clip.attributes)
    drawn = draw_frames(clip.attributes["video"], np.random.default_rng(clip.key))
    frames = np.stack(decoded(folder / clip.path)[0])
    assert np.abs(frames.astype(float) - drawn).mean() < 12  # lossy codec, colours at half resolution


def test_the_set_does_not_depend_on_the_number_of_processes(folder, tmp_path):
    again = generate(tmp_path / "set", COUNTS["train"], COUNTS["test"], seed=3, num_proc=1)
    for name in ("train.jsonl", "test.jsonl", "miniature.json"):
        assert (again / name).read_bytes() == (folder / name).read_bytes()
    for row in read_rows(folder, "test"):
        path = row["video_path"] or row["audio_path"]
        for ours, theirs in zip(decoded(folder / path), decoded(again / path), strict=True):
            assert len(ours) == len(theirs)
            assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_another_seed_gives_another_set():
    ours, theirs = draw_split(0, "test", 50), draw_split(1, "test", 50)
    assert sum(a.caption == b.caption for a, b in zip(ours, theirs, strict=True)) < 5


def test_the_splits_are_drawn_apart():
    ours, theirs = draw_split(0, "train", 50), draw_split(0, "test", 50)
    assert sum(a.caption == b.caption for a, b in zip(ours, theirs, strict=True)) < 5


def test_the_manifest_describes_the_set(folder):
    manifest = json.loads((folder / "miniature.json").read_text())
    assert (manifest["seed"], manifest["num_train"], manifest["num_test"]) == (3, 24, 12)
    for split in COUNTS:
        content = (folder / f"{split}.jsonl").read_bytes()
        assert manifest["sha256"][f"{split}.jsonl"] == hashlib.sha256(content).hexdigest()
        rows = read_rows(folder, split)
        for modality, column in zip(MODALITIES, ("video_path", "audio_path", "subtitle"), strict=True):
            assert manifest["absent"][split][modality] == sum(row[column] is None for row in rows)


@pytest.mark.parametrize("count", [12, 24, 300, 1500])
def test_shares_of_missing_tracks_are_exact(count):
    clips = draw_split(5, "train", count)
    for modality, share in ABSENT_SHARES.items():
        assert sum(modality not in clip.attributes for clip in clips) == round(share * count) > 0
    assert all(len(clip.attributes) >= 2 for clip in clips)
    assert all((clip.subtitle is None) == ("subtitle" not in clip.attributes) for clip in clips)


def test_captions_speak_of_one_or_two_modalities_the_clip_has(train_clips):
    lengths = Counter(len(clip.mentions) for clip in train_clips)
    assert set(lengths) == {1, 2}
    assert 0.45 < lengths[1] / len(train_clips) < 0.55  # 50 %, four standard errors
    for clip in train_clips:
        assert list(clip.mentions) == clip.row()["about"] == [m for m in MODALITIES if m in clip.mentions]
        assert set(clip.mentions) <= set(clip.attributes)


def test_captions_say_what_they_mention_and_nothing_else(train_clips):
    for clip in train_clips[:400]:
        words = clip.caption.replace(",", "").split()
        for modality, attribute in [("video", "colour"), ("subtitle", "speaker"), ("subtitle", "weekday")]:
            said = [value for value in VOCABULARY[modality][attribute] if value in words]
            mentioned = attribute in clip.mentions.get(modality, [])
            assert said == ([clip.attributes[modality][attribute]] if mentioned else [])


def test_subtitles_name_speaker_topic_and_weekday(train_clips):
    for clip in (clip for clip in train_clips if clip.subtitle is not None):
        assert all(value in clip.subtitle for value in clip.attributes["subtitle"].values())


@pytest.mark.parametrize("split", ["train_clips", "test_clips"])
def test_captions_are_unique(split, request):
    captions = [clip.caption for clip in request.getfixturevalue(split)]
    assert len(set(captions)) == len(captions)


def test_a_perfect_model_can_reach_a_high_recall(test_clips):
    assert 0.9 < recall_ceiling(test_clips) < 1
    single = [clip for clip in test_clips if len(clip.mentions) == 1]
    ceilings = [1 / sum(other.satisfies(clip) for other in test_clips) for clip in single]
    assert np.mean(ceilings) > 0.8


def test_the_ceiling_halves_for_clips_that_cannot_be_told_apart():
    clip = draw_clip(0, "test", 0)
    assert recall_ceiling([clip]) == 1
    assert recall_ceiling([clip, clip]) == 0.5


def test_a_clip_without_the_modality_does_not_satisfy_a_caption_about_it():
    query = next(clip for clip in (draw_clip(0, "test", i) for i in range(50)) if list(clip.mentions) == ["audio"])
    mute = draw_clip(0, "test", query.index, absent="audio")
    assert query.satisfies(query)
    assert not mute.satisfies(query)


def test_all_attributes_are_drawn_independently(train_clips):
    clips = [draw_clip(0, "train", index) for index in range(1500)]
    columns = {
        (modality, name): [list(values).index(clip.attributes[modality][name]) for clip in clips]
        for modality, names in VOCABULARY.items()
        for name, values in names.items()
    }
    scores = []
    for (first, a), (second, b) in combinations(columns.items(), 2):
        table = np.zeros([len(VOCABULARY[m][name]) for m, name in (first, second)])
        np.add.at(table, (a, b), 1)
        expected = table.sum(1, keepdims=True) * table.sum(0, keepdims=True) / len(clips)
        freedom = (table.shape[0] - 1) * (table.shape[1] - 1)
        scores.append((((table - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom))
    assert len(scores) == 66
    assert max(scores) < 4.5  # chi-square of the worst of 66 pairs, in standard deviations above its mean
    assert abs(np.mean(scores)) < 0.5


def test_every_value_is_drawn(train_clips):
    for modality, names in VOCABULARY.items():
        for name, values in names.items():
            seen = Counter(clip.attributes[modality][name] for clip in train_clips if modality in clip.attributes)
            assert set(seen) == set(values)
            assert min(seen.values()) > 0.5 * sum(seen.values()) / len(values)


@pytest.mark.parametrize("num_sampled", [3, 4, 6, 8, 12])
@pytest.mark.parametrize("motion", VOCABULARY["video"]["motion"])
def test_a_motion_shows_in_any_uniform_sample_of_frames(motion, num_sampled):
    attributes = {"shape": "circle", "colour": "red", "ground": "black", "pattern": "plain", "motion": motion}
    frames = draw_frames(attributes, np.random.default_rng(num_sampled)).astype(float)
    index = ((np.arange(num_sampled) + 0.5) * len(frames) / num_sampled).astype(int)
    red = frames[index][..., 0] > 120
    areas = red.sum((1, 2))
    visible = areas > 0
    places = [np.argwhere(frame).mean(0) for frame in red[visible]]
    rows, columns = np.ptp(places, axis=0)  # how far the centre wanders, in pixels
    trace = {
        "blink": not visible.all() and visible.any() and rows == columns == 0,
        "grow": visible.all() and areas.max() > 2 * areas.min(),
        "slide": visible.all() and columns > 10 and rows < 1,
        "bounce": visible.all() and rows > 10 and columns < 1,
        "still": (red == red[0]).all(),
    }
    assert [name for name, shown in trace.items() if shown] == [motion]


@pytest.mark.parametrize("pitch", VOCABULARY["audio"]["pitch"])
def test_a_tone_sounds_at_its_pitch(pitch):
    attributes = {"pitch": pitch, "timbre": "flute", "rhythm": "steady", "backing": "alone"}
    wave = draw_waveform(attributes, np.random.default_rng(0))
    peak = np.abs(np.fft.rfft(wave)).argmax() / miniature.NUM_SAMPLES * miniature.SAMPLE_RATE
    assert peak == pytest.approx(miniature.PITCHES[pitch], rel=0.06)  # drawn within 5 %


def test_all_sounds_stay_within_full_scale():
    names = VOCABULARY["audio"]
    for index, timbre in enumerate(names["timbre"]):
        for rhythm in names["rhythm"]:
            for backing in names["backing"]:
                attributes = {"pitch": "low", "timbre": timbre, "rhythm": rhythm, "backing": backing}
                wave = draw_waveform(attributes, np.random.default_rng(index))
                assert wave.shape == (miniature.NUM_SAMPLES,) and wave.dtype == np.float32
                assert 0.2 < np.abs(wave).max() < 1


def test_a_finished_set_is_returned_at_once(folder, monkeypatch):
    monkeypatch.setattr(miniature, "render", lambda *_: pytest.fail("rendered again"))
    assert generate(folder, COUNTS["train"], COUNTS["test"], seed=3, num_proc=1) == folder


def test_an_interrupted_run_does_not_look_finished_and_is_made_anew(tmp_path, monkeypatch):
    render, rendered = miniature.render, []

    def interrupted(clip, folder):
        if len(rendered) == 4:
            raise KeyboardInterrupt
        rendered.append(clip)
        render(clip, folder)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(miniature, "render", interrupted)
        generate(tmp_path / "set", 6, 3, num_proc=1)
    assert rendered and not (tmp_path / "set").exists()
    partial = tmp_path / "set.partial"
    (partial / "train" / "999999.mp4").write_bytes(b"")  # as if of another, larger set
    generate(tmp_path / "set", 6, 3, num_proc=1)
    assert len(list((tmp_path / "set" / "train").iterdir())) == 6
    assert not partial.exists()


def test_other_settings_are_refused(folder):
    with pytest.raises(ValueError, match=r"'num_test': 12.*'num_test': 13"):
        generate(folder, COUNTS["train"], 13, seed=3)


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="is not a miniature benchmark"):
        generate(tmp_path, 6, 3)
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    "settings", [{"num_train": 0}, {"num_test": 0}, {"seed": -1}, {"num_proc": 0}], ids=lambda s: next(iter(s))
)
def test_numbers_out_of_range_are_refused(settings, tmp_path):
    with pytest.raises(ValueError, match="must be at least"):
        generate(tmp_path / "set", **settings)
    assert not (tmp_path / "set.partial").exists()
