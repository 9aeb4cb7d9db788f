"""What is known of a gallery's files between runs is what the gallery says after each of them."""

import random
from unittest.mock import PropertyMock, patch

from gallery.gallery import Gallery, GalleryWriter
from search.indexing import Indexer
from search.known import Known
from search.sources import find_files
from search.vanished import is_gone
from tests.search.test_indexing import FakeModel, FakeProcessor, names, of, touch_later

CONTENTS = ("video", "audio", "video audio", "video broken-audio", "broken-video", "nothing", "audio video")


def assert_up_to_date(known, writer):
    """As if it were read anew."""
    fresh = Known(writer.gallery(), writer.modalities)
    assert known.files == fresh.files and known.problems == fresh.problems
    assert {path: sorted(clips) for path, clips in known.clips.items()} == fresh.clips
    assert known._presence == fresh._presence
    assert [known.lacks(path, "subtitle", "audio") for path in known.files] == [
        fresh.lacks(path, "subtitle", "audio") for path in known.files
    ]


def test_what_is_known_stays_what_the_gallery_says_whatever_happens_to_files(tmp_path):
    dice, folder = random.Random(0), tmp_path / "clips"
    folder.mkdir()
    with GalleryWriter(tmp_path / "gallery", "float32") as writer:
        writer.metadata = {"model": "model", "fingerprint": "fingerprint"}
        indexer = Indexer(writer, FakeModel(), FakeProcessor(), batch_size=3)
        counts = dict.fromkeys(("new", "changed", "unreadable", "gone", "removed"), 0)
        for _ in range(14):
            for number in dice.sample(range(12), 4):
                path = folder / f"{number:02d}.mp4"
                if path.exists() and dice.random() < 0.4:
                    path.unlink()
                elif path.exists() and dice.random() < 0.3:
                    touch_later(path)
                else:
                    path.write_text(f"{dice.randrange(99)} {dice.choice(CONTENTS)}")
            indexer.prune = dice.random() < 0.5
            report = indexer.update(find_files([folder]))
            for name in counts:
                counts[name] += len(report.of(name))
            assert_up_to_date(indexer.known, writer)
    assert min(counts.values()) > 5, counts


def test_an_update_looks_at_what_changed_and_at_nothing_else(tmp_path):
    folder = tmp_path / "clips"
    folder.mkdir()
    for number in range(6):
        (folder / f"{number}.mp4").write_text(f"{number} video")
    model = FakeModel()
    with GalleryWriter(tmp_path / "gallery", "float32") as writer:
        writer.metadata = {"model": "model", "fingerprint": "fingerprint"}
        indexer = Indexer(writer, model, FakeProcessor())

        def update(files, gone):
            asked, unread = [], PropertyMock(side_effect=AssertionError("the gallery was read again"))
            with (
                patch.object(Gallery, "files", unread),
                patch.object(Gallery, "clip_ids", unread),
                patch("search.indexing.is_gone", lambda path: asked.append(path) or is_gone(path)),
            ):
                return indexer.update(files, gone=gone), len(asked)

        files = find_files([folder])
        indexer.update(files)
        (folder / "1.mp4").write_text("9 video audio")
        report, num_asked = update(files[1:2], [])
        assert names(of(report, "changed")) == ["1.mp4"] and model.batches[1:] == [[9]] and num_asked == 0
        (folder / "2.mp4").unlink()
        for gone in ([files[2]], []):  # what is kept is reported again
            report, num_asked = update([], gone)
            assert names(of(report, "gone")) == ["2.mp4"] and num_asked == 1
        indexer.prune = True
        report, num_asked = update([], [])
        assert names(of(report, "removed")) == ["2.mp4"] and num_asked == 1
        assert not update([], [])[0]
        assert_up_to_date(indexer.known, writer)
    assert len(Gallery.open(tmp_path / "gallery")) == 5
