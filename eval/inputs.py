"""What is measured: a model with a split of a benchmark, or embeddings, or both. Checked when it is described.

Imports nothing slow: what is wrong is reported before the libraries are imported that take seconds.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scalar_retrieval.gallery.gallery import Gallery

    from .embedding.embeddings import Embeddings

AnyPath = str | os.PathLike[str]


def num_readers() -> int:
    """Return the number of threads that read clips ahead: one for each core of this process's share of the machine, at
    most eight."""
    if hasattr(os, "sched_getaffinity"):
        num_cores = len(os.sched_getaffinity(0))
    else:
        num_cores = os.cpu_count() or 1
    # Several processes share a machine when a model is trained on several GPUs.
    num_processes = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    return min(8, max(1, num_cores // num_processes))


def check_source(model: AnyPath | None, benchmark: str, root: AnyPath) -> None:
    """Raise an error if there is no such model, benchmark or root; a ValueError or FileNotFoundError names it."""
    from scalar_retrieval.modeling_scalar.model_identity import identify

    from .benchmarks.registry import check_benchmark

    check_benchmark(benchmark, root)
    if model is not None:
        identify(model)


def check_results(paths: Sequence[AnyPath]) -> None:
    """Raise a FileNotFoundError that names the first file or folder with results that does not exist."""
    for path in paths:
        if not Path(path).exists():
            raise FileNotFoundError(f"{path} does not exist; expected a results.json or a folder that contains some.")


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """
    What is measured, and how clips are read.

    Args:
        model (`str`, *optional*), benchmark (`str`, *optional*), root (`str`, *optional*): a folder or Hub name, the
            name of a benchmark, and its folder; all three or none.
        embeddings (`str`, [`~scalar_retrieval.gallery.gallery.Gallery`] or
            [`~scalar_retrieval.eval.embedding.embeddings.Embeddings`], *optional*): in place of the model and the
            benchmark, or with them for what reads clips or captions. A gallery may lack queries, as those of
            `scalar index` do: the benchmark then gives the captions of its clips.
        split (`str`), captions (`str`, *optional*), columns (`Mapping`, *optional*), holdout (`float`, *optional*),
            words_of (`str`, *optional*), on_missing (`str`): of
            [`~scalar_retrieval.eval.benchmarks.registry.load_split`].
        on_error (`str`): `"raise"` stops at unreadable files, `"missing"` counts them as absent.
        batch_size (`int`): clips or captions per forward pass.
        progress (`bool`): show progress bars.

    Raises:
        TypeError: the model is not named.
        ValueError: they contradict each other, or one is wrong.
        FileNotFoundError: one does not exist.
    """

    model: AnyPath | None
    benchmark: str | None
    root: AnyPath | None
    embeddings: "AnyPath | Gallery | Embeddings | None" = None
    split: str = "test"
    captions: str | None = None
    columns: Mapping[str, str] | None = None
    holdout: float | None = None
    words_of: AnyPath | None = None
    on_missing: str = "raise"
    on_error: str = "raise"
    batch_size: int = 32
    progress: bool = True

    def __post_init__(self) -> None:
        # A model and a benchmark, or embeddings, or both.
        source = (self.model, self.benchmark, self.root)
        num_given = 3 - source.count(None)
        if self.model is not None and not isinstance(self.model, str | os.PathLike):
            raise TypeError(
                f"`model` must be a folder or a name on the Hub, got a {type(self.model).__name__}: results name a "
                "model by the hash of its files. Save it and its processor with `save_pretrained` first."
            )
        if 0 < num_given < 3:
            raise ValueError(f"A model, a benchmark and its root belong together, got {list(source)}.")
        if self.embeddings is None and num_given == 0:
            raise ValueError("Expected a model, a benchmark and its root, or embeddings instead of them.")
        # With a model, what it reads; without one, that nothing has to be read.
        if self.model is None:
            unused = [name for name, value in self.settings.items() if value not in (None, "raise")]
            if unused:
                raise ValueError(
                    f"{unused} are settings of reading a benchmark: give a model, a benchmark and its root too."
                )
        else:
            check_source(*source)
        self._check_embeddings()

    def _check_embeddings(self) -> None:
        if self.embeddings is None:
            return
        if isinstance(self.embeddings, str | os.PathLike):
            from scalar_retrieval.gallery.store.places import find_gallery

            find_gallery(self.embeddings)
            return
        # Whoever has such an object has imported torch.
        from scalar_retrieval.gallery.gallery import Gallery

        from .embedding.embeddings import Embeddings

        if not isinstance(self.embeddings, Gallery | Embeddings):
            raise TypeError(
                "`embeddings` must be the folder or address of a gallery, a `Gallery` or `Embeddings`, got a "
                f"{type(self.embeddings).__name__}."
            )

    def check_queries(self) -> None:
        """Refuse a stored gallery that cannot be measured by its own queries, unless a benchmark gives captions."""
        if self.benchmark is None and isinstance(self.embeddings, str | os.PathLike):
            from scalar_retrieval.gallery.store.contents import Contents

            Contents.open(self.embeddings).check_queries()

    @property
    def settings(self) -> dict[str, Any]:
        """How the split is read: keyword arguments of `load_split`."""
        names = ("captions", "on_missing", "columns", "holdout", "words_of")
        return {name: getattr(self, name) for name in names}

    @property
    def place(self) -> str | None:
        """Where the embeddings are: a folder or an address; `None` in memory, and if none are given."""
        place = getattr(self.embeddings, "path", self.embeddings)  # of a gallery that is open
        if isinstance(place, str | os.PathLike):
            return os.fspath(place)
        return None

    @property
    def name(self) -> str:
        """Stands for what the metadata of embeddings do not name: the last part of their place, or of the model's."""
        return Path(self.place or self.model or "embeddings").stem

    def reading(self) -> dict[str, Any]:
        """Return how clips are read, as keyword arguments of both stages."""
        return {"batch_size": self.batch_size, "progress": self.progress, "num_workers": num_readers()}


__all__ = ["AnyPath", "Inputs", "check_results", "check_source", "num_readers"]
