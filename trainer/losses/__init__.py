"""The terms of the training objectives, one file each."""

from .alignment import AlignmentLoss, info_nce
from .cross_arity import CrossArityLoss
from .matching import MatchingLoss, draw_negatives
from .pathways import PathwaysLoss

__all__ = ["AlignmentLoss", "CrossArityLoss", "MatchingLoss", "PathwaysLoss", "draw_negatives", "info_nce"]
