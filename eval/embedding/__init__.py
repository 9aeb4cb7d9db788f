"""From a benchmark, or saved vectors of any model, to embeddings with what is relevant to what."""
