"""The results of perfect readers of clips of the miniature benchmark, which see all modalities of a clip, or one.

- A reader of everything knows all that is true of each clip, and breaks ties at random.
- A reader of one modality knows that modality, and how clips are drawn: its value of a factor makes the same value of
  other modalities more or less probable. It ranks clips by the probability that the caption is true of them, which no
  reader of that modality can surpass.
"""

from collections.abc import Sequence
from functools import cache
from itertools import product

import numpy as np

from evidence.miniature.clips import MiniatureClip, expressed_value, names_of
from evidence.miniature.vocabulary import EVIDENCE, FACTORS, VOCABULARY

_CLOSE = 1e-9  # probabilities with a smaller relative difference are ties

_Claims = frozenset[tuple[str, ...]]


class _Factor:
    """All combinations of the attributes with which modalities can express a factor, and their probabilities."""

    def __init__(self, factor: str, shared: float):
        values = FACTORS[factor]
        modalities = list(next(iter(values.values())))
        self.names = [(modality, name) for modality in modalities for name in names_of(factor, modality)]
        options = [list(VOCABULARY[modality][name]) for modality, name in self.names]
        self.codes = [{value: code for code, value in enumerate(column)} for column in options]
        combinations = list(product(*options))
        self.states = np.array(list(product(*(range(len(column)) for column in options))))
        self.expressed = {modality: [] for modality in modalities}
        for combination in combinations:
            mentioned = {name: value for name, value in zip(self.names, combination, strict=True)}
            for modality, found in self.expressed.items():
                own = {name: value for (of, name), value in mentioned.items() if of == modality}
                found.append(expressed_value(factor, modality, own))
        self.expressed = {modality: np.array(found, dtype=object) for modality, found in self.expressed.items()}
        self.probabilities = np.full(len(combinations), (1 - shared) / len(combinations))
        for value in values:
            together = np.logical_and.reduce([found == value for found in self.expressed.values()])
            self.probabilities[together] += shared / len(values) / together.sum()

    def holds(self, claims: _Claims) -> np.ndarray:
        """Return the states in which these claims are true."""
        true = np.ones(len(self.states), dtype=bool)
        for claim in claims:
            if len(claim) == 2:  # about the factor itself: true if any modality expresses the value
                true &= np.logical_or.reduce([found == claim[1] for found in self.expressed.values()])
            else:
                column = self.names.index(claim[:2])
                true &= self.states[:, column] == self.codes[column][claim[2]]
        return true

    @cache  # noqa: B019 - one instance for a call
    def own(self, modality: str) -> np.ndarray:
        """Return the modality's value in each state, as a number; 0 everywhere if it does not express the factor."""
        code = np.zeros(len(self.states), dtype=np.int64)
        for column, (of, _) in enumerate(self.names):
            if of == modality:
                code = code * len(self.codes[column]) + self.states[:, column]
        return code

    def said(self, clip: MiniatureClip, modality: str) -> int:
        """Return the value of a clip's modality, numbered as in [`own`]."""
        code = 0
        for codes, (of, name) in zip(self.codes, self.names, strict=True):
            if of == modality:
                code = code * len(codes) + codes[clip.attributes[modality][name]]
        return code


def _probabilities(clips: Sequence[MiniatureClip], modality: str, shared: float) -> np.ndarray:
    """Return a one-modality reader's probability that each caption (rows) is true of each clip (columns)."""
    factors = {name: _Factor(name, shared) for name in FACTORS}
    has = np.array([modality in clip.attributes for clip in clips])
    said = {
        name: np.array([factor.said(clip, modality) if known else 0 for clip, known in zip(clips, has, strict=True)])
        for name, factor in factors.items()
    }
    factor_of = {attribute: name for name, factor in factors.items() for attribute in factor.names}
    sizes = {(m, name): len(values) for m, names in (VOCABULARY | EVIDENCE).items() for name, values in names.items()}
    found: dict[_Claims, np.ndarray] = {}
    for query in clips:
        if query.claims in found:
            continue
        row = np.where(has, 1.0, float(modality not in query.mentions))
        of_factors: dict[str, set[tuple[str, ...]]] = {}
        for claim in query.claims:
            factor = claim[0] if len(claim) == 2 else factor_of.get(claim[:2])
            if factor is not None:
                of_factors.setdefault(factor, set()).add(claim)
            elif claim[0] == modality:
                row *= [known and clip.attributes[modality][claim[1]] == claim[2]
                        for clip, known in zip(clips, has, strict=True)]  # fmt: skip
            else:
                row /= sizes[claim[:2]]
        for name, claims in of_factors.items():
            factor = factors[name]
            true, own, weights = factor.holds(frozenset(claims)), factor.own(modality), factor.probabilities
            known = np.bincount(own, weights * true) / np.bincount(own, weights)
            row *= np.where(has, known[said[name]], (weights * true).sum())
        found[query.claims] = row
    return np.stack([found[query.claims] for query in clips])


def _shares(clips: Sequence[MiniatureClip], modality: str | None, shared: float) -> np.ndarray:
    """Return for each caption the probability that its own clip ranks first."""
    if modality is None:
        clips_of: dict[tuple[str, ...], np.ndarray] = {}
        for number, clip in enumerate(clips):
            for fact in clip.facts:
                clips_of.setdefault(fact, np.zeros(len(clips), dtype=bool))[number] = True
        return np.array([1 / np.logical_and.reduce([clips_of[c] for c in query.claims]).sum() for query in clips])
    probabilities = _probabilities(clips, modality, shared)
    own = probabilities.diagonal()[:, None]
    ties = (np.abs(probabilities - own) <= _CLOSE * own).sum(1)
    return np.where((probabilities > own * (1 + _CLOSE)).any(1), 0.0, 1 / ties)


def recall_ceilings(
    clips: Sequence[MiniatureClip], kinds: Sequence[str], modality: str | None = None, shared: float = 0.6
) -> dict[str, float | None]:
    """
    Return the expected text-to-video R@1, in percent, of a perfect reader that breaks ties at random.

    Args:
        clips (`Sequence[MiniatureClip]`): the gallery.
        kinds (`Sequence[str]`): kinds of captions to distinguish.
        modality (`str`, *optional*): the only modality that the reader knows; by default it knows everything.
        shared (`float`, defaults to 0.6): the value that the clips were drawn with, known to a reader of one modality.
            It does not know that clips can disagree.

    Returns:
        `dict`: for all captions as `"all"`, then for each kind; `None` if there are none.
    """
    if not clips:
        return dict.fromkeys(("all", *kinds))
    shares = 100 * _shares(clips, modality, shared)
    chosen = {kind: [row for row, clip in enumerate(clips) if clip.kind == kind] for kind in kinds}
    return {"all": float(shares.mean())} | {
        kind: float(shares[rows].mean()) if rows else None for kind, rows in chosen.items()
    }


__all__ = ["recall_ceilings"]
