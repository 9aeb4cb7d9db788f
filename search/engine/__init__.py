"""Galleries in a vector engine: too large for one machine, but still with provably exact answers.

See docs/scale.md. `push` writes a gallery into Qdrant or PostgreSQL, `asking` searches one.
"""
