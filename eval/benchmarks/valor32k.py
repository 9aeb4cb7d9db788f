"""VALOR-32K (Liu et al., 2024): 3,491 test clips of ten seconds; one audio-visual caption per clip."""

from .descs import descs_benchmark

VALOR32K = descs_benchmark(
    "VALOR-32K", {"train": "desc_train.json", "validation": "desc_val.json", "test": "desc_test.json"}
)

__all__ = ["VALOR32K"]
