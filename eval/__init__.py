"""Benchmarks, embedding of a data set, the protocol and its metrics, reports."""
