import hashlib
import json
import math
import os
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from modeling_scalar.configuration_scalar import MODALITIES
from search.gallery import Entry, FailedFile, Gallery

DIM = 16


def make_clips(count, seed=0, dim=DIM):
    """Entries, unit-or-zero embeddings (N, 3, D) and a mask in which every subset of modalities occurs."""
    generator = torch.Generator().manual_seed(seed)
    subsets = [[bool(number & 1 << bit) for bit in range(3)] for number in range(1, 8)]
    mask = torch.tensor([subsets[number % 7] for number in range(count)])
    embeds = torch.randn(count, 3, dim, generator=generator)
    embeds = torch.nn.functional.normalize(embeds, dim=-1) * mask[..., None]
    return [make_entry(f"/clips/{seed}-{number}.mp4", row) for number, row in enumerate(mask.tolist())], embeds, mask


def make_entry(path, row):
    presence = [name for name, here in zip(MODALITIES, row, strict=True) if here]
    return Entry(path, size=1, mtime_ns=2, sha256="a" * 64, presence=presence)


def make_gallery(count=30, seed=0):
    gallery = Gallery("model", "fingerprint", 0.1)
    gallery.append(*make_clips(count, seed))
    return gallery


def make_queries(count, seed=100):
    generator = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(count, DIM, generator=generator), dim=-1)


def brute_force(query, embeds, mask, tau):
    """SCALAR Eq. 2 and 4 for one pair in float64, as the paper writes them: (score, weights)."""
    query, present = query.double(), [number for number in range(3) if mask[number]]
    similarities = {number: float(query @ embeds[number].double()) for number in present}
    total = sum(math.exp(value / tau) for value in similarities.values())
    weights = [math.exp(similarities[number] / tau) / total if number in present else 0.0 for number in range(3)]
    centroid = sum(weights[number] * embeds[number].double() for number in present)
    return float(query @ centroid / centroid.norm()), weights


def embeddings_file(folder):
    (file,) = folder.glob("gallery-*.safetensors")
    return file


def test_search_equals_a_float64_loop_with_missing_modalities():
    entries, embeds, mask = make_clips(50)
    gallery = Gallery("model", "fingerprint", 0.1)
    gallery.append(entries, embeds, mask)
    queries = make_queries(6)
    for query, hits in zip(queries, gallery.search(queries, k=50, query_temperature=0.2), strict=True):
        expected = {entry.path: brute_force(query, embeds[n], mask[n], 0.2) for n, entry in enumerate(entries)}
        assert [hit.path for hit in hits] == sorted(expected, key=lambda path: -expected[path][0])
        assert [hit.rank for hit in hits] == list(range(1, 51))
        for hit in hits:
            score, weights = expected[hit.path]
            # float32 products of 16 numbers, amplified at most fivefold by exp(a / 0.2)
            assert hit.score == pytest.approx(score, abs=5e-6)
            assert list(hit.weights.values()) == pytest.approx(weights, abs=5e-6)


def test_the_gallery_temperature_is_the_default():
    gallery, queries = make_gallery(), make_queries(2)
    assert gallery.search(queries) == gallery.search(queries, query_temperature=0.1)
    assert gallery.search(queries) != gallery.search(queries, query_temperature=1.0)


def test_weights_sum_to_one_over_present_and_are_zero_where_absent():
    (hits,) = make_gallery(14).search(make_queries(1), k=14)
    assert any(not all(hit.presence.values()) for hit in hits)
    for hit in hits:
        assert tuple(hit.weights) == tuple(hit.presence) == MODALITIES
        assert sum(hit.weights.values()) == pytest.approx(1, abs=1e-6)
        assert all((hit.weights[name] > 0) == hit.presence[name] for name in MODALITIES)


@pytest.mark.parametrize("block_size", [1, 7, 8, 29, 30, 1000])
def test_the_block_size_does_not_change_the_result(block_size):
    gallery, queries = make_gallery(), make_queries(5)
    whole, blocked = gallery.search(queries, k=8), gallery.search(queries, k=8, block_size=block_size)
    assert [[hit.path for hit in hits] for hits in blocked] == [[hit.path for hit in hits] for hits in whole]
    for one, other in zip(sum(whole, []), sum(blocked, []), strict=True):
        assert one.score == pytest.approx(other.score, abs=1e-6)  # the order of float32 sums depends on the shape


def test_queries_beyond_one_block_are_searched_too(monkeypatch):
    gallery, queries = make_gallery(), make_queries(5)
    whole = gallery.search(queries, k=3)
    monkeypatch.setattr("search.gallery.QUERY_BLOCK", 2)
    split = gallery.search(queries, k=3)
    assert [[hit.path for hit in hits] for hits in split] == [[hit.path for hit in hits] for hits in whole]


@pytest.mark.parametrize("block_size", [1, 3, 100])
@pytest.mark.parametrize("k", [1, 2, 4, 6])
def test_equal_scores_come_in_gallery_order(block_size, k):
    embeds = torch.zeros(6, 3, DIM)
    embeds[[0, 2], 0, 1] = 1  # clips 0 and 2 are orthogonal to the query, the others equal it
    embeds[[1, 3, 4, 5], 0, 0] = 1
    mask = torch.tensor([[True, False, False]] * 6)
    gallery = Gallery("model", "fingerprint", 0.1)
    gallery.append([make_entry(str(number), row) for number, row in enumerate(mask.tolist())], embeds, mask)
    (hits,) = gallery.search(torch.eye(DIM)[:1], k=k, block_size=block_size)
    assert [hit.path for hit in hits] == ["1", "3", "4", "5", "0", "2"][:k]


def test_k_beyond_the_gallery_returns_every_clip():
    (hits,) = make_gallery(9).search(make_queries(1), k=100)
    assert len(hits) == 9


def test_an_empty_gallery_has_no_hits():
    assert Gallery("model", "fingerprint", 0.1).search(make_queries(2)) == [[], []]


@pytest.mark.parametrize("block_size", [2, 100])
def test_a_single_pathway_finds_only_clips_that_have_it(block_size):
    entries, embeds, mask = make_clips(21)
    gallery = Gallery("model", "fingerprint", 0.1)
    gallery.append(entries, embeds, mask)
    query = make_queries(1)
    (hits,) = gallery.search(query, k=21, method="audio", block_size=block_size)
    expected = {entry.path: float(query[0] @ embeds[n, 1]) for n, entry in enumerate(entries) if mask[n, 1]}
    assert 0 < len(expected) < 21
    assert [hit.path for hit in hits] == sorted(expected, key=lambda path: -expected[path])
    assert all(hit.weights is None for hit in hits)


@pytest.mark.parametrize(
    ("queries", "options", "message"),
    [
        (torch.ones(DIM), {}, "shape"),
        (torch.eye(DIM + 1), {}, "shape"),
        (2 * torch.eye(DIM), {}, "unit norm"),
        (torch.full((1, DIM), math.nan), {}, "unit norm"),
        (torch.eye(DIM), {"k": 0}, "at least 1"),
        (torch.eye(DIM), {"method": "nonsense"}, "method"),
    ],
)
def test_a_wrong_search_is_refused(queries, options, message):
    with pytest.raises(ValueError, match=message):
        make_gallery(3).search(queries, **options)


def test_a_saved_gallery_opens_equal(tmp_path):
    gallery = make_gallery(10)
    path, entry = next(iter(gallery.entries.items()))
    gallery.entries[path] = replace(entry, duration=1.5, problems=["a [bracket] and ü"])
    gallery.failed["/x"] = FailedFile("/x", 0, 1, "", "empty")
    gallery.save(tmp_path / "new" / "gallery")
    opened = Gallery.open(tmp_path / "new" / "gallery")
    assert (opened.model, opened.fingerprint, opened.query_temperature) == ("model", "fingerprint", 0.1)
    assert list(opened.entries.items()) == list(gallery.entries.items())
    assert opened.failed == gallery.failed
    assert len(opened) == 10 and opened.dim == DIM
    assert torch.equal(opened.modality_mask, make_clips(10)[2])
    assert opened.search(make_queries(3)) == gallery.search(make_queries(3))


def test_file_names_that_are_not_unicode_survive(tmp_path):
    gallery = Gallery("model", "fingerprint", 0.1)
    _, embeds, mask = make_clips(1)
    path = os.fsdecode(b"/clips/\xff.mp4")
    gallery.append([make_entry(path, mask[0].tolist())], embeds, mask)
    gallery.save(tmp_path)
    assert list(Gallery.open(tmp_path).entries) == [path]


def test_a_gallery_emptied_by_remove_can_be_saved_and_filled_again(tmp_path):
    gallery = make_gallery(3)
    gallery.remove(set(gallery.entries))
    gallery.save(tmp_path)
    opened = Gallery.open(tmp_path)
    assert len(opened) == 0 and opened.dim == DIM
    opened.append(*make_clips(4))
    opened.save(tmp_path)
    assert len(Gallery.open(tmp_path)) == 4


def test_append_after_open_keeps_the_order_and_leaves_one_embeddings_file(tmp_path):
    make_gallery(5, seed=0).save(tmp_path)
    opened = Gallery.open(tmp_path)
    opened.append(*make_clips(4, seed=1))
    opened.save(tmp_path)
    both = Gallery.open(tmp_path)
    assert list(both.entries) == [f"/clips/0-{n}.mp4" for n in range(5)] + [f"/clips/1-{n}.mp4" for n in range(4)]
    stored = load_file(embeddings_file(tmp_path))
    assert torch.equal(stored["audio"], torch.cat([make_clips(5, 0)[1], make_clips(4, 1)[1]])[:, 1])
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(["gallery.json", embeddings_file(tmp_path).name])


def test_remove_keeps_the_other_rows():
    gallery = make_gallery(6)
    gallery.remove({"/clips/0-0.mp4", "/clips/0-3.mp4"})
    entries, embeds, mask = make_clips(6)
    expected = Gallery("model", "fingerprint", 0.1)
    kept = [1, 2, 4, 5]
    expected.append([entries[number] for number in kept], embeds[kept], mask[kept])
    assert gallery.search(make_queries(2)) == expected.search(make_queries(2))
    with pytest.raises(KeyError):
        gallery.remove({"/clips/0-0.mp4"})


@pytest.mark.parametrize("failing_call", [1, 2])
def test_an_error_while_saving_leaves_the_old_gallery(tmp_path, monkeypatch, failing_call):
    make_gallery(5).save(tmp_path)
    opened = Gallery.open(tmp_path)
    opened.append(*make_clips(4, seed=1))
    calls, real = [], os.replace

    def fail(source, target):
        calls.append(target)
        if len(calls) == failing_call:
            raise OSError("no space left")
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fail)
        with pytest.raises(OSError, match="no space"):
            opened.save(tmp_path)
    assert len(calls) == failing_call
    assert len(Gallery.open(tmp_path)) == 5
    opened.save(tmp_path)  # the next try succeeds and leaves nothing behind
    assert len(Gallery.open(tmp_path)) == 9
    assert len(list(tmp_path.iterdir())) == 2


def test_a_gallery_another_program_saved_meanwhile_is_not_overwritten(tmp_path):
    make_gallery(5).save(tmp_path)
    first, second = Gallery.open(tmp_path), Gallery.open(tmp_path)
    first.append(*make_clips(1, seed=1))
    first.save(tmp_path)
    second.append(*make_clips(1, seed=2))
    with pytest.raises(ValueError, match="another program"):
        second.save(tmp_path)
    with pytest.raises(ValueError, match="another program"):
        make_gallery(2).save(tmp_path)
    assert "/clips/1-0.mp4" in Gallery.open(tmp_path).entries


def test_files_of_others_in_the_folder_are_left_alone(tmp_path):
    (tmp_path / "gallery-notes.safetensors").write_bytes(b"mine")
    make_gallery(2).save(tmp_path)
    assert (tmp_path / "gallery-notes.safetensors").read_bytes() == b"mine"


def test_a_folder_without_a_gallery_is_not_found(tmp_path):
    with pytest.raises(FileNotFoundError, match="no gallery"):
        Gallery.open(tmp_path)


def _edit(**changes):
    def change(record):
        record |= changes

    return change


def _edit_entry(**changes):
    def change(record):
        record["entries"][1] |= changes

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_edit(version=2), "version 1"),
        (_edit(query_temperature="hot"), "query_temperature"),
        (_edit(query_temperature=-1.0), "query_temperature"),
        (_edit(dim=DIM + 1), "must hold"),
        (_edit(extra=1), "extra"),
        (_edit(embeddings_sha256="../../etc"), "SHA-256"),
        (_edit(embeddings_sha256="0" * 64), "missing"),
        (lambda record: record.pop("failed"), "failed"),
        (lambda record: record["entries"].pop(), "must hold"),
        (lambda record: record["entries"].append(3), "entries"),
        (_edit_entry(path="/clips/0-0.mp4"), "twice"),
        (_edit_entry(presence=["video"]), "presence"),
        (_edit_entry(size=None), "size"),
        (_edit_entry(colour="red"), "colour"),
    ],
)
def test_a_changed_json_is_refused(tmp_path, change, message):
    make_gallery(4).save(tmp_path)
    record = json.loads((tmp_path / "gallery.json").read_text())
    change(record)
    (tmp_path / "gallery.json").write_text(json.dumps(record))
    with pytest.raises(ValueError, match=message):
        Gallery.open(tmp_path)


def test_a_truncated_json_is_refused(tmp_path):
    make_gallery(4).save(tmp_path)
    text = (tmp_path / "gallery.json").read_text()
    (tmp_path / "gallery.json").write_text(text[:-40])
    with pytest.raises(ValueError, match="not valid JSON"):
        Gallery.open(tmp_path)


def test_a_single_flipped_bit_of_the_embeddings_is_refused(tmp_path):
    make_gallery(4).save(tmp_path)
    raw = bytearray(embeddings_file(tmp_path).read_bytes())
    raw[-5] ^= 1
    embeddings_file(tmp_path).write_bytes(raw)
    with pytest.raises(ValueError, match="damaged"):
        Gallery.open(tmp_path)


def _rewrite_embeddings(folder, change):
    """Change the tensors and make the hashes agree again, as a faulty writer would."""
    file = embeddings_file(folder)
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    change(tensors)
    file.unlink()
    save_file(tensors, folder / "part")
    digest = hashlib.sha256((folder / "part").read_bytes()).hexdigest()
    (folder / "part").rename(folder / f"gallery-{digest}.safetensors")
    record = json.loads((folder / "gallery.json").read_text())
    (folder / "gallery.json").write_text(json.dumps(record | {"embeddings_sha256": digest}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors["video"][0].mul_(1.01), "video embedding of '/clips/0-0.mp4' must be unit"),
        (lambda tensors: tensors["video"][0].fill_(math.nan), "must be unit"),
        (lambda tensors: tensors["audio"][0].fill_(1e-6), "must be zero"),
        (lambda tensors: tensors["modality_mask"][0].fill_(False), "none"),
        (lambda tensors: tensors.pop("audio"), "must hold"),
        (lambda tensors: tensors.update(audio=tensors["audio"].half()), "must hold"),
        (lambda tensors: tensors.update(audio=tensors["audio"][1:].clone()), "must hold"),
    ],
)
def test_embeddings_that_break_the_contract_are_refused(tmp_path, change, message):
    make_gallery(4).save(tmp_path)
    _rewrite_embeddings(tmp_path, change)
    with pytest.raises(ValueError, match=message):
        Gallery.open(tmp_path)


def _repeat_a_path(entries, embeds, mask):
    return [entries[0], *entries[:-1]], embeds, mask


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda entries, embeds, mask: (entries[1:], embeds, mask), "2 entries"),
        (lambda entries, embeds, mask: (entries, embeds[:, 0], mask), "3 entries"),
        (lambda entries, embeds, mask: (entries, embeds[..., 1:], mask), "dimensions"),
        (lambda entries, embeds, mask: (entries, 3 * embeds, mask), "unit"),
        (lambda entries, embeds, mask: (entries, embeds, ~mask), "must be"),
        (lambda entries, embeds, mask: ([replace(e, presence=[]) for e in entries], embeds, mask), "presence"),
        (_repeat_a_path, "already"),
    ],
)
def test_a_wrong_append_is_refused_and_changes_nothing(change, message):
    gallery = make_gallery(3)
    with pytest.raises(ValueError, match=message):
        gallery.append(*change(*make_clips(3, seed=1)))
    assert gallery.search(make_queries(2)) == make_gallery(3).search(make_queries(2))


def test_another_model_is_refused():
    gallery = make_gallery(1)
    gallery.check_model("elsewhere", "fingerprint")
    with pytest.raises(ValueError, match="cannot be compared"):
        gallery.check_model("model", "other")


def test_a_gallery_without_clips_is_not_saved(tmp_path):
    with pytest.raises(ValueError, match="no clip"):
        Gallery("model", "fingerprint", 0.1).save(tmp_path)
