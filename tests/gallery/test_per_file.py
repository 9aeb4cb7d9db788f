"""Each file once, by its best window, whatever number of windows there is."""

import torch
from torch.nn.functional import normalize

from scalar_retrieval.gallery.filters import Filter
from scalar_retrieval.gallery.gallery import Gallery, GalleryWriter


def windows(place, num_files, num_windows, names="talk{}.mp4"):
    """Windows of files, turn by turn; of the first file ten times as many, and close to the query."""
    ids, vectors, query = [], [], normalize(torch.randn(8, generator=torch.Generator().manual_seed(9)), dim=-1)
    for file in range(num_files):
        count = 10 * num_windows if file == 0 else num_windows
        ids += [f"/clips/{names.format(file)}#t={start},{start + 1}" for start in range(count)]
        noise = torch.randn(count, 3, 8, generator=torch.Generator().manual_seed(file))
        vectors.append(normalize(query + (0.1 if file == 0 else 1 + file) * noise, dim=-1))
    with GalleryWriter(place / "gallery", "float32") as writer:
        writer.metadata = {"segment": 1.0}
        writer.put_clips(ids, torch.cat(vectors), torch.ones(len(ids), 3, dtype=torch.bool))
        writer.commit()
    return Gallery.open(place / "gallery"), query[None]


def test_each_file_is_found_by_its_best_window_and_few_searches_are_made(tmp_path, monkeypatch):
    gallery, query = windows(tmp_path, 6, 20)
    (everything,) = gallery.search(query, len(gallery))
    best = {}
    for hit in everything:
        best.setdefault(hit.clip_id.partition("#")[0], hit)
    sizes, rank = [], gallery.searcher.rank
    monkeypatch.setattr(gallery.searcher, "rank", lambda q, k, *rest: sizes.append(k) or rank(q, k, *rest))
    for k in (1, 3, 6, 9):
        (hits,) = gallery.search(query, k, per_file=True)
        expected = list(best.values())[:k]
        assert [(hit.rank, hit.clip_id) for hit in hits] == [(n, hit.clip_id) for n, hit in enumerate(expected, 1)]
        assert hits.num_scored <= hits.num_allowed == len(gallery)
    assert max(sizes) == 9 and len(sizes) < 20  # not by ranking all windows
    (some,) = gallery.search(query, 6, per_file=True, allowed=Filter(("talk[135].mp4",)))
    assert [hit.clip_id for hit in some] == [hit.clip_id for name, hit in best.items() if name[-5] in "135"]
