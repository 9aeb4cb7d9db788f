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
        self.names: list[tuple[str, str]] = []
        self.options: list[list[str]] = []
        for modality in modalities:
            for name in names_of(factor, modality):
                self.names.append((modality, name))
                self.options.append(list(VOCABULARY[modality][name]))

        # Every combination of attributes is a state: a row of the places of its values in the options.
        sizes = list(map(len, self.options))
        self.states = np.indices(sizes).reshape(len(sizes), -1).T  # (states, attributes)

        # What each modality expresses in every state.
        expressed = []
        for modality in modalities:
            found = []
            for combination in product(*self.options):
                attributes = dict(zip(self.names, combination, strict=True))
                own = {name: attributes[modality, name] for name in names_of(factor, modality)}
                found.append(expressed_value(factor, modality, own))
            expressed.append(found)
        self.expressed = np.array(expressed, dtype=object)  # (modalities, states)

        # A shared value is drawn first, then one of the states in which all modalities express it.
        self.probabilities = np.full(len(self.states), (1 - shared) / len(self.states))
        for value in values:
            together = (self.expressed == value).all(axis=0)
            self.probabilities[together] += shared / len(values) / together.sum()

    def holds(self, claims: _Claims) -> np.ndarray:
        """Return the states in which these claims are true."""
        true = np.ones(len(self.states), dtype=bool)
        for claim in claims:
            if len(claim) == 2:  # about the factor itself: true if any modality expresses the value
                true &= (self.expressed == claim[1]).any(axis=0)
            else:
                column = self.names.index(claim[:2])
                true &= self.states[:, column] == self.options[column].index(claim[2])
        return true

    @cache  # noqa: B019 - one instance for a call
    def state_codes(self, modality: str) -> np.ndarray:
        """Return the modality's value in each state, as a number; 0 everywhere if it does not express the factor."""
        codes = np.zeros(len(self.states), dtype=np.int64)
        for column, (other, _) in enumerate(self.names):
            if other == modality:
                codes = codes * len(self.options[column]) + self.states[:, column]
        return codes

    def clip_code(self, clip: MiniatureClip, modality: str) -> int:
        """Return the value of a clip's modality, numbered as in [`state_codes`]."""
        code = 0
        for options, (other, name) in zip(self.options, self.names, strict=True):
            if other == modality:
                code = code * len(options) + options.index(clip.attributes[modality][name])
        return code


def _probabilities(clips: Sequence[MiniatureClip], modality: str, shared: float) -> np.ndarray:
    """Return a one-modality reader's probability that each caption (rows) is true of each clip (columns)."""
    factors = {name: _Factor(name, shared) for name in FACTORS}
    has = np.array([modality in clip.attributes for clip in clips])
    words = VOCABULARY | EVIDENCE
    factor_of: dict[tuple[str, ...], str] = {}
    codes = {}
    for name, factor in factors.items():
        factor_of |= dict.fromkeys(factor.names, name)
        # What the reader knows of each clip; 0 for a clip without the modality.
        codes[name] = np.zeros(len(clips), dtype=np.int64)
        for column in has.nonzero()[0]:
            codes[name][column] = factor.clip_code(clips[column], modality)

    found: dict[_Claims, np.ndarray] = {}
    for query in clips:
        if query.claims in found:
            continue
        # Claims on attributes of no factor are independent of all else.
        row = np.where(has, 1.0, float(modality not in query.mentions))
        of_factors: dict[str, set[tuple[str, ...]]] = {}
        for claim in query.claims:
            factor = factor_of.get(claim[:2])
            if len(claim) == 2:
                factor = claim[0]
            if factor is not None:
                of_factors.setdefault(factor, set()).add(claim)
            elif claim[0] == modality:
                row *= [clip.attributes.get(modality, {}).get(claim[1]) == claim[2] for clip in clips]
            else:
                row /= len(words[claim[0]][claim[1]])

        # Claims on a factor: their probability given what the modality expresses, or without knowing it.
        for name, claims in of_factors.items():
            factor = factors[name]
            weights = factor.probabilities
            true = weights * factor.holds(frozenset(claims))
            own = factor.state_codes(modality)
            known = np.bincount(own, true) / np.bincount(own, weights)
            row *= np.where(has, known[codes[name]], true.sum())
        found[query.claims] = row
    return np.stack([found[query.claims] for query in clips])


def _shares(clips: Sequence[MiniatureClip], modality: str | None, shared: float) -> np.ndarray:
    """Return for each caption the probability that its own clip ranks first."""
    if modality is None:
        clips_of: dict[tuple[str, ...], np.ndarray] = {}
        for number, clip in enumerate(clips):
            for fact in clip.facts:
                clips_of.setdefault(fact, np.zeros(len(clips), dtype=bool))[number] = True
        # All clips of which the caption is true tie.
        ties = []
        for query in clips:
            are_true = [clips_of[claim] for claim in query.claims]
            ties.append(np.logical_and.reduce(are_true).sum())
        return 1 / np.array(ties)
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
    ceilings: dict[str, float | None] = {"all": float(shares.mean())}
    for kind in kinds:
        ceilings[kind] = None
        is_kind = np.array([clip.kind == kind for clip in clips])
        if is_kind.any():
            ceilings[kind] = float(shares[is_kind].mean())
    return ceilings


__all__ = ["recall_ceilings"]
