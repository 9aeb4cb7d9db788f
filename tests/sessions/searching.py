"""Index a folder of clips and search it."""

from scalar_retrieval import Filter, index

gallery = index("Videos", "galleries/python", model="backbone", progress=False)
hits = gallery.search("a dog barks", k=2)
best = hits[0]
lists = gallery.search(["a dog barks", "rain"], allowed=Filter(has="audio"))
like = gallery.search(like=best.clip_id, modalities=["video"])
newest = gallery.index(["clip0.mp4", "clip1.mp4"], progress=False)
print(best.clip_id, best.score, best.weights, hits.num_clips, len(lists), len(like), len(newest))
