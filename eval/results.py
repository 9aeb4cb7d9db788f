"""The types of an evaluation's results."""

from typing import Any, TypedDict

Metrics = dict[str, float | None]
"""Metrics by name, such as `text_to_video_recall_at_1`, in percent; `None` where one is not defined."""


class RateResults(TypedDict):
    """What is measured at one rate of missing modalities, see
    [`~scalar_retrieval.eval.protocol.first_stage.evaluate_embeddings`]."""

    rate: float
    num_masked_clips: int
    presence: dict[str, int]
    methods: dict[str, Metrics]
    best_pathway: dict[str, Any]
    aggregation_gain: dict[str, float]
    mean_weight: dict[str, float]
    decided: dict[str, int]


class FirstStageResults(TypedDict, total=False):
    """The first stage, see [`~scalar_retrieval.eval.protocol.first_stage.measure_first_stage`]."""

    num_queries: int
    num_clips: int
    num_pairs: int
    mask_seed: int
    query_temperature: float
    tie_rule: str
    rates: list[RateResults]
    ladder: list[dict[str, Any]]
    differences: list[dict[str, Any]]
    kinds: list[dict[str, Any]]


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
    score: dict[str, Any]
    retrieval: FirstStageResults
    two_stage: list[dict[str, Any]]
    two_stage_fusion: dict[str, Any] | None
    two_stage_diagnostic: dict[str, Any] | None
    gallery: dict[str, Any]
    left_out: list[str]
    problems: list[str]
    embedded: dict[str, Any]
    versions: dict[str, str | None]
    source: dict[str, Any] | None
    date: str
    arguments: dict[str, Any]


__all__ = ["FirstStageResults", "Metrics", "RateResults", "Results"]
