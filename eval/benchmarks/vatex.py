"""VATEX (Wang et al., 2019): 1,500 test clips, 741 of them with a subtitle, of ten captions each; the first counts.

Few clips are still to be had, 431 when the paper was written: `on_missing="leave_out"` evaluates what is there.
"""

from eval.benchmarks.descs import descs_benchmark

VATEX = descs_benchmark("VATEX", {"train": "descs_ret_train.json", "test": "descs_ret_test.json"})

__all__ = ["VATEX"]
