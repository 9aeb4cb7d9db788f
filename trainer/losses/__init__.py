"""The terms of the training objectives, one file each."""

from .alignment import AlignmentLoss, info_nce
from .cross_arity import CrossArityLoss
from .matching import MatchingLoss, draw_negatives
from .pathways import PathwaysLoss
from .pmrl import PMRLLoss, leading_directions
from .semantic import SemanticLoss
from .uniformity import UniformityLoss

__all__ = [
    "AlignmentLoss",
    "CrossArityLoss",
    "MatchingLoss",
    "PMRLLoss",
    "PathwaysLoss",
    "SemanticLoss",
    "UniformityLoss",
    "draw_negatives",
    "info_nce",
    "leading_directions",
]
