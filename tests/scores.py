"""The scores that travel with a model, whatever else evaluation or a plugin has registered by now."""

from scalar_retrieval.modeling_scalar import scores_scalar

METHODS = {
    name: method for name, method in scores_scalar.METHODS.items() if method.score.__module__ == scores_scalar.__name__
}
