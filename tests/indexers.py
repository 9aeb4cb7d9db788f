"""An indexer of a model that is loaded already."""

from typing import Any

from scalar_retrieval.gallery.decoding import tolerant
from scalar_retrieval.gallery.gallery import GalleryWriter
from scalar_retrieval.search.indexing import Indexer
from scalar_retrieval.search.setup import Loaded


def make_indexer(
    writer: GalleryWriter,
    model: Any,
    processor: Any,
    recognizer: Any = None,
    line_reader: Any = None,
    **options: Any,
) -> Indexer:
    loaded = Loaded(model, processor, recognizer, line_reader)
    makers = {"subtitle": recognizer, "screen": line_reader}
    recognised = [name for name, maker in makers.items() if maker is not None]
    return Indexer(writer, lambda: loaded, tolerant(processor).reader, recognised=recognised, **options)
