"""The miniature benchmark: small real video files whose modalities partly overlap, as those of real videos do.

The modalities of a clip can express its subject, its tempo and its scene together. How often they do is a parameter;
at 0 they are independent. Captions describe one modality, several, or what they share, so the modality that answers a
query depends on the query; some clips lack a track. A set can have further evidence, a title and words on the screen.
None of this is in the paper. A set is a function of its settings: `draw_split` draws the content of every clip,
`render` writes one file.
"""

from eval.miniature.ceilings import recall_ceilings
from eval.miniature.clips import (
    ABSENT_SHARES,
    EVIDENCE_ABSENT_SHARES,
    KINDS,
    SPLITS,
    MiniatureClip,
    draw_clip,
    draw_split,
    expressed_value,
    kinds_of,
    views_alone,
)
from eval.miniature.generation import VERSION, check_version, generate
from eval.miniature.rendering import draw_frames, draw_waveform, render, write_on
from eval.miniature.vocabulary import EVIDENCE, FACTORS, VOCABULARY

__all__ = [
    "ABSENT_SHARES",
    "EVIDENCE",
    "EVIDENCE_ABSENT_SHARES",
    "FACTORS",
    "KINDS",
    "SPLITS",
    "VERSION",
    "VOCABULARY",
    "MiniatureClip",
    "check_version",
    "draw_clip",
    "draw_frames",
    "draw_split",
    "draw_waveform",
    "expressed_value",
    "generate",
    "kinds_of",
    "recall_ceilings",
    "render",
    "views_alone",
    "write_on",
]
