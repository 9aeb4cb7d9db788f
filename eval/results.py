"""The types of an evaluation's results."""

from typing import Any, NotRequired, TypedDict

Metrics = dict[str, float | None]
"""Metrics by name, such as `text_to_video_recall_at_1`, in percent; `None` where one is not defined."""
Entry = dict[str, Any]
Counts = dict[str, int]
Points = dict[str, float]


class RateResults(TypedDict):
    """What is measured at one rate of missing modalities, see
    [`~scalar_retrieval.eval.protocol.first_stage.evaluate_embeddings`]."""

    rate: float
    num_masked_clips: int
    presence: Counts
    methods: dict[str, Metrics]
    best_pathway: Entry
    aggregation_gain: Points
    mean_weight: Points
    decided: Counts


class FirstStageResults(TypedDict):
    """The first stage, see [`~scalar_retrieval.eval.protocol.first_stage.measure_first_stage`]."""

    num_queries: int
    num_clips: int
    num_pairs: int
    mask_seed: int
    query_temperature: float
    tie_rule: str
    rates: list[RateResults]
    ladder: list[Entry]
    differences: list[Entry]
    kinds: NotRequired[list[Entry]]


class Results(TypedDict):
    """
    The content of `results.json`: in `retrieval` the first stage, in `two_stage` the second. `embedded` describes how
    the embeddings were computed; `versions`, `source` and `date` how the metrics were; `arguments` repeat them.
    """

    label: str
    seed: int | None
    model: str
    benchmark: str
    split: str
    trained_on: int | None
    task: str
    score: Entry
    retrieval: FirstStageResults
    two_stage: list[Entry]
    two_stage_fusion: Entry | None
    two_stage_diagnostic: Entry | None
    gallery: Entry
    left_out: list[str]
    problems: list[str]
    embedded: Entry
    versions: dict[str, str | None]
    source: Entry | None
    date: str
    arguments: Entry


__all__ = ["FirstStageResults", "Metrics", "RateResults", "Results"]
