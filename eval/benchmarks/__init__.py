"""Benchmarks: each is loaded from its annotations as a `datasets.Dataset` with fixed columns."""
