"""Embedded clips: the one format on disk, how it grows, from clips to embeddings, and exact ranking over it.

Nothing is imported here, so that command lines answer quickly; use `from gallery.gallery import Gallery`.
"""
