"""Rates of missing modalities: which fractions of the clips lose one. Imports nothing, for settings and `--help`."""

RATES = (0.0, 0.25, 0.5, 0.75, 0.9)
"""Those of the paper's Table 3."""


def check_rate(rate: float) -> None:
    """Raise a ValueError unless `rate` is a fraction between 0 and 1."""
    if not 0 <= rate <= 1:
        raise ValueError(f"`rate` is the fraction of clips that lose a modality, between 0 and 1; got {rate!r}.")


__all__ = ["RATES", "check_rate"]
