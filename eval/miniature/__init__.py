"""The miniature benchmark: small real video files whose captions speak of one or two modalities only.

What a clip shows, sounds like and says are drawn independently, so the modality that answers a query depends on the
query, as in the benchmarks of the paper; some clips lack a track. Nothing here is in the paper. A set is a function of
its seed and its two counts: `draw_split` decides what every clip is, `render` writes one file.
"""

from eval.miniature.clips import ABSENT_SHARES, SPLITS, MiniatureClip, draw_clip, draw_split, recall_ceiling
from eval.miniature.generation import VERSION, generate
from eval.miniature.rendering import draw_frames, draw_waveform, render
from eval.miniature.vocabulary import VOCABULARY

__all__ = [
    "ABSENT_SHARES",
    "SPLITS",
    "VERSION",
    "VOCABULARY",
    "MiniatureClip",
    "draw_clip",
    "draw_frames",
    "draw_split",
    "draw_waveform",
    "generate",
    "recall_ceiling",
    "render",
]
