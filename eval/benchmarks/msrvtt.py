"""MSR-VTT (Xu et al., 2016), split 1k-A: 1,000 test clips, 762 with a subtitle; one caption per clip."""

from .descs import descs_benchmark

MSRVTT = descs_benchmark(
    "MSR-VTT",
    {"train": "unique_descs_ret_train.json", "test": "descs_ret_test.json"},
    resize_mode="crop",
)

__all__ = ["MSRVTT"]
