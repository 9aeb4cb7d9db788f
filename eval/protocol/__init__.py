"""How a model is measured: masks of missing modalities, both stages of retrieval, classes, statistics."""
