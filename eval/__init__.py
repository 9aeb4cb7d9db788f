"""Benchmarks, embedding of a data set, retrieval metrics, missing-modality masks, tables."""
