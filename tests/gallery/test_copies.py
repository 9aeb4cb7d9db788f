"""Files of the same content are one hit where that is wanted, and as many hits are found as without."""

import random

import torch
from torch.nn.functional import normalize

from scalar_retrieval.gallery.filters import Filter
from scalar_retrieval.gallery.gallery import Gallery, GalleryWriter, MediaFile

DIM = 8


def vectors(count, seed=0):
    return normalize(torch.randn(count, 3, DIM, generator=torch.Generator().manual_seed(seed)), dim=-1)


def write(folder, hashes, names=None, **metadata):
    """A gallery of files of these contents; those of the same content have the same vectors."""
    names = names or [f"/clips/{number}.mp4" for number in range(len(hashes))]
    keys = [(sha256, name.partition("#")[2]) for sha256, name in zip(hashes, names, strict=True)]
    contents = list(dict.fromkeys(keys))
    rows = [contents.index(key) for key in keys]
    with GalleryWriter(folder, "float32") as writer:
        writer.metadata = metadata
        writer.put_clips(names, vectors(len(contents))[rows], torch.ones(len(names), 3, dtype=torch.bool))
        files = {name.partition("#")[0]: sha256 for name, sha256 in zip(names, hashes, strict=True)}
        writer.put_files([MediaFile(path, 1, 0, sha256) for path, sha256 in files.items() if sha256 is not None])
        writer.commit()
    return Gallery.open(folder)


def reported(hits):
    return [(hit.rank, hit.clip_id, hit.copies) for hit in hits]


def without_copies(gallery, hits, hashes):
    """What must come: the hits of a search for everything, each content once, with its copies in gallery order."""
    found, of = {}, dict(zip(gallery.clip_ids, hashes, strict=True))
    for hit in hits:
        key = (of[hit.clip_id] or hit.clip_id, hit.clip_id.partition("#")[2])
        found.setdefault(key, []).append(hit.clip_id)
    groups = [sorted(group, key=gallery.clip_ids.index) for group in found.values()]
    return [(rank, first, tuple(others)) for rank, (first, *others) in enumerate(groups, 1)]


def test_copies_of_a_clip_are_like_it(tmp_path):
    gallery = write(tmp_path / "gallery", [letter * 64 for letter in "abaa"])
    hits = gallery.search(like="/clips/0.mp4", unique=True)
    assert reported(hits)[0] == (1, "/clips/2.mp4", ("/clips/3.mp4",))


def test_each_file_and_each_content_once_is_the_best_window_of_each_file_without_its_copies(tmp_path):
    draw, num_further = random.Random(0), 0
    for number in range(8):
        names, hashes = [], []
        for file, content in enumerate(draw.choices(range(8), k=12)):
            spans = [f"{start},{start + 1}" for start in range(content + 1)]
            names += [f"/clips/{file:02d}.mp4#t={span}" for span in spans]
            # Files of which no hash is known are no copies.
            sha256 = ("", None)[file % 2] if file > 7 else f"{content}" * 64
            hashes += [sha256] * len(spans)
        gallery, query = write(tmp_path / str(number), hashes, names, segment=1), vectors(1, number)[:, 0]
        allowed = Filter([f"*{digit}.mp4" for digit in draw.sample(range(10), 7)])
        (everything,) = gallery.search(query, len(gallery), allowed=allowed)
        # Without copies, each file by its best window
        best = {}
        for _, name, copies in without_copies(gallery, everything, hashes):
            best.setdefault(name.partition("#")[0], (name, copies))
        for k in (1, 2, 5, 12):
            (hits,) = gallery.search(query, k, unique=True, allowed=allowed)
            assert reported(hits) == without_copies(gallery, everything, hashes)[:k]
            (hits,) = gallery.search(query, k, per_file=True, unique=True, allowed=allowed)
            assert [(hit.clip_id, hit.copies) for hit in hits] == list(best.values())[:k]
            num_further += len({hit.place.path for hit in everything[:k]}) < len(hits)
    assert num_further > 5 and any(hit.copies for hit in hits)  # further windows were ranked
