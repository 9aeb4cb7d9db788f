"""A gallery in a vector engine: one that does not fit a machine, with answers that are proved all the same.

See docs/scale.md. `push` writes a gallery into Qdrant or PostgreSQL, `asking` searches one.
"""
