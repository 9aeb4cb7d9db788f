"""Embedded clips: their one format on disk, how it grows, embedding of clips, and exact ranking.

Nothing is imported here, so that commands start quickly; use `from scalar_retrieval.gallery.gallery import Gallery`.
"""
