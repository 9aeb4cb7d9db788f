"""Search a folder of clips."""

from scalar_retrieval import Filter, Gallery

gallery = Gallery.open("galleries/videos")
hits = gallery.search("a dog barks", k=2)
best = hits[0]
lists = gallery.search(["a dog barks", "rain"], allowed=Filter(has="audio"))
like = gallery.search(like=best.clip_id, modalities=["video"])
print(best.clip_id, best.score, best.weights, hits.num_clips, len(lists), len(like))
