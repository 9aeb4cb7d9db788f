"""A training corpus with annotations like VAST-27M's (Chen et al., 2023): `<split>.json`, a list of `{clip_id,
vast_cap, subtitle, ...}` in which a caption may be a list, with a row for each.
"""

from functools import partial

from .definition import Benchmark
from .descs import load_descs

_LOAD = partial(load_descs, captions="all", id_name="clip_id", caption_names=("vast_cap",))
VAST27M = Benchmark("VAST-27M", _LOAD, settings=("captions",))

__all__ = ["VAST27M"]
