"""ActivityNet Captions (Krishna et al., 2017): 4,917 test clips without subtitles; one paragraph per clip."""

from .descs import descs_benchmark

ACTIVITYNET = descs_benchmark(
    "ActivityNet",
    {"train": "descs_ret_train.json", "test": "descs_ret_test.json"},
    max_text_length=70,
    num_segments=2,
)

__all__ = ["ACTIVITYNET"]
