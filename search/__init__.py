"""Search a gallery of one's own videos by text: `python -m search index|query|info`.

Nothing is imported here, so that the command line answers quickly; use `from search.gallery import Gallery`.
"""
