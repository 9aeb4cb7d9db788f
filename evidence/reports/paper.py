"""The published values of SCALAR's tables, in percent, to show next to measured ones and never mix with them.

Every table maps a benchmark to the paper's rows for it, and a row to its numbers from left to right; `None` is what
the paper leaves out. Aggregation gains (Table 4) and margins are differences of these numbers.
"""

import statistics
from collections.abc import Mapping

BENCHMARKS = {
    "msrvtt": "MSR-VTT",
    "didemo": "DiDeMo",
    "activitynet": "ActivityNet",
    "vatex": "VATEX",
    "audiocaps": "AudioCaps",
    "vggsound": "VGGSound-5K",
}
"""Benchmarks by the names of the paper, in its order."""

VARIANTS = {
    "scalar": "SCALAR",
    "scalar_uniform": "SCALAR, uniform weights",
    "scalar_full_ft": "SCALAR, full fine-tuning",
    "no_masked_views": "w/o masked training views",
    "no_cross_arity": "w/o L_mask",
    "no_semantic": "w/o L_sem",
    "no_uniformity": "w/o L_unif",
    "gram": "GRAM",
    "pmrl": "PMRL",
    "hypergram": "HyperGRAM",
}
"""Trained models that the paper compares, by their names there; the ablations are those of Table 5."""

REFERENCES = {
    "umt_l": "UMT-L (25M)",
    "languagebind": "LanguageBind",
    "mplug_2": "mPLUG-2",
    "videoprism_b": "VideoPrism-b",
    "vast": "VAST (27M)",
    "gram_published": "GRAM, as published",
}
"""Rows that the paper takes from other publications (§), not comparable across environments."""

RATES = (0.0, 0.25, 0.5, 0.75, 0.9)
"""Masking rates of Tables 3 and S4."""

Table = Mapping[str, Mapping[str, tuple[float | None, ...]]]
"""Numbers by benchmark and variant."""

# Tables 1 and 2: both stages, text-to-video R@1 and R@10, and on MSR-VTT video-to-text R@1 and R@10.
TWO_STAGE: Table = {
    "msrvtt": {
        "umt_l": (40.7, 71.8, None, None),
        "languagebind": (44.8, 78.7, 40.9, 75.7),
        "mplug_2": (47.1, 79.0, None, None),
        "videoprism_b": (51.4, None, 50.2, None),
        "vast": (50.7, 74.4, None, None),
        "gram": (52.5, 82.5, 50.5, 81.2),
        "hypergram": (54.0, 82.0, 51.9, 81.1),
        "pmrl": (54.3, 79.5, 52.9, 79.4),
        "scalar": (54.6, 84.9, 50.5, 78.7),
        "scalar_full_ft": (50.4, 82.1, 50.5, 80.4),
    },
    "didemo": {
        "umt_l": (48.6, 79.0),
        "languagebind": (39.9, 74.6),
        "mplug_2": (45.7, 71.1),
        "vast": (49.5, 76.9),
        "gram": (50.7, 76.5),
        "hypergram": (48.9, 76.7),
        "pmrl": (52.5, 79.9),
        "scalar": (51.2, 78.9),
        "scalar_full_ft": (49.0, 75.7),
    },
    "activitynet": {
        "umt_l": (41.9, None),
        "languagebind": (41.0, 80.0),
        "videoprism_b": (49.6, None),
        "vast": (51.4, 83.6),
        "gram": (56.3, 87.0),
        "hypergram": (53.7, 86.2),
        "pmrl": (54.1, 85.3),
        "scalar": (55.9, 87.2),
        "scalar_full_ft": (53.4, 85.7),
    },
    "vatex": {
        "videoprism_b": (62.5, None),
        "vast": (82.1, 96.8),
        "gram": (90.0, 100.0),
        "hypergram": (89.8, 100.0),
        "pmrl": (89.6, 98.8),
        "scalar": (90.6, 99.6),
        "scalar_full_ft": (89.3, 99.3),
    },
    "audiocaps": {
        "gram": (32.2, 74.3),
        "pmrl": (34.4, 76.3),
        "scalar": (35.0, 74.9),
        "scalar_full_ft": (33.0, 73.9),
    },
}

# Table 3: text-to-video R@1 of the first stage at each of the masking rates.
MISSING: Table = {
    "msrvtt": {"scalar": (45.2, 42.1, 39.2, 36.3, 34.5), "gram": (38.7, 36.6, 32.4, 29.9, 27.9)},
    "didemo": {"scalar": (34.3, 31.1, 27.5, 24.0, 22.5), "gram": (28.2, 24.8, 22.0, 19.7, 18.1)},
    "activitynet": {"scalar": (34.4, 30.3, 27.4, 24.7, 23.0), "gram": (31.0, 27.1, 23.6, 20.8, 19.5)},
    "vatex": {"scalar": (81.7, 78.7, 71.5, 64.0, 61.0), "gram": (75.6, 69.8, 61.7, 53.1, 51.5)},
    "audiocaps": {"scalar": (27.1, 23.7, 20.5, 16.8, 13.9), "gram": (22.9, 20.3, 17.0, 12.2, 10.1)},
}

# Table S3: text-to-video R@1 of the strongest single pathway and of the joint score; Table 4 is their difference.
COMPONENTS: Table = {
    "msrvtt": {
        "gram": (42.1, 38.7),
        "pmrl": (43.7, 31.5),
        "hypergram": (42.5, 39.1),
        "scalar_uniform": (41.1, 34.1),
        "scalar": (41.2, 45.2),
    },
    "didemo": {
        "gram": (32.0, 28.2),
        "pmrl": (38.3, 28.7),
        "hypergram": (32.1, 32.0),
        "scalar_uniform": (34.5, 27.0),
        "scalar": (35.4, 34.3),
    },
    "activitynet": {
        "gram": (36.8, 31.0),
        "pmrl": (39.8, 30.0),
        "hypergram": (36.3, 34.3),
        "scalar_uniform": (30.0, 26.0),
        "scalar": (34.1, 34.4),
    },
    "vatex": {
        "gram": (77.5, 75.6),
        "pmrl": (81.2, 53.6),
        "hypergram": (78.0, 78.0),
        "scalar_uniform": (80.3, 69.1),
        "scalar": (81.2, 81.7),
    },
    "audiocaps": {
        "gram": (29.0, 22.9),
        "pmrl": (32.0, 33.4),
        "scalar_uniform": (28.6, 28.8),
        "scalar": (25.7, 27.1),
    },
}

# Table 5: two-stage text-to-video R@1 of the full objective and without one of its components.
ABLATION: Table = {
    "msrvtt": {
        "scalar": (54.8,),
        "no_masked_views": (53.8,),
        "no_cross_arity": (54.8,),
        "no_semantic": (54.2,),
        "no_uniformity": (54.2,),
    },
    "didemo": {
        "scalar": (51.5,),
        "no_masked_views": (50.4,),
        "no_cross_arity": (51.0,),
        "no_semantic": (50.2,),
        "no_uniformity": (51.2,),
    },
    "activitynet": {
        "scalar": (55.8,),
        "no_masked_views": (54.7,),
        "no_cross_arity": (55.8,),
        "no_semantic": (56.3,),
        "no_uniformity": (56.0,),
    },
    "vatex": {
        "scalar": (90.5,),
        "no_masked_views": (90.5,),
        "no_cross_arity": (90.3,),
        "no_semantic": (91.2,),
        "no_uniformity": (90.5,),
    },
    "audiocaps": {
        "scalar": (35.2,),
        "no_masked_views": (34.5,),
        "no_cross_arity": (35.4,),
        "no_semantic": (35.8,),
        "no_uniformity": (35.1,),
    },
}

# Table 5, its last columns: change of the mean two-stage R@1, of the mean gain, and of the mean gain at 90 % masking.
# For the full objective, the gains themselves.
ABLATION_MEANS: Mapping[str, tuple[float | None, ...]] = {
    "scalar": (None, 1.0, -0.5),
    "no_masked_views": (-0.8, -6.5, -7.1),
    "no_cross_arity": (-0.1, -1.5, 0.0),
    "no_semantic": (-0.0, -0.9, None),
    "no_uniformity": (-0.2, -0.4, None),
}

# Table S4: two-stage text-to-video R@1 at each of the masking rates, and of the video alone at 90 %.
TWO_STAGE_MISSING: Table = {
    "msrvtt": {"scalar": (54.8, 47.8, 41.1, 37.0, 33.2, 32.1), "gram": (52.5, 47.0, 40.9, 35.4, 32.9, 32.8)},
    "didemo": {"scalar": (51.3, 44.2, 38.9, 32.1, 29.5, 23.2), "gram": (50.7, 45.0, 39.8, 32.7, 29.8, 21.1)},
    "activitynet": {"scalar": (55.8, 47.9, 40.0, 33.8, 30.7, 23.7), "gram": (56.3, 48.3, 41.4, 35.5, 32.3, 24.8)},
    "vatex": {"scalar": (90.5, 85.2, 73.3, 61.9, 57.3, 58.5), "gram": (90.0, 82.8, 72.9, 61.9, 57.8, 58.0)},
    "audiocaps": {"scalar": (35.2, 24.6, 19.2, 13.2, 9.9, 10.2), "gram": (32.2, 26.0, 21.0, 15.5, 11.4, 9.5)},
}

# Table S5: text-to-video R@1 of the first stage with video; video and audio; video, audio and subtitle.
LADDER: Table = {
    "msrvtt": {"scalar": (41.2, 42.1, 45.2), "gram": (42.1, 39.7, 38.7)},
    "vatex": {"scalar": (81.2, 81.9, 81.7), "gram": (77.5, 75.6, 75.6)},
}

# Table S6: Acc@1 and Acc@10, class labels as queries, first stage: of the joint score, of the video, of the audio.
CLASSIFICATION: Table = {
    "vggsound": {
        "gram_published": (40.6, 78.1),
        "gram": (40.5, 77.3, 35.0, 68.4, 26.3, 66.4),
        "scalar": (34.9, 71.2, 31.3, 63.9, 27.0, 63.3),
        "scalar_uniform": (35.9, 72.7),
    },
}

# "Latent-Space Analysis" of the supplement: mean text-centroid cosine, and mean classwise silhouette of the audio.
LATENT: Table = {"vggsound": {"vast": (0.34, 0.21), "gram": (0.48, 0.26), "scalar": (0.44, 0.20)}}

# Table S8: mean and sample deviation of the two-stage text-to-video R@1 of three seeds, and the 95 % interval of the
# mean. The single runs shown with them are those of Tables 1 and 2.
SEEDS: Table = {
    "msrvtt": {"scalar": (54.6, 0.2, 54.1, 55.2)},
    "didemo": {"scalar": (51.2, 0.3, 50.6, 51.9)},
    "activitynet": {"scalar": (55.9, 0.2, 55.6, 56.3)},
    "vatex": {"scalar": (90.6, 0.1, 90.3, 90.9)},
    "audiocaps": {"scalar": (35.0, 0.4, 34.0, 36.0)},
}


def published(table: Table, benchmark: str, mean: bool = False) -> dict[str, tuple[float | None, ...]]:
    """
    Return the rows of a published table for one benchmark, each under a name that marks it as the paper's.

    Args:
        table (`Table`): a table of this module.
        benchmark (`str`): key of the benchmark.
        mean (`bool`): for a benchmark that the table lacks, return the mean over those it has. Rows taken from other
            publications have no mean.

    Returns:
        `dict` of row names to numbers, in the order of the paper; empty if there is nothing to show.
    """
    if benchmark in table:
        names = VARIANTS | REFERENCES
        return {f"paper: {names[variant]}": numbers for variant, numbers in table[benchmark].items()}
    if not mean:
        return {}
    rows = {}
    for variant, name in VARIANTS.items():
        found = [row[variant] for row in table.values() if variant in row]
        if not found:
            continue
        # Benchmarks may differ in their columns: video to text is published for only one.
        means = []
        for column in zip(*found, strict=False):
            mean = None
            if None not in column:
                mean = statistics.mean(column)
            means.append(mean)
        rows[f"paper, mean of {len(found)}: {name}"] = tuple(means)
    return rows


__all__ = [
    "ABLATION",
    "ABLATION_MEANS",
    "BENCHMARKS",
    "CLASSIFICATION",
    "COMPONENTS",
    "LADDER",
    "LATENT",
    "MISSING",
    "RATES",
    "REFERENCES",
    "SEEDS",
    "TWO_STAGE",
    "TWO_STAGE_MISSING",
    "VARIANTS",
    "published",
]
