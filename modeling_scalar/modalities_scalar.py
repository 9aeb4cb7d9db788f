"""Names of modalities and of the options of scores, for programs that read metadata without loading torch."""

PAPER_MODALITIES = ("video", "audio", "subtitle")
"""The default names of three modalities."""

CALIBRATION = {"modality_scale": 1.0, "modality_offset": 0.0}
"""The options of [`~modeling_scalar.scores_scalar.ScoreOptions`] and configurations that calibrate the cosines of each
modality, with defaults."""

WEIGHING = ("query_temperature", *CALIBRATION)
"""The keyword arguments that affect a query's weights, in addition to embeddings."""


def kind_of(modality: str) -> str:
    """Return the kind of a modality by its name: `"video"` and `"audio"` are their own, others `"text"`."""
    return modality if modality in ("video", "audio") else "text"


__all__ = ["CALIBRATION", "PAPER_MODALITIES", "WEIGHING", "kind_of"]
