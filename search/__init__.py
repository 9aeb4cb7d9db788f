"""Search a gallery of one's own videos by text: `scalar index`, `query` and more.

Nothing is imported here, so that the command line answers quickly; use `from scalar_retrieval.gallery.gallery import
Gallery`.
"""
