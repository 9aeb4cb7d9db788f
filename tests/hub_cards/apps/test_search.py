"""The app: what a query finds, what masks hide, what the page says. Without gradio, and once in a browser."""

import json
import math
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import numpy as np
import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from PIL import Image

from gallery.gallery import Gallery, GalleryWriter, MediaFile
from hub_cards.adapter import stage_adapter
from hub_cards.apps import SEARCH
from hub_cards.card import Details
from hub_cards.gallery import gallery_card, stage_gallery
from hub_cards.gallery_reading import read_gallery
from hub_cards.space import stage_space
from modeling_scalar import ScalarModel
from modeling_scalar.scores_scalar import retrieval_scores

sys.path.insert(0, str(SEARCH))  # its files import each other as they lie in a Space
import rendering  # noqa: E402
import searching  # noqa: E402
from searching import MODALITIES, QueryError, Searcher, Settings  # noqa: E402

CHROMIUM = Path("/usr/bin/chromium")
CAPTIONS = ["a red circle", "the dog barks", "low music", "hello weather", "a blue square", "high tone and cat meows"]
PRESENCE = [[1, 1, 1], [1, 1, 0], [1, 0, 1], [0, 1, 1], [1, 0, 0], [1, 1, 1]]
CARD = "---\nconfigs:\n" + "".join(
    f"- config_name: {name}\n  data_files:\n  - split: test\n    path: {name}/test-*.parquet\n"
    for name in ("clips", "queries")
)


def write_gallery(folder: Path, model, processor, clips=None, queries=True, **description) -> Path:
    """A gallery of six clips as it is published: random vectors, and captions as the model embeds them."""
    ids = [f"clip{number}" for number in range(len(CAPTIONS))]
    generator = torch.Generator().manual_seed(0)
    vectors = torch.nn.functional.normalize(torch.randn(len(ids), 3, 16, generator=generator), dim=-1)
    vectors = (vectors * torch.tensor(PRESENCE)[..., None]).numpy()
    columns = {"clip_id": ids, "presence": np.array(PRESENCE, dtype=bool)}
    columns |= {name: vectors[:, index] for index, name in enumerate(MODALITIES)} | (clips or {})
    Dataset.from_dict(columns).to_parquet(folder / "clips" / "test-00000-of-00001.parquet")
    card = CARD
    if queries:
        inputs = processor(text=CAPTIONS)
        with torch.no_grad():
            embeds = model.get_text_features(inputs["input_ids"], inputs["attention_mask"]).pooler_output.numpy()
        rows = {
            "query_id": [f"query{number}" for number in range(len(ids))],
            "caption": CAPTIONS,
            "embedding": embeds,
            "clip_ids": [[name] for name in ids],
        }
        Dataset.from_dict(rows).to_parquet(folder / "queries" / "test-00000-of-00001.parquet")
    else:
        card = CARD[: CARD.index("- config_name: queries")]
    (folder / "README.md").write_text(card + "---\n")
    content = {"model": "user/tiny", "model_revision": None, "query_temperature": 0.2} | description
    (folder / "embeddings.json").write_text(json.dumps(content))
    return folder


@pytest.fixture(scope="module")
def gallery(tmp_path_factory, tiny_model_dir, tiny_processor):
    model = ScalarModel.from_pretrained(tiny_model_dir)  # equal to `tiny_model`: both are drawn with the same seed
    folder = write_gallery(tmp_path_factory.mktemp("gallery"), model, tiny_processor)
    return searching.load_gallery(str(folder))


@pytest.fixture
def searcher(gallery, tiny_model, tiny_processor):
    return Searcher(gallery, tiny_model, tiny_processor)


# Masks


def test_masks_are_nested_and_the_same_each_time(searcher, gallery, tiny_model, tiny_processor):
    masks = [searcher.mask([share, share, share]) for share in (0, 0.2, 0.4, 0.6, 0.8, 1)]
    assert torch.equal(masks[0], gallery.modality_mask) and not masks[-1].any()
    for less, more in zip(masks, masks[1:], strict=False):
        assert not (more & ~less).any()
    assert len({int(mask.sum()) for mask in masks}) > 3  # the shares between do hide something
    again = Searcher(gallery, tiny_model, tiny_processor)
    assert torch.equal(masks[2], again.mask([0.4, 0.4, 0.4]))


def test_a_mask_hides_its_own_modality_alone(searcher, gallery):
    left = searcher.mask([0, 1, 0])
    assert torch.equal(left[:, [0, 2]], gallery.modality_mask[:, [0, 2]]) and not left[:, 1].any()


def test_the_share_of_clips_that_lose_a_modality_is_the_one_asked_for():
    for modality in MODALITIES:
        draws = np.array([searching.draw(f"clip{number}", modality) for number in range(5000)])
        assert 0 <= draws.min() and draws.max() < 1
        # The standard deviation of the share is 0.007.
        assert abs((draws < 0.3).mean() - 0.3) < 0.03
    pictures = [searching.draw(f"clip{number}", "video") < 0.5 for number in range(5000)]
    sounds = [searching.draw(f"clip{number}", "audio") < 0.5 for number in range(5000)]
    assert abs(np.mean(np.logical_and(pictures, sounds)) - 0.25) < 0.03


# Search


@pytest.mark.parametrize("shares", [(0, 0, 0), (0.5, 0.5, 0.5)])
@pytest.mark.parametrize("temperature", [0.01, 0.2, math.inf])
def test_scores_and_weights_are_those_of_the_model(searcher, gallery, tiny_model, shares, temperature):
    mask = searcher.mask(shares)
    rows = mask.any(dim=1).nonzero().flatten()
    result = searcher.search("the dog barks", temperature, shares, k=6)
    assert [hit.rank for hit in result.hits] == list(range(1, len(rows) + 1)) and len(rows) > 2
    with torch.no_grad():
        text = searcher.embed("the dog barks")
        arguments = (text, gallery.modality_embeds[rows], mask[rows], temperature)
        scores, weights = tiny_model.compute_scores(*arguments)[0], tiny_model.compute_weights(*arguments)[0]
    order = scores.argsort(descending=True)
    assert [hit.clip_id for hit in result.hits] == [gallery.clip_ids[row] for row in rows[order]]
    torch.testing.assert_close(torch.tensor([hit.score for hit in result.hits]), scores[order])
    torch.testing.assert_close(torch.tensor([hit.weights for hit in result.hits]), weights[order])
    for hit in result.hits:
        assert sum(hit.weights) == pytest.approx(1)
        assert all((weight > 0) <= (state == "present") for weight, state in zip(hit.weights, hit.states, strict=True))


def test_a_small_temperature_leaves_one_modality_and_an_infinite_one_weighs_equally(searcher):
    sharp = searcher.search("low music", 0.001, k=6).hits
    assert all(max(hit.weights) > 0.99 for hit in sharp)
    for hit in searcher.search("low music", math.inf, k=6).hits:
        count = hit.states.count("present")
        assert [weight for weight in hit.weights if weight] == pytest.approx([1 / count] * count)


def test_a_hit_tells_masked_from_absent(searcher):
    hits = {hit.clip_id: hit for hit in searcher.search("low music", 0.2, (1, 0, 0), k=6).hits}
    assert hits["clip1"].states == ("masked", "present", "absent")
    assert "clip4" not in hits  # it has nothing but its picture


def test_the_rank_of_the_clip_that_a_caption_describes(searcher):
    result = searcher.search("  THE dog   barks", 0.2, k=6)
    (place,) = result.described
    (described,) = [hit for hit in result.hits if hit.is_described]
    assert place == ("clip1", described.rank) and described.captions == ["the dog barks"]
    below = searcher.search("the dog barks", 0.2, k=1)
    assert len(below.hits) == 1
    assert below.described == [place]  # the rank is that among all clips, not among the hits
    assert searcher.search("a blue square", 0.2, (1, 0, 0), k=6).described == [("clip4", None)]
    assert searcher.search("a dog", 0.2).described == []


def test_counts_say_what_masks_did(searcher):
    result = searcher.search("low music", 0.2, (1, 0, 0))
    assert (result.num_clips, result.num_searched) == (6, 5)
    assert (result.masked, result.available) == ((5, 0, 0), (5, 4, 4))


def test_with_everything_masked_there_is_no_hit_and_no_error(searcher):
    result = searcher.search("low music", 0.2, (1, 1, 1))
    assert result.hits == [] and result.num_searched == 0
    page = rendering.render_result(result, {})
    assert "0 of 6 clips searched" in page and "Mask less" in page and "<li" not in page


@pytest.mark.parametrize("query", ["", " \n\t ", "dog " * 1000])
def test_a_query_that_cannot_be_searched_for_is_refused_in_plain_words(searcher, query):
    with pytest.raises(QueryError, match="Type what|at most 2,000"):
        searcher.search(query, 0.2)


@pytest.mark.parametrize("changes", [{"k": 0}, {"query_temperature": 0}, {"shares": (0, 1.5, 0)}])
def test_numbers_out_of_range_are_refused(searcher, changes):
    with pytest.raises(QueryError, match="needed"):
        searcher.search(**({"query": "dog", "query_temperature": 0.2} | changes))


def test_notes_say_what_became_of_the_query(searcher):
    assert searcher.search("the dog barks", 0.2, k=6).notes == []
    (note,) = searcher.search("the dog barks", 0.2, k=7).notes
    assert note == "7 hits were asked for, but only 6 can be found."
    (note,) = searcher.search("dog " * 100, 0.2, k=6).notes
    assert "102 tokens" in note and "first 40" in note
    (note,) = searcher.search("the dog xylophone", 0.2, k=6).notes
    assert note.startswith("1 of the words")


def test_a_query_runs_through_the_text_tower_once(searcher, tiny_model, monkeypatch):
    calls = []
    original = tiny_model.get_text_features
    monkeypatch.setattr(tiny_model, "get_text_features", lambda *inputs: calls.append(1) or original(*inputs))
    for share in (0, 0.5, 0.9):
        searcher.search("low tone", 0.2, (share, 0, 0))
    assert len(calls) == 1


@pytest.mark.parametrize("default", [0.2, 0.07, 0.1, 3.0, 1e-5, math.inf])
def test_the_stops_of_the_slider_hold_the_default(default):
    stops = searching.temperatures(default)
    assert default in stops and stops == sorted(set(stops)) and stops[-1] == math.inf
    assert 0.001 in stops and 100 in stops
    labels = [searching.format_temperature(stop) for stop in stops]
    assert len(set(labels)) == len(labels) and labels[-1] == "∞"


# The page


def make_hit(**changes) -> searching.Hit:
    fields = {
        "rank": 1,
        "clip_id": "clip0",
        "score": 0.5,
        "weights": (0.75, 0.25, 0.0),
        "states": ("present", "present", "absent"),
        "captions": [],
        "file": None,
        "is_described": False,
    }
    return searching.Hit(**fields | changes)


def make_result(*hits, **changes) -> searching.Result:
    fields = {
        "num_clips": 9,
        "num_searched": 9,
        "masked": (0, 0, 0),
        "available": (9, 9, 9),
        "described": [],
        "notes": [],
    }
    return searching.Result(list(hits), **fields | changes)


def test_everything_from_data_is_escaped():
    evil = "<img src=x onerror=alert(1)>\"'&"
    hit = make_hit(clip_id=evil, captions=[evil] * 3, file="media/a.mp4", is_described=True)
    result = make_result(hit, described=[(evil, 1), (evil, None)], notes=[evil])
    page = rendering.render_result(result, {"media/a.mp4": f"/tmp/{evil}.mp4"})
    page += rendering.message(evil) + rendering.header(9, evil, evil, evil, None)
    assert "<img" not in page and page.count("&lt;img") == 12 and "'&" not in page


def test_a_bar_is_divided_as_the_weights_are():
    page = rendering.render_result(make_result(make_hit()), {})
    assert 'class="video" style="width:75.00%"' in page and 'class="audio" style="width:25.00%"' in page
    assert 'class="subtitle" style' not in page
    assert "video <b>0.75</b>" in page and "audio <b>0.25</b>" in page and "subtitle absent" in page
    page = rendering.render_result(
        make_result(make_hit(states=("masked", "present", "absent"), weights=(0, 1, 0))), {}
    )
    assert "video masked" in page and "subtitle absent" in page and 'class="video"' not in page


@pytest.mark.parametrize(
    ("file", "tag"), [("media/a.mp4", "<video "), ("media/a b/ü.png", "<img "), ("media/a.flac", "<audio ")]
)
def test_published_media_get_a_player(file, tag):
    assert rendering.is_playable(file)
    page = rendering.render_result(make_result(make_hit(file=file)), {file: f"/data/{file}"})
    assert tag in page and "gradio_api/file=/data/media/a" in page and " b/ü" not in page
    assert tag not in rendering.render_result(make_result(make_hit(file=file)), {})


@pytest.mark.parametrize("file", ["media/a.html", "media/a.svg", "media/a.js", "media/a"])
def test_what_could_run_in_a_browser_is_not_given_to_it(file):
    assert not rendering.is_playable(file)


def test_the_summary_counts_what_cannot_be_found():
    page = rendering.render_result(
        make_result(num_searched=7, masked=(4, 0, 1), described=[("x", 3), ("y", None)]), {}
    )
    assert "7 of 9 clips searched. Masked: video in 4 of 9, subtitle in 1 of 9" in page
    assert "2 clips cannot be found" in page
    assert "is at rank <b>3</b>" in page and "cannot be found: nothing of it is left" in page


def test_the_clips_that_a_label_describes_come_best_first_and_the_others_are_folded_away():
    places = [("third", None), ("second", 7), ("first", 2), ("fourth", None)]
    page = rendering.render_result(make_result(described=places), {})
    order = [page.index(f">{name}</bdi>") for name in ("first", "second", "third", "fourth")]
    assert order == sorted(order) and order[1] < page.index("<summary>2 more clips</summary>") < order[2]


def test_one_clip_is_counted_as_one():
    assert "1 of 1 clip searched" in rendering.render_result(make_result(num_clips=1, num_searched=1), {})
    assert "<p>1 clip of user/gallery" in rendering.header(1, "user/gallery", None, "user/model", None)


def test_more_than_two_captions_are_folded_away():
    page = rendering.render_result(make_result(make_hit(captions=["one", "two", "three", "four"])), {})
    assert page.index("two") < page.index("<summary>2 more captions") < page.index("three")


# What is loaded


def test_a_gallery_of_ones_own_has_no_captions(tmp_path, tiny_model, tiny_processor):
    folder = write_gallery(tmp_path / "own", tiny_model, tiny_processor, queries=False, query_temperature=None)
    gallery = searching.load_gallery(str(folder))
    assert gallery.examples() == [] and gallery.probe is None and gallery.files == [None] * 6
    searcher = Searcher(gallery, tiny_model, tiny_processor)
    assert searcher.query_temperature == tiny_model.config.query_temperature
    assert len(searcher.search("low music", 0.2).hits) == 6


def test_examples_are_captions_that_find_their_clip(gallery, searcher):
    assert len(gallery.examples(3)) == len(set(gallery.examples(3))) == 3
    assert all(searcher.search(text, 0.2).described for text in gallery.examples())


@pytest.mark.parametrize(
    ("clips", "expected"),
    [
        ({"file": ["media/../../secret.mp4"] * 6}, "media/"),
        ({"file": ["/etc/passwd"] * 6}, "media/"),
        ({"presence": np.zeros((6, 3), dtype=bool)}, "these have none"),
        ({"video": np.ones((6, 16), dtype=np.float32)}, "unit vectors"),
    ],
)
def test_a_gallery_that_is_not_as_it_should_be_is_refused(tmp_path, tiny_model, tiny_processor, clips, expected):
    folder = write_gallery(tmp_path / "bad", tiny_model, tiny_processor, clips=clips)
    with pytest.raises(ValueError, match=expected):
        searching.load_gallery(str(folder))


def test_captions_of_clips_that_are_not_there_and_missing_columns_are_refused(tmp_path, tiny_model, tiny_processor):
    folder = write_gallery(tmp_path / "gallery", tiny_model, tiny_processor)
    path = folder / "clips" / "test-00000-of-00001.parquet"
    clips = Dataset.from_parquet(str(path), keep_in_memory=True, cache_dir=str(tmp_path))
    clips.select(range(5)).to_parquet(path)
    with pytest.raises(ValueError, match=r"'high tone and cat meows' describes .* \['clip5'\]"):
        searching.load_gallery(str(folder))
    clips.remove_columns("audio").to_parquet(path)
    with pytest.raises(ValueError, match=r"lacks the columns \['audio'\]"):
        searching.load_gallery(str(folder))


def test_a_gallery_without_its_description_is_refused(tmp_path, tiny_model, tiny_processor):
    folder = write_gallery(tmp_path / "gallery", tiny_model, tiny_processor)
    (folder / "embeddings.json").unlink()
    with pytest.raises(FileNotFoundError, match="embeddings.json"):
        searching.load_gallery(str(folder))


def test_a_gallery_is_not_taken_for_another_folder_of_its_name(tmp_path, gallery, tiny_model, tiny_processor):
    turned = {"video": -gallery.modality_embeds[:, 0].numpy()}
    for number, clips in enumerate(({}, turned)):
        folder = write_gallery(tmp_path / str(number) / "gallery", tiny_model, tiny_processor, clips=clips)
        loaded = searching.load_gallery(str(folder))
    assert torch.equal(loaded.modality_embeds[:, 0], -gallery.modality_embeds[:, 0])


@pytest.mark.parametrize("content", ["{}", '{"model": 1, "gallery": "x"}', "[]", "{"])
def test_settings_that_say_too_little_are_refused(tmp_path, content):
    (tmp_path / "space.json").write_text(content)
    with pytest.raises(ValueError, match="space.json"):
        Settings.read(tmp_path / "space.json")


def test_a_gallery_of_another_model_is_refused(gallery, tmp_path, tiny_model, tiny_processor):
    settings = Settings(model="user/other", gallery=str(gallery.folder))
    with pytest.raises(ValueError, match="made with the model user/tiny, but this Space is set to user/other"):
        searching.load(settings)
    folder = write_gallery(tmp_path / "fixed", tiny_model, tiny_processor, model_revision="a" * 40)
    settings = Settings(model="user/tiny", gallery=str(folder), model_revision="b" * 40)
    with pytest.raises(ValueError, match="revision a{40} .* revision b{40}"):
        searching.load(settings)


def test_a_gallery_that_the_model_did_not_make_is_refused(gallery, tiny_model, tiny_processor):
    torch.nn.init.normal_(tiny_model.text_projection.weight)
    with pytest.raises(ValueError, match="does not give the embeddings"):
        Searcher(gallery, tiny_model, tiny_processor)
    tiny_model.config.projection_dim = 8
    with pytest.raises(ValueError, match="16 numbers, but the model gives 8"):
        Searcher(gallery, tiny_model, tiny_processor)
    tiny_model.config.aggregation = "gram"
    with pytest.raises(ValueError, match="'gram', which has none"):
        Searcher(gallery, tiny_model, tiny_processor)


def test_an_adapter_is_merged_and_keeps_its_own_configuration(tmp_path, tiny_model_dir, tiny_processor):
    base = ScalarModel.from_pretrained(tiny_model_dir)
    lora = LoraConfig(target_modules=r"text_model\..*\.(query|value)", task_type="FEATURE_EXTRACTION")
    adapted = get_peft_model(base, lora).eval()
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    adapted.save_pretrained(tmp_path / "adapter")
    base.config.query_temperature = 0.37
    base.config.save_pretrained(tmp_path / "adapter")
    tiny_processor.save_pretrained(tmp_path / "adapter")
    (tmp_path / "published").mkdir()
    stage_adapter(tmp_path / "adapter", tmp_path / "published", str(tiny_model_dir), None)
    model, processor = searching.load_model(str(tmp_path / "published"))
    assert model.config.query_temperature == 0.37 and not model.training
    assert not any("lora" in name for name in model.state_dict())
    inputs = processor(text=CAPTIONS)
    with torch.no_grad():
        found = model.get_text_features(**inputs).pooler_output
        expected = adapted.get_text_features(**inputs).pooler_output
        plain = ScalarModel.from_pretrained(tiny_model_dir).get_text_features(**inputs).pooler_output
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)  # merged weights are rounded once more
    assert (found - plain).abs().max() > 0.01


@pytest.mark.parametrize("of_model", [{}, {"modality_scale": [3.0, 1.0, 1.0]}])
@pytest.mark.parametrize(
    "of_gallery", [{}, {"modality_scale": [0.5, 2.0, 1.25], "modality_offset": [0.3, -0.1, 0.05]}]
)
def test_a_published_gallery_is_ranked_as_here_with_its_own_calibration(
    gallery, tmp_path, tiny_model, tiny_processor, of_model, of_gallery
):
    for name, values in of_model.items():
        setattr(tiny_model.config, name, values)
    files = [tmp_path / "videos" / f"clip{number}.mp4" for number in range(3)]
    with GalleryWriter(tmp_path / "gallery", "float32") as writer:
        writer.metadata = {"query_temperature": 0.2, "score_options": {"method": "scalar"} | of_gallery}
        names = [f"{files[0]}#t=0,30", f"{files[0]}#t=30", *map(str, files[1:]), "a clip without a file", "clip5"]
        writer.put_clips(names, gallery.modality_embeds, gallery.modality_mask)
        writer.put_files([MediaFile(str(file), 1, 1, "") for file in files])
        writer.commit()
    rows = read_gallery(tmp_path / "gallery", True, True)
    stage_gallery(tmp_path / "gallery", tmp_path / "staged", "unknown")
    (tmp_path / "staged" / "README.md").write_text(gallery_card(tmp_path / "staged", "user/gallery", Details()))
    published = searching.load_gallery(str(tmp_path / "staged"))
    searcher = Searcher(published, tiny_model, tiny_processor)
    assert searcher.is_calibrated == bool(of_gallery)
    assert ("may leave the range" in rendering.header(1, "g", None, "m", None, searcher.is_calibrated)) == bool(
        of_gallery
    )
    found = searcher.search("the dog barks", searcher.query_temperature).hits
    own = Gallery.open(tmp_path / "gallery")
    shown = dict(zip(own.clip_ids, rows.clip_ids, strict=True))
    here = own.search(searcher.embed("the dog barks").clone(), k=10)[0]
    assert [hit.clip_id for hit in found] == [shown[hit.clip_id] for hit in here]
    for ours, theirs in zip(found, here, strict=True):
        assert ours.score == pytest.approx(theirs.score, abs=1e-6)
        assert ours.weights == pytest.approx(list(theirs.weights.values()), abs=1e-6)


@pytest.mark.parametrize("values", [[1, 2], [1, "2", 3], "123", {"video": 1}])
def test_a_calibration_that_is_not_three_numbers_is_refused(tmp_path, tiny_model, tiny_processor, values):
    options = {"modality_scale": values}
    folder = write_gallery(tmp_path / "bad", tiny_model, tiny_processor, queries=False, score_options=options)
    with pytest.raises(ValueError, match="`modality_scale` must be 3 numbers"):
        searching.load_gallery(str(folder))


def test_a_window_is_played_from_its_first_second_to_its_last(tmp_path, tiny_model, tiny_processor):
    ids = ["a/talk.mp4#t=0,30", "a/talk.mp4#t=30", "b.mp4", "odd#t=1.mp4", "c.wav#t=2.5,4", "clip5"]
    files = ["media/a/talk.mp4", "media/a/talk.mp4", "media/b.mp4", "media/odd#t=1.mp4", "media/c.wav", None]
    clips = {"clip_id": ids, "file": files}
    folder = write_gallery(tmp_path / "windows", tiny_model, tiny_processor, clips=clips, queries=False)
    searcher = Searcher(searching.load_gallery(str(folder)), tiny_model, tiny_processor)
    result = searcher.search("low music", 0.2)
    windows = {hit.clip_id: hit.window for hit in result.hits}
    assert windows == dict(zip(ids, ["#t=0,30", "#t=30", "", "", "#t=2.5,4", ""], strict=True))
    page = rendering.render_result(result, {file: f"/data/{file}" for file in files if file})
    for source in ("talk.mp4#t=0,30", "talk.mp4#t=30", "b.mp4#t=0.001", "odd%23t%3D1.mp4#t=0.001", "c.wav#t=2.5,4"):
        assert f'{source}"' in page, source


def test_a_text_with_a_vector_for_each_modality_is_known_again(gallery, tiny_model, tiny_processor, monkeypatch):
    vectors = torch.nn.functional.normalize(torch.randn(1, 3, 16), dim=-1)
    monkeypatch.setattr(tiny_model, "get_text_features", lambda *inputs: SimpleNamespace(pooler_output=vectors))
    several = replace(gallery, probe=("the dog barks", vectors.flatten()))
    found = Searcher(several, tiny_model, tiny_processor).search("the dog barks", 0.2, k=6).hits
    scores = retrieval_scores(vectors, gallery.modality_embeds, gallery.modality_mask, query_temperature=0.2)[0]
    assert [hit.score for hit in found] == pytest.approx(scores.sort(descending=True).values.tolist(), abs=1e-6)
    for wrong in (-vectors.flatten(), vectors[0, 0]):
        with pytest.raises(ValueError, match="does not give the embeddings"):
            Searcher(replace(gallery, probe=("the dog barks", wrong)), tiny_model, tiny_processor)


def test_what_the_hub_does_not_give_is_said_in_plain_words(hub, tmp_path, gallery):
    with pytest.raises(FileNotFoundError, match="no data set user/gallery on the Hub.*HF_TOKEN"):
        searching.load_gallery("user/gallery")
    hub.api().create_repo("user/gallery", repo_type="dataset")
    hub.api().upload_folder(repo_id="user/gallery", repo_type="dataset", folder_path=gallery.folder)
    with pytest.raises(FileNotFoundError, match="no revision cccc"):
        searching.load_gallery("user/gallery", "c" * 40)
    with pytest.raises(ValueError, match="neither a folder nor the id"):
        searching.load_gallery("../gallery/of/mine")
    with hub.offline(), pytest.raises(ConnectionError, match="cannot be reached"):
        searching.load_gallery("user/gallery")
    loaded = searching.load_gallery("user/gallery")
    assert loaded.commit == hub.api().dataset_info("user/gallery").sha
    assert torch.equal(loaded.modality_embeds, gallery.modality_embeds)
    with pytest.raises(FileNotFoundError, match="no model user/tiny"):
        searching.load(Settings("user/tiny", "user/gallery"))


# In a browser


@contextmanager
def running_app(folder: Path, env: dict[str, str]) -> Iterator[str]:
    """The address of the app of a folder, in a process of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = env | {"GRADIO_SERVER_NAME": "127.0.0.1", "GRADIO_SERVER_PORT": str(port)}
    log = folder.with_suffix(".log")
    with log.open("w") as stream:
        process = subprocess.Popen([sys.executable, "app.py"], cwd=folder, env=env, stdout=stream, stderr=stream)
    try:
        for _ in range(600):
            assert process.poll() is None, log.read_text()
            with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5):
                break
            time.sleep(0.2)
        else:
            raise AssertionError(log.read_text())
        yield f"http://127.0.0.1:{port}/"
    finally:
        process.terminate()
        process.wait(30)
    assert "Traceback" not in log.read_text(), log.read_text()


@pytest.fixture
def open_page():
    """Opens an address in a browser; whatever the page asks another host for, and all it complains of, is an error."""
    playwright = pytest.importorskip("playwright.sync_api")
    if not CHROMIUM.is_file():
        pytest.skip(f"no browser at {CHROMIUM}")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        hosts, complaints = [], []

        def open_page(address: str, **options):
            page = browser.new_page(**options)
            page.on("request", lambda request: hosts.append(urlsplit(request.url)))
            page.on("websocket", lambda websocket: hosts.append(urlsplit(websocket.url)))
            page.on("console", lambda line: complaints.append(line.text) if line.type == "error" else None)
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.goto(address)
            return page

        yield open_page
        browser.close()
    assert {host.hostname for host in hosts if host.scheme not in ("data", "blob")} == {"127.0.0.1"}
    assert complaints == []


def shown_hits(page) -> list[str]:
    return page.locator(".hit .name").all_inner_texts()


@pytest.mark.slow
def test_the_app_in_a_browser(hub, open_page, tmp_path, tiny_model_dir, tiny_model, tiny_processor):
    api = hub.api()
    media = {f"clip{number}.png": number for number in range(5)}  # and none of clip5
    lost = "clip4.png"  # named by the gallery, but not there
    folder = tmp_path / "gallery"
    (folder / "media").mkdir(parents=True)
    for name, number in media.items():
        if name != lost:
            Image.new("RGB", (8, 8), (40 * number, 0, 200)).save(folder / "media" / name)
    files = [f"media/{name}" for name in media]
    write_gallery(folder, tiny_model, tiny_processor, clips={"file": [*files, None]})
    for name, kind, source in (("user/tiny", "model", tiny_model_dir), ("user/gallery", "dataset", folder)):
        api.create_repo(name, repo_type=kind)
        api.upload_folder(repo_id=name, repo_type=kind, folder_path=source)
    commits = {
        "model_revision": api.model_info("user/tiny").sha,
        "gallery_revision": api.dataset_info("user/gallery").sha,
    }
    # What comes later must not be taken.
    api.delete_file("embeddings.json", "user/gallery", repo_type="dataset")
    api.delete_file("config.json", "user/tiny")
    stage_space(tmp_path / "space", "user/tiny", "user/gallery", **commits)
    searcher = Searcher(searching.load_gallery(str(folder)), tiny_model, tiny_processor)

    def found(*arguments) -> list[str]:
        return [hit.clip_id for hit in searcher.search(*arguments).hits]

    with running_app(tmp_path / "space", hub.env(tmp_path / "hf_home")) as address:
        page = open_page(address)
        page.locator(".hit").first.wait_for()
        box, summary = page.locator("#query textarea, #query input"), page.locator(".summary")
        assert shown_hits(page) == found(box.input_value(), 0.2)  # an example is there to begin with

        example = page.get_by_role("button", name=CAPTIONS[3])
        example.click()
        page.wait_for_function("document.querySelector('.summary').innerText.includes('clip3, is at rank')")
        assert box.input_value() == CAPTIONS[3] and shown_hits(page) == found(CAPTIONS[3], 0.2)

        box.fill("low music")
        box.press("Enter")
        page.wait_for_function("document.querySelector('.summary').innerText.includes('clip2, is at rank')")
        hits = searcher.search("low music", 0.2).hits
        assert shown_hits(page) == [hit.clip_id for hit in hits] != found("a red circle", 0.2)
        shown = page.locator(".hit").first.locator(".weights li").all_inner_texts()
        weights = [f"{weight:.2f}" for weight in hits[0].weights]
        there = [state == "present" for state in hits[0].states]
        values = [w if here else state for w, here, state in zip(weights, there, hits[0].states, strict=True)]
        assert shown == [f"{name} {value}" for name, value in zip(MODALITIES, values, strict=True)]
        rank = [hit.clip_id for hit in hits].index("clip2") + 1
        assert f"clip2, is at rank {rank}." in summary.inner_text()
        assert page.locator(".hit img").count() == 4
        messages = page.locator(".message").all_inner_texts()
        assert messages == ["The media of 1 of the hits could not be fetched just now."]
        page.wait_for_function("[...document.querySelectorAll('.hit img')].every(image => image.naturalWidth == 8)")

        page.locator("#temperature input[type=range]").fill("0")
        page.wait_for_function("document.querySelector('.stop b').innerText == '0.001'")
        page.wait_for_function("document.querySelector('.hit .weights').innerText.includes('1.00')")
        assert shown_hits(page) == found("low music", 0.001)
        assert page.locator("#temperature input[type=range]").get_attribute("aria-valuetext") == "0.001"

        page.locator("#mask-video input[type=range]").fill("100")
        page.get_by_text("Masked: video in 5 of 5").wait_for()
        assert shown_hits(page) == found("low music", 0.001, (1, 0, 0))
        assert "1 clip cannot be found" in summary.inner_text()
        for name in ("audio", "subtitle"):
            page.locator(f"#mask-{name} input[type=range]").fill("100")
        page.get_by_text("0 of 6 clips searched").wait_for()
        assert shown_hits(page) == []

        page.locator("#mask-audio input[type=range]").fill("50")
        page.get_by_text("6 hits were asked for, but only").wait_for()

        box.fill("  ")
        box.press("Enter")
        page.locator(".message").get_by_text("Type what you are looking for.").wait_for()

        narrow = open_page(address, viewport={"width": 360, "height": 800}, color_scheme="dark")
        narrow.locator(".hit").first.wait_for()
        assert narrow.evaluate("document.documentElement.scrollWidth") == 360


@pytest.mark.slow
def test_what_is_missing_is_said_on_the_page(hub, open_page, tmp_path):
    stage_space(tmp_path / "space", "user/tiny", "user/nothing")
    with running_app(tmp_path / "space", hub.env(tmp_path / "hf_home")) as address:
        page = open_page(address)
        page.get_by_text("There is no data set user/nothing on the Hub.").wait_for()
        assert page.locator("#query").count() == 0


@pytest.mark.slow
def test_a_gallery_of_one_clip_has_nothing_to_complain_of(
    hub, open_page, tmp_path, tiny_model_dir, tiny_model, tiny_processor
):
    folder = write_gallery(tmp_path / "gallery", tiny_model, tiny_processor, queries=False)
    path = folder / "clips" / "test-00000-of-00001.parquet"
    Dataset.from_parquet(str(path), keep_in_memory=True, cache_dir=str(tmp_path)).select([0]).to_parquet(path)
    stage_space(tmp_path / "space", "user/tiny", "user/gallery")
    settings = {"model": str(tiny_model_dir), "gallery": str(folder)}
    (tmp_path / "space" / "space.json").write_text(json.dumps(settings))
    with running_app(tmp_path / "space", hub.env(tmp_path / "hf_home")) as address:
        page = open_page(address)
        box = page.locator("#query textarea, #query input")
        box.fill("low music")
        box.press("Enter")
        page.get_by_text("1 of 1 clip searched.").wait_for()
        assert shown_hits(page) == ["clip0"] and page.locator(".message").count() == 0
