"""Folds for cross-validation: a query and the clips that it describes are never in different ones.

Shape letters: Q queries, V clips.
"""

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from ..embedding.embeddings import Embeddings

SEED = 0
"""Of the folds: with the same one, clips are dealt alike."""


def groups_of(embeddings: Embeddings) -> tuple[np.ndarray, np.ndarray]:
    """Return the groups of queries (Q,) and clips (V,) that pairs connect; clips without queries have group -1."""
    queries, clips = embeddings.pairs.numpy().T
    num_queries = len(embeddings.query_ids)
    # One graph of queries and, after them, clips; a group is a connected component.
    size = num_queries + len(embeddings.clip_ids)
    graph = coo_array((np.ones(len(queries)), (queries, clips + num_queries)), shape=(size, size))
    labels = connected_components(graph, directed=False)[1]
    of_queries = labels[:num_queries]
    of_clips = labels[num_queries:]
    return of_queries, np.where(np.isin(of_clips, of_queries), of_clips, -1)


def deal(
    embeddings: Embeddings, num_folds: int, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """
    Deal clips into folds, together with all queries that describe them and all other clips of these queries.

    Returns:
        Each query's group of connected queries and clips, and its fold; each clip's fold, -1 if nothing describes it.

    Raises:
        ValueError: there are fewer than two groups for a fold.
    """
    # Groups are dealt in a random order, one to each fold in turn.
    of_queries, of_clips = groups_of(embeddings)
    names = np.unique(of_queries)
    if len(names) < 2 * num_folds:
        raise ValueError(
            f"Calibration in {num_folds} folds needs at least {2 * num_folds} clips with queries of their own, got "
            f"{len(names)}. Give more clips, or fewer folds."
        )
    folds = np.full(max(of_queries.max(), of_clips.max()) + 2, -1)  # by group; the last one is that of group -1
    folds[generator.permutation(names)] = np.arange(len(names)) % num_folds
    return of_queries, folds[of_queries], folds[of_clips]


def by_group(values: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Return the mean of each group: captions of one clip are not independent queries."""
    _, places, counts = np.unique(groups, return_inverse=True, return_counts=True)
    return np.bincount(places, values) / counts


__all__ = ["SEED", "by_group", "deal", "groups_of"]
