"""Vectors that `datasets` alone wrote: read, copied, never changed."""

import pytest
import torch
from datasets import Dataset

from gallery.gallery import Gallery, GalleryWriter
from modeling_scalar.configuration_scalar import MODALITIES
from tests.gallery.conftest import make_clips, make_queries


def test_data_sets_of_clips_and_queries_are_read_and_copied(tmp_path):
    names, embeds, mask = make_clips(5)
    filled = torch.where(mask[..., None], embeds, 7.0)  # whatever absent rows hold
    columns = {name: filled[:, index].tolist() for index, name in enumerate(MODALITIES)}
    Dataset.from_dict({"clip_id": names} | columns | {"presence": mask.tolist()}).save_to_disk(tmp_path / "clips")
    captions = {"query_id": ["q"], "caption": ["a dog"], "embedding": make_queries(1).tolist()}
    Dataset.from_dict(captions | {"clip_ids": [names[:2]]}).save_to_disk(tmp_path / "queries")
    before = sorted(path.name for path in tmp_path.rglob("*"))
    theirs = Gallery.open(tmp_path)
    assert theirs.clip_ids == names and theirs.metadata == {} and theirs.facts()["num_pairs"] == 2
    with pytest.raises(ValueError, match=r"can be read but not changed. .* `Gallery.open\(.*\).copy\(NEW\)`"):
        GalleryWriter(tmp_path)
    assert sorted(path.name for path in tmp_path.rglob("*")) == before and theirs.verify() == 0
    copied = theirs.copy(tmp_path / "new", "float32")
    assert torch.equal(copied.modality_embeds(), embeds) and torch.equal(copied.modality_mask, mask)
    with pytest.raises(ValueError, match="already holds a gallery"):
        theirs.copy(tmp_path / "new")
    assert copied.facts()["gallery_sha256"] == theirs.facts()["gallery_sha256"]
    assert copied.queries.column("caption").to_pylist() == ["a dog"]
    for mine, other in zip(copied.search(make_queries(4), 5), theirs.search(make_queries(4), 5), strict=True):
        assert [hit.clip_id for hit in mine] == [hit.clip_id for hit in other]
        assert [hit.score for hit in mine] == pytest.approx([hit.score for hit in other], abs=1e-6)
