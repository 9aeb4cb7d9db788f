"""What a joint score gains over the strongest of its own pathways, as a module of `evaluate`."""

import datasets
import evaluate
import numpy as np

_DESCRIPTION = """\
Aggregation gain: recall at 1 of a joint multimodal score minus that of the strongest single-modality pathway of the
same model, in points. Positive where combining modalities helps, negative where it loses what one modality knows.
"""

_KWARGS_DESCRIPTION = """
Args:
    predictions (`list` of `list[float]`): for each query its joint score with every candidate, higher is better;
        `-inf` for a candidate that cannot be scored.
    references (`list` of `int`, or of `list[int]`): the relevant candidate of each query, or all of them, as positions
        in its scores, counted from 0.
    pathways (`dict[str, list]`): for each modality its own scores, of the same shape as `predictions`.

Returns:
    `dict`: `aggregation_gain` in points, `joint_recall_at_1` in percent, `best_pathway` (its name; of equally strong
    ones the first) and `best_pathway_recall_at_1` in percent.

Raises:
    ValueError: there is no pathway, shapes differ, a reference is not a candidate, a query has no relevant candidate,
        or a score is NaN.
"""

_CITATION = """\
@article{mehrish2026scalar,
  title  = {Query-Conditioned Spherical Centroid Aggregation for Multimodal Retrieval},
  author = {Mehrish, Ambuj and Nag, Anindya and Vascon, Sebastiano},
  year   = {2026}
}
"""


def _matrix(scores, name):
    lengths = sorted(set(map(len, scores)))
    if len(lengths) != 1:
        raise ValueError(f"Every query needs a score for every candidate; {name} has rows of {lengths}.")
    matrix = np.stack([np.asarray(row, dtype=np.float64) for row in scores])
    if np.isnan(matrix).any():
        rows = np.isnan(matrix).any(axis=1).nonzero()[0].tolist()[:10]
        raise ValueError(f"{name} has NaN in query rows {rows}. Give a candidate that cannot be scored -inf.")
    return matrix


def _relevant_candidates(references, shape):
    relevant = np.zeros(shape, dtype=bool)
    for row, columns in enumerate(references):
        columns = np.atleast_1d(columns)
        if not columns.size or columns.min() < 0 or columns.max() >= shape[1]:
            raise ValueError(
                f"`references` must name at least one of the {shape[1]} candidates per query, counted from 0; query "
                f"{row} has {columns.tolist()}."
            )
        relevant[row, columns] = True
    return relevant


def _recall_at_1(scores, relevant):
    # An irrelevant candidate with the score of the best relevant one comes before it.
    best_relevant = np.where(relevant, scores, -np.inf).max(axis=1)
    best_irrelevant = np.where(relevant, -np.inf, scores).max(axis=1)
    return 100 * float(((best_relevant > best_irrelevant) | relevant.all(axis=1)).mean())


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _KWARGS_DESCRIPTION)
class AggregationGain(evaluate.Metric):
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

    def _compute(self, predictions, references, pathways):
        if not pathways:
            raise ValueError("`pathways` is empty; expected the scores of at least one modality by name.")
        joint = _matrix(predictions, "`predictions`")
        relevant = _relevant_candidates(references, joint.shape)
        # R@1 of each pathway, on the same queries and candidates.
        recalls = {}
        for name, scores in pathways.items():
            matrix = _matrix(scores, f"pathway {name!r}")
            if matrix.shape != joint.shape:
                raise ValueError(f"Expected scores of pathway {name!r} of shape {joint.shape}, got {matrix.shape}.")
            recalls[name] = _recall_at_1(matrix, relevant)
        # Against the strongest of them, in points.
        best = max(recalls, key=recalls.get)
        joint_recall = _recall_at_1(joint, relevant)
        return {
            "aggregation_gain": joint_recall - recalls[best],
            "joint_recall_at_1": joint_recall,
            "best_pathway": best,
            "best_pathway_recall_at_1": recalls[best],
        }
