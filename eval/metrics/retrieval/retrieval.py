"""Recall, mean average precision, nDCG and ranks of a score matrix, as a module of `evaluate`."""

import datasets
import evaluate
import numpy as np
import torch

from .ranking import relevant_ranks, retrieval_metrics

_DESCRIPTION = """\
Ranks candidates by score for each query and summarises where the relevant ones are: recall, mean average precision,
nDCG, median and mean rank. Several candidates may be relevant to a query. Ties count against the scores: of candidates
that score the same, the irrelevant ones come first.
"""

_KWARGS_DESCRIPTION = """
Args:
    predictions (`list` of `list[float]`): for each query its score with every candidate, higher is better; `-inf` for
        a candidate that cannot be scored. The same candidates in the same order for every query.
    references (`list` of `int`, or of `list[int]`): the relevant candidate of each query, or all of them, as positions
        in its scores, counted from 0.
    k (`Sequence[int]`, defaults to `(1, 5, 10)`): depths of the recall.

Returns:
    `dict`: `recall_at_{k}`, `mean_average_precision` and `ndcg_at_10` in percent (0 to 100), `median_rank`,
    `mean_rank` (both of the first relevant candidate, from 1) and `num_queries`.

Raises:
    ValueError: queries have different numbers of scores, a reference is not a candidate or is repeated, a query has no
        relevant candidate, a score is NaN, or `k` holds something that is not a depth.
"""

_CITATION = """\
@article{mehrish2026scalar,
  title  = {Query-Conditioned Spherical Centroid Aggregation for Multimodal Retrieval},
  author = {Mehrish, Ambuj and Nag, Anindya and Vascon, Sebastiano},
  year   = {2026}
}
"""


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _KWARGS_DESCRIPTION)
class Retrieval(evaluate.Metric):
    def _info(self):
        scores = datasets.Sequence(datasets.Value("float64"))
        relevant = datasets.Value("int64")
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_KWARGS_DESCRIPTION,
            features=[
                datasets.Features({"predictions": scores, "references": datasets.Sequence(relevant)}),
                datasets.Features({"predictions": scores, "references": relevant}),
            ],
        )

    def _compute(self, predictions, references, k=(1, 5, 10)):
        lengths = sorted(set(map(len, predictions)))
        if len(lengths) != 1:
            raise ValueError(f"Every query needs a score for every candidate; `predictions` has rows of {lengths}.")
        # Pairs (P, 2) of a row and a column, from the relevant candidates of each query.
        relevant = list(map(np.atleast_1d, references))
        sizes = torch.tensor(list(map(len, relevant)))
        rows = torch.arange(len(relevant)).repeat_interleave(sizes)
        columns = torch.from_numpy(np.concatenate(relevant).astype(np.int64))
        scores = torch.from_numpy(np.stack(list(predictions)))
        return retrieval_metrics(relevant_ranks(scores, torch.stack([rows, columns], dim=1)), rows, k)
