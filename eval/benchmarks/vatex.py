"""VATEX (Wang et al., 2019): 1,500 test clips, 741 with a subtitle, with ten captions each; the first is used.

Few clips are still available, 431 when the paper was written: `on_missing="leave_out"` evaluates those.
"""

from .descs import descs_benchmark

VATEX = descs_benchmark("VATEX", {"train": "descs_ret_train.json", "test": "descs_ret_test.json"})

__all__ = ["VATEX"]
