"""DiDeMo (Hendricks et al., 2017): 1,003 test clips without subtitles; a clip's sentences form one paragraph."""

from .descs import descs_benchmark

DIDEMO = descs_benchmark(
    "DiDeMo",
    {"train": "descs_ret_train.json", "test": "descs_ret_test.json"},
    max_text_length=70,
    num_segments=2,
)

__all__ = ["DIDEMO"]
