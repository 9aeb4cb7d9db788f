"""Composed clips: what they are made of, captions and ceilings, files and vectors, and that the page is computed."""

import json
import wave

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from evidence.composed import measuring, writing
from evidence.composed.drawing import KINDS, MODALITIES, ComposedClip, draw, recall_ceilings
from evidence.composed.measuring import Vectors, compose, embed, fit_arity, rank_draw
from evidence.composed.media import (
    WORDS,
    Half,
    Sound,
    read_halves,
    read_picture,
    read_sounds,
    read_speech,
    subtitle_of,
)
from evidence.composed.report import RESULTS, ComposedResults, fill, read_claims, report
from evidence.composed.writing import check_settings, write_composed
from evidence.settings import MiniatureConfig
from evidence.stamps.items import Item
from scalar_retrieval.eval.benchmarks.registry import load_split
from scalar_retrieval.eval.embedding.embed_dataset import embed_dataset
from scalar_retrieval.modeling_scalar import load_model
from scalar_retrieval.modeling_scalar.media_scalar import SAMPLING_RATE
from scalar_retrieval.modeling_scalar.model_identity import LIGHT
from tests.evidence.fixed_weights import fixed_weights  # noqa: F401
from tests.evidence.test_stamps import ROOT, write_stamp

PHOTOGRAPHS = (
    "frog cow goat bear lark apple spade moon pear whale owl saw cup key drum bell boat lamp rose leaf crab wolf hat"
).split()
CAPTIONS = {name: f"A {name} of some kind." for name in PHOTOGRAPHS}


def write_tone(path, rate):
    """Half a second as PCM, by whose content a reader knows it, whatever its name is."""
    tone = 0.3 * np.sin(2 * np.pi * 440 * np.arange(rate // 2) / rate)
    path.parent.mkdir(exist_ok=True)
    with wave.open(str(path), "w") as file:
        file.setparams((1, 2, rate, 0, "NONE", ""))
        file.writeframes((tone * 2**15).astype(np.int16).tobytes())


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """Folders of stamps and prompts: small pictures, and sounds that are tones."""
    stamps = tmp_path_factory.mktemp("stamps")
    prompts = tmp_path_factory.mktemp("prompts")
    for number, (name, caption) in enumerate(CAPTIONS.items()):
        path = stamps / "animals" / f"{name}.png"
        write_stamp(path, caption)
        # Smooth, as photographs are: noise is lost when a video is compressed.
        across = np.linspace(0, 255, 40).astype(np.uint8)
        pixels = np.stack(np.broadcast_arrays(across[:, None], across, np.uint8(10 * number)), axis=-1)
        Image.fromarray(pixels).save(path)
        write_tone(stamps / "animals" / f"{name}.ogg", SAMPLING_RATE)
    for name in WORDS:
        write_tone(prompts / name, 8000)
    return stamps, prompts


@pytest.fixture(scope="module")
def halves(packages):
    return read_halves(*packages)


@pytest.fixture
def recogniser(monkeypatch):
    """A recogniser that mistakes one word."""
    understood = dict(WORDS) | {"phonetic/k_p.wav": "zero"}
    monkeypatch.setattr(writing, "recognise", lambda prompts: understood)
    monkeypatch.setattr(measuring, "recognise", lambda prompts: understood)
    return understood


def made_vectors(halves, understood, clips):
    """Random vectors, and captions near what they are about."""
    generator = torch.Generator().manual_seed(0)
    unit = torch.nn.functional.normalize

    def random():
        return unit(torch.randn(16, generator=generator), dim=0)

    contents = {
        "video": {item.path: random() for half in halves.values() for item in half.photographs},
        "title": {sound.title: random() for half in halves.values() for sound in half.sounds},
        "subtitle": {pair: random() for half in halves.values() for pair in half.pairs},
    }
    captions = {}
    for clip in clips:
        keys = {"video": clip.photograph.path, "title": clip.sound.title, "subtitle": clip.pair}
        captions[clip.caption] = unit(sum(contents[name][keys[name]] for name in clip.about) + 0.3 * random(), dim=0)
    return Vectors(contents, captions, {})


# What clips are made of ----------------------------------------------------------------------------------------------


def test_nothing_belongs_to_both_halves(halves):
    fit, shown = halves["validation"], halves["test"]
    assert len(fit.pairs) + len(shown.pairs) == 26 * 47
    for name in ("photographs", "sounds", "pairs"):
        one, other = getattr(fit, name), getattr(shown, name)
        assert one and other
        assert not [each for each in one if each in other]


def test_sounds_are_those_of_stamps_whose_caption_names_a_thing(tmp_path):
    for name, caption in {"cow": "A cow.", "white": "A cow.", "wash": "Wash your hands!"}.items():
        write_stamp(tmp_path / f"{name}.png", caption)
        (tmp_path / f"{name}.ogg").touch()
    (tmp_path / "cow_de.ogg").touch()  # a translation of the caption
    assert read_sounds(tmp_path) == [Sound("cow.ogg", "cow", "A cow.")]


def test_missing_prompts_are_named(packages, tmp_path):
    with pytest.raises(FileNotFoundError, match="asterisk-core-sounds-en-wav"):
        read_halves(packages[0], tmp_path / "nothing")


def test_words_follow_each_other_after_pauses(packages):
    speech = read_speech(("phonetic/k_p.wav", "digits/7.wav"), packages[1])
    assert len(speech) == pytest.approx((3 * 0.25 + 2 * 0.5) * SAMPLING_RATE, abs=32)
    assert not speech[: SAMPLING_RATE // 8].any()


def test_a_picture_is_whole_and_padded_with_white(tmp_path):
    Image.new("RGB", (40, 20), "black").save(tmp_path / "wide.png")
    picture = read_picture(tmp_path / "wide.png")
    assert picture.shape == (224, 224, 3)
    assert (picture[0] == 255).all() and (picture[112] == 0).all()


# Draws ---------------------------------------------------------------------------------------------------------------


def test_a_draw_has_each_photograph_once_with_another_sound(halves):
    half = halves["test"]
    clips = draw(half, 0, complete=False)
    assert [clip.photograph for clip in clips] == half.photographs
    assert all(clip.sound.caption != clip.photograph.caption for clip in clips)
    assert len({clip.pair for clip in clips}) == len({clip.caption for clip in clips}) == len(clips)


def test_captions_are_about_what_is_there(halves):
    for seed in range(20):
        for clip in draw(halves["test"], seed, complete=False):
            assert set(clip.about) <= set(clip.present)
            assert ("the sound of" in clip.caption) == ("title" in clip.about)
            assert (clip.spoken in clip.caption) == ("subtitle" in clip.about)


def test_complete_clips_lack_nothing_and_draws_repeat(halves):
    clips = draw(halves["test"], 3, complete=True)
    assert {clip.absent for clip in clips} == {None}
    assert clips == draw(halves["test"], 3, complete=True)
    assert clips != draw(halves["test"], 4, complete=True)


def test_two_draws_in_a_row_have_both_kinds_for_each_photograph(halves):
    first, second = (draw(halves["test"], seed, complete=False) for seed in (0, 1))
    assert all({one.kind, other.kind} == set(KINDS) for one, other in zip(first, second, strict=True))


def test_shares_of_clips_lack_a_modality(halves):
    photographs = [Item(f"{n}.png", "", "", f"A thing {n}.", None, "none") for n in range(100)]
    half = Half(True, photographs, halves["test"].sounds, halves["test"].pairs)
    absent = [clip.absent for clip in draw(half, 0, complete=False)]
    assert [absent.count(name) for name in MODALITIES] == [5, 15, 20]


def test_ceilings_are_those_of_three_clips_counted_by_hand():
    one, two, three = (Item(f"{name}.png", "", "", name, None, "none") for name in "abc")
    cow, owl = Sound("cow.ogg", "cow", "A cow."), Sound("owl.ogg", "owl", "An owl.")
    pairs = [("phonetic/a_p.wav", f"digits/{n}.wav") for n in range(3)]
    clips = [
        ComposedClip(one, cow, pairs[0], None, ("title",), ""),
        ComposedClip(two, cow, pairs[1], None, ("video", "title"), ""),
        ComposedClip(three, owl, pairs[2], "title", ("subtitle",), ""),
    ]
    assert recall_ceilings(clips)["all"] == pytest.approx(100 * (1 / 2 + 1 + 1) / 3)
    assert recall_ceilings(clips)["single"] == pytest.approx(75)
    assert recall_ceilings(clips, "title")["all"] == pytest.approx(100 * (1 / 2 + 1 / 2 + 1 / 3) / 3)


# Files ---------------------------------------------------------------------------------------------------------------


def test_written_files_give_the_vectors_that_are_composed(packages, halves, recogniser, tmp_path):
    """Texts to rounding; pictures, which are compressed, to a cosine of 0.9."""
    stamps, prompts = packages
    write_composed(MiniatureConfig(output=tmp_path / "set", media="stamps"), stamps, prompts)
    clips = draw(halves["test"], 0, complete=False)
    vectors = embed(halves["test"], recogniser, [clip.caption for clip in clips], stamps)
    expected = compose(clips, vectors)
    model, processor = load_model(LIGHT, modalities=MODALITIES)
    rows = load_split("miniature", tmp_path / "set", "test").dataset
    found = embed_dataset(model, processor, rows, progress=False, num_workers=1)
    assert (found.modality_mask == expected.modality_mask).all()
    torch.testing.assert_close(found.text_embeds, expected.text_embeds, rtol=0, atol=1e-5)
    torch.testing.assert_close(found.modality_embeds[:, 1:], expected.modality_embeds[:, 1:], rtol=0, atol=1e-5)
    cosines = (found.modality_embeds[:, 0] * expected.modality_embeds[:, 0]).sum(-1)[expected.modality_mask[:, 0]]
    assert (cosines > 0.9).all()


def test_a_written_set_is_a_miniature_with_real_media(packages, recogniser, tmp_path):
    output = write_composed(MiniatureConfig(output=tmp_path / "set", media="stamps", seed=2), *packages)
    manifest = json.loads((output / "miniature.json").read_text())
    assert (manifest["media"], manifest["seed"], manifest["num_train"]) == ("stamps", 2, 0)
    for split in ("validation", "test"):
        rows = [json.loads(line) for line in (output / f"{split}.jsonl").read_text().splitlines()]
        assert len(rows) == manifest[f"num_{split}"] == len(list((output / split).iterdir()))
        assert sum(manifest["kinds"][split].values()) == len(rows)
    with pytest.raises(ValueError, match="not empty"):
        write_composed(MiniatureConfig(output=output, media="stamps"), *packages)


def test_the_subtitle_is_what_was_understood(recogniser):
    assert subtitle_of(("phonetic/k_p.wav", "digits/7.wav"), recogniser) == "zero seven"


@pytest.mark.parametrize(
    "setting", [{"shared": 0.1}, {"disagree": 0.5}, {"alone": True}, {"evidence": ["title"]}, {"num_test": 5}]
)
def test_settings_of_generated_clips_are_refused(setting, tmp_path):
    (name,) = setting
    with pytest.raises(ValueError, match=f"--{name.replace('_', '-')} is of generated clips"):
        check_settings(MiniatureConfig(output=tmp_path, media="stamps", **setting))


# Scores --------------------------------------------------------------------------------------------------------------


def test_every_score_ranks_both_sets_in_both_directions(halves, recogniser):
    fitted = draw(halves["validation"], 0, complete=False)
    shown = {name: draw(halves["test"], 0, complete=name == "complete") for name in measuring.CLIPS}
    vectors = made_vectors(halves, recogniser, [*fitted, *shown["incomplete"], *shown["complete"]])
    embeddings = {name: compose(clips, vectors) for name, clips in shown.items()}
    ranks, fits = rank_draw(compose(fitted, vectors), embeddings)
    scores = {key[1] for key in ranks}
    assert scores == {*measuring.SCORES, *MODALITIES, measuring.ARITY}
    assert {len(values) for values in ranks.values()} == {len(shown["complete"])}
    assert set(fits["gains"]) == set(measuring.SCORES)


def test_a_constant_for_arity_is_fitted(halves, recogniser):
    """Where clips that lack something never answer, a constant below 0 helps."""
    clips = draw(halves["test"], 0, complete=True)
    embeddings = compose(clips, made_vectors(halves, recogniser, clips))
    assert fit_arity(embeddings, ("scalar", {})) == 0.0


# What is published ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def results():
    return ComposedResults(RESULTS)


def test_the_shipped_tables_are_computed_from_the_shipped_ranks(results):
    shipped = (RESULTS / "README.md").read_text(encoding="utf-8")
    assert shipped == report(results), (
        "run `python -m evidence composed --report-only --output evidence/composed/results --page docs/...`"
    )


def test_the_page_is_its_template_filled_with_the_results(results):
    template = (ROOT / "evidence" / "composed" / "page.md").read_text(encoding="utf-8")
    assert (ROOT / "docs" / "composed_clips.md").read_text(encoding="utf-8") == fill(template, results)


def test_the_shipped_results_are_small():
    assert sum(path.stat().st_size for path in RESULTS.iterdir()) < 3e5


def test_the_mean_reciprocal_rank_is_that_of_the_ranks(results):
    """Recomputed in plain Python."""
    import pyarrow.parquet as pq

    for row in pq.read_table(RESULTS / "ranks.parquet").to_pylist():
        expected = 100 * sum(1 / rank for rank in row["ranks"] if rank <= 10) / len(row["ranks"])
        chosen = {name: row[name] for name in ("score", "numbers", "clips", "direction")}
        assert results.mean(**chosen) == pytest.approx(expected)


def test_kinds_share_out_all_captions(results):
    kinds = [results.mean("scalar", kind=kind) for kind in KINDS]
    assert sum(kinds) / 2 == pytest.approx(results.mean("scalar"))


def test_the_findings_are_those_that_were_named(results):
    named = yaml.safe_load((ROOT / "evidence" / "composed" / "claims.yaml").read_text(encoding="utf-8"))["findings"]
    assert [claim["name"] for claim in read_claims()] == [claim["name"] for claim in named]
    assert {claim["expected"] for claim in named} <= {"+", "0", "-"}
    assert all(np.isfinite(results.finding(claim)["difference"]) for claim in named)
