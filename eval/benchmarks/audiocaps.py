"""AudioCaps (Kim et al., 2019): 729 test clips without subtitles, with five captions each; the first is used."""

from .descs import descs_benchmark

AUDIOCAPS = descs_benchmark("AudioCaps", {"trainval": "descs_ret_trainval.json", "test": "descs_ret_test.json"})

__all__ = ["AUDIOCAPS"]
