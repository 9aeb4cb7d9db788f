"""The miniature benchmark: small real video files whose modalities partly overlap, as those of real videos do.

The modalities of a clip can express its subject, its tempo and its scene together. How often they do is a parameter;
at 0 they are independent. Captions describe one modality, several, or what they share, so the modality that answers a
query depends on the query; some clips lack a track. A set can have further evidence, a title and words on the screen.
None of this is in the paper. A set is a function of its settings: `clips.draw_split` draws the content of every clip,
`rendering.render` writes one file, `generation.generate` a whole set.

This module is the plugin that registers the benchmark: `--plugin evidence.miniature`.
"""

from scalar_retrieval.eval.benchmarks.registry import register_benchmark

register_benchmark("miniature", "evidence.miniature.benchmark")
register_benchmark("miniature_classes", "evidence.miniature.benchmark")
