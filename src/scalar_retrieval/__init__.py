"""
Text-to-video retrieval over video, audio and subtitles by query-conditioned spherical centroids.

All public names are here. Each is imported on first access, with what it needs and no more.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .eval.embedding.embeddings import Embeddings
    from .eval.run import evaluate
    from .gallery.filters import Filter
    from .gallery.gallery import Gallery
    from .gallery.hits import Hits
    from .hub_cards.publish import publish
    from .modeling_scalar import ScalarConfig, ScalarModel, ScalarProcessor, load_model
    from .modeling_scalar.scores_scalar import query_weights, register_method, retrieval_scores
    from .search.index_folder import index
    from .trainer.objectives import Objective
    from .trainer.scalar_trainer import ScalarTrainer
    from .trainer.training_args import ScalarTrainingArguments

_PLACES = {
    "Embeddings": "eval.embedding.embeddings",
    "Filter": "gallery.filters",
    "Gallery": "gallery.gallery",
    "Hits": "gallery.hits",
    "Objective": "trainer.objectives",
    "ScalarConfig": "modeling_scalar",
    "ScalarModel": "modeling_scalar",
    "ScalarProcessor": "modeling_scalar",
    "ScalarTrainer": "trainer.scalar_trainer",
    "ScalarTrainingArguments": "trainer.training_args",
    "evaluate": "eval.run",
    "index": "search.index_folder",
    "load_model": "modeling_scalar",
    "publish": "hub_cards.publish",
    "query_weights": "modeling_scalar.scores_scalar",
    "register_method": "modeling_scalar.scores_scalar",
    "retrieval_scores": "modeling_scalar.scores_scalar",
}

# The rooms stand here as links. A checkout without links, as on Windows, holds files in their place.
if not Path(__file__).with_name("commands").is_dir():
    __path__.append(str(Path(__file__).resolve().parents[2]))

if not TYPE_CHECKING:  # which would take any name for one of these

    def __getattr__(name: str) -> Any:
        if name not in _PLACES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from .commands.extras import naming_extras

        with naming_extras():
            module = import_module(f".{_PLACES[name]}", __name__)
        globals()[name] = getattr(module, name)
        return globals()[name]


def __dir__() -> list[str]:
    return __all__


__all__ = [
    "Embeddings",
    "Filter",
    "Gallery",
    "Hits",
    "Objective",
    "ScalarConfig",
    "ScalarModel",
    "ScalarProcessor",
    "ScalarTrainer",
    "ScalarTrainingArguments",
    "evaluate",
    "index",
    "load_model",
    "publish",
    "query_weights",
    "register_method",
    "retrieval_scores",
]
