"""Clips of a table that are looked for in a gallery: whole files, windows of files, and neither."""

import os

import pytest
import torch
from torch.nn.functional import normalize

from scalar_retrieval.eval.embedding.query_gallery import rows_of
from scalar_retrieval.gallery.gallery import GalleryWriter
from scalar_retrieval.gallery.store.windows import SEGMENT


def gallery_of(folder, ids, **metadata):
    with GalleryWriter(folder) as writer:
        writer.metadata = metadata
        embeds = normalize(torch.ones(len(ids), 3, 4), dim=-1)
        writer.put_clips(ids, embeds, torch.ones(len(ids), 3, dtype=torch.bool))
        writer.commit()
        return writer.gallery()


def clip(name, path=None):
    return {"video_id": name, "video_path": path, "audio_path": None}


def test_a_clip_is_found_by_its_identifier_or_its_file(tmp_path):
    path = os.path.realpath(tmp_path / "a.mp4")
    gallery = gallery_of(tmp_path / "gallery", [path, "b", f"{path}#t=0,30"])
    assert rows_of(gallery, [clip("b"), clip("first", tmp_path / "a.mp4"), clip("b")], "") == [1, 0, 1]
    with pytest.raises(ValueError, match=r"2 of 3 clips are not in the gallery .*: \['c', 'd'\]. Do something."):
        rows_of(gallery, [clip("c"), clip("b"), clip("d", path="d.mp4"), clip("c")], "Do something.")


def test_a_table_of_whole_files_over_windows_names_the_windows(tmp_path):
    long = os.path.realpath(tmp_path / "long.mp4")
    windows = [f"{long}#t=0,30", f"{long}#t=30"]
    gallery = gallery_of(tmp_path / "gallery", windows, **{SEGMENT: 30.0})
    with pytest.raises(ValueError, match="1 of 1 clips are not in .* Index their files. .* with `--segment none`"):
        rows_of(gallery, [clip("talk", long)], "Index their files.")
    # and what is advised works: windows by their names
    assert rows_of(gallery, [clip(name, long) for name in reversed(windows)], "") == [1, 0]
