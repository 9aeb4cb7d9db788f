"""What fails when a file is written, beside `test_state_machine.py`, in which each call of a commit may fail."""

import re
import shutil

import pytest
import torch

from scalar_retrieval.commands.errors import error_text
from scalar_retrieval.eval.embedding.embeddings import Embeddings
from scalar_retrieval.gallery.gallery import Gallery
from scalar_retrieval.gallery.repair import repair
from scalar_retrieval.gallery.store.places import MANIFEST
from scalar_retrieval.modeling_scalar import MODALITIES
from tests.disks import small_disk
from tests.gallery.conftest import MADE_BY, make_clips, make_queries, write
from tests.gallery.faults import Faults


def save(folder):
    names, embeds, mask = make_clips(4)
    pairs = torch.tensor([[0, 0]])
    metadata = MADE_BY | {"is_saved": True}
    Embeddings(make_queries(1), embeds, mask, pairs, names, ["q"], ["c"], MODALITIES, metadata=metadata).save(folder)


def content(folder):
    gallery = Gallery.open(folder)
    gallery.verify()
    return dict(zip(gallery.clip_ids, gallery.modality_embeds().tolist(), strict=True)), gallery.metadata


def leftovers(folder):
    return [path for path in folder.parent.rglob(".*") if path.is_file() and path.name != ".lock"]


@pytest.mark.promise("data", "A full disk leaves the old or the new state, and the command can be repeated")
@pytest.mark.parametrize("stays", [False, True], ids=["once", "for ever"])
@pytest.mark.parametrize("change", [repair, save])
def test_whatever_call_fails_the_change_can_be_repeated(tmp_path, change, stays):
    begun = tmp_path / "begun"
    write(begun, *(make_clips(4, seed=seed) for seed in range(3)))
    if change is repair:
        (begun / MANIFEST).unlink()
        (begun / "clips" / "data-000002-1.arrow").write_bytes(b"x")
    expected = None
    for number in (0, *range(1, 400, 3)):
        folder = tmp_path / str(number) / "gallery"
        shutil.copytree(begun, folder)
        with pytest.MonkeyPatch.context() as patched:
            faults = Faults(patched, number, stays)
            try:
                change(folder)
            except OSError as error:
                assert number > 0 and re.match(f"The disk is full: .*{tmp_path}", error_text(error))
        assert not leftovers(folder)
        change(folder)
        expected = expected or content(folder)
        assert content(folder) == expected
        shutil.rmtree(folder.parent)
        if 0 < faults.number < number:
            break
    assert number > 12


def test_on_a_file_system_that_is_full_nothing_committed_is_lost_and_the_same_goes_on(tmp_path):
    with small_disk(tmp_path / "disk", 2**20) as disk:
        folder, kept, seed = disk / "gallery", {}, 0
        (disk / "ballast").write_bytes(bytes(800_000))
        with pytest.raises(OSError, match="No space left on device") as caught:
            while True:
                names, embeds, mask = make_clips(16, seed=seed)
                write(folder, (names, embeds, mask))
                kept |= dict(zip(names, embeds.tolist(), strict=True))
                seed += 1
        assert seed > 3 and str(folder) in error_text(caught.value)
        assert content(folder)[0] == kept and not leftovers(folder)
        (disk / "ballast").unlink()
        write(folder, make_clips(16, seed=seed))
        assert len(content(folder)[0]) == 16 * (seed + 1)
