import hashlib
from pathlib import Path

import pytest
import torch
from datasets import load_from_disk

from scalar_retrieval.eval.embedding.embeddings import Embeddings
from scalar_retrieval.gallery.gallery import GalleryWriter
from scalar_retrieval.gallery.store.columns import clip_table, query_table
from scalar_retrieval.modeling_scalar import MODALITIES
from tests.eval.slow import make_embeddings

DIM = 8


def parts(**changes):
    content = dict(
        text_embeds=torch.eye(2, DIM),
        modality_embeds=torch.eye(6, DIM).view(2, 3, DIM),
        modality_mask=torch.tensor([[True, False, True], [True, True, True]]),
        pairs=torch.tensor([[0, 1], [1, 0]]),
        clip_ids=["ä", "b"],
        query_ids=["q", "r"],
        captions=["one", "zwei"],
        modalities=MODALITIES,
    )
    return content | changes


def random_embeddings(num_clips=2500, captions_each=2):
    """More rows than Arrow puts into one batch of a file; some queries describe a second clip."""
    embeddings = make_embeddings(
        num_clips,
        captions_each,
        dim=DIM,
        problems=["ä: nichts zu hören"],
        metadata={"model": "tiny", "score_options": {"query_temperature": "inf"}},
    )
    embeddings.clip_ids = [f"{name} é" for name in embeddings.clip_ids]
    embeddings.captions = [f"caption, «{name}»" for name in embeddings.captions]
    seconds = torch.stack([torch.arange(0, num_clips, 3), torch.arange(0, num_clips, 3).flip(0)], dim=1)
    embeddings.pairs = torch.cat([embeddings.pairs, seconds]).unique(dim=0)
    return embeddings


def assert_same(first, second):
    for name, one in vars(first).items():
        if isinstance(one, torch.Tensor):
            torch.testing.assert_close(one, getattr(second, name), rtol=0, atol=0, msg=name)
        else:
            assert one == getattr(second, name), name


# The data class


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"text_embeds": torch.ones(0, DIM), "query_ids": [], "captions": [], "pairs": torch.zeros(0, 2).long()},
            "Expected at least one query and one clip, got 0 queries and 2 clips",
        ),
        ({"modality_mask": torch.zeros(2, 3, dtype=torch.bool)}, r"none: \['ä', 'b'\]"),
        ({"pairs": torch.tensor([[0, 0], [1, 2]])}, r"`pairs` must name rows .* got \[\[1, 2\]\]"),
        ({"pairs": torch.tensor([[0, 0], [0, 1]])}, r"describe none: \['r'\]"),
    ],
)
def test_embeddings_that_do_not_fit_together_are_refused(changes, message):
    Embeddings(**parts())
    with pytest.raises(ValueError, match=message):
        Embeddings(**parts(**changes))


def test_what_is_not_finite_is_named_where_it_counts():
    embeddings = Embeddings(**parts())
    embeddings.modality_embeds[0, 1] = torch.nan  # absent
    embeddings.check_finite()
    embeddings.modality_embeds[1, 1, 0] = torch.inf
    embeddings.text_embeds[0, 3] = torch.nan
    with pytest.raises(ValueError, match=r"captions \['q'\] and the clips \['b'\]"):
        embeddings.check_finite()
    heads = torch.zeros(2, 3, DIM).index_fill(0, torch.tensor([0]), torch.nan)
    with pytest.raises(ValueError, match=r"captions \[\] and the clips \['ä'\]"):
        Embeddings(**parts(concat_embeds=heads)).check_finite()


def test_manifest_is_the_digest_of_identifiers_and_presence_in_order():
    manifest = Embeddings(**parts()).manifest()
    assert manifest == {
        "num_clips": 2,
        "ids": ["ä", "b"],
        "presence": [[1, 0, 1], [1, 1, 1]],
        "sha256": hashlib.sha256(rb'[["\u00e4",[1,0,1]],["b",[1,1,1]]]').hexdigest(),
    }


# The store


def test_saved_embeddings_load_equal_and_open_in_datasets_alone(tmp_path):
    embeddings = random_embeddings()
    embeddings.save(tmp_path / "new" / "store")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["store"]
    assert_same(Embeddings.load(tmp_path / "new" / "store"), embeddings)
    clips, queries = (load_from_disk(tmp_path / "new" / "store" / name) for name in ("clips", "queries"))
    columns, texts = clips.with_format("torch")[:], queries.with_format("torch")[:]
    vectors = torch.stack([columns[name] for name in MODALITIES], dim=1)
    assert torch.equal(vectors, embeddings.modality_embeds) and torch.equal(texts["embedding"], embeddings.text_embeds)
    assert torch.equal(columns["presence"], embeddings.modality_mask)
    row = {clip_id: number for number, clip_id in enumerate(clips["clip_id"])}
    pairs = [[query, row[i]] for query, ids in enumerate(queries["clip_ids"]) for i in ids]
    assert pairs == embeddings.pairs.tolist() and max(map(len, queries["clip_ids"])) > 1


def test_absent_rows_are_zero_in_the_store_whatever_they_held(tmp_path):
    embeddings = Embeddings(**parts())
    embeddings.modality_embeds[0, 1] = torch.nan
    embeddings.save(tmp_path)
    assert Embeddings.load(tmp_path).modality_embeds[0, 1].tolist() == [0] * DIM


@pytest.mark.parametrize("value", [float("inf"), Path("y")])
def test_metadata_that_is_not_json_is_refused_and_writes_nothing(tmp_path, value):
    with pytest.raises(ValueError, match="must be JSON, without NaN and infinity"):
        Embeddings(**parts(metadata={"x": value})).save(tmp_path / "store")
    assert not list(tmp_path.iterdir())


# Written by others


ALL = torch.ones(2, 3, dtype=torch.bool)
UNIT = torch.eye(2, DIM)[:, None].repeat(1, 3, 1)


def by_hand(folder, vectors=UNIT, mask=ALL, names=("a", "b"), texts=UNIT[:, 0], clip_ids=(("b", "a"), ("b",))):
    """A gallery of two clips and two captions, without metadata, which nobody checked."""
    with GalleryWriter(folder, "float32") as writer:
        writer.append("clips", clip_table(names, vectors, mask, MODALITIES))
        writer.put_queries(query_table(["x", "y"], ["one", "two"], texts, clip_ids))
        writer.commit()
    return folder


def test_a_gallery_without_metadata_loads(tmp_path):
    embeddings = Embeddings.load(by_hand(tmp_path))
    assert torch.equal(embeddings.modality_embeds, UNIT) and torch.equal(embeddings.modality_mask, ALL)
    assert embeddings.pairs.tolist() == [[0, 1], [0, 0], [1, 1]]
    assert embeddings.metadata == {} and embeddings.problems == []


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"names": ["b", "b"], "clip_ids": [["b"], ["b"]]}, r"`clip_ids` must be unique, repeated: \['b'\]"),
        ({"clip_ids": [["b"], ["c", "a"]]}, r"clips that are not in the gallery: \['c'\]"),
        ({"vectors": 2 * UNIT}, r"unit norm; .* captions \[\] and the clips \['a', 'b'\]. Norm"),
        (
            {"texts": torch.stack([torch.full((DIM,), 0.5), UNIT[0, 0]])},
            r"unit norm; .* captions \['x'\] and the clips \[\]",
        ),
        ({"vectors": torch.stack([UNIT[0] * 0, UNIT[1]])}, r"the clips \['a'\].*must be marked absent"),
    ],
)
def test_store_that_makes_no_sense_is_refused(tmp_path, wrong, message):
    with pytest.raises(ValueError, match=message):
        Embeddings.load(by_hand(tmp_path, **wrong))
