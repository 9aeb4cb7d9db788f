"""A [`~scalar_retrieval.modeling_scalar.ScalarModel`] for the video tasks of mteb (2.20 or newer).

    search = ScalarSearch.from_pretrained("runs/scalar", name="organisation/scalar", license="apache-2.0")
    mteb.evaluate(search, mteb.get_tasks(tasks=["MSRVTTT2V"]))

Its `mteb_model_meta` is complete, with a loader: registered with mteb, it is a model for `mteb run`.

A score that depends on the query is not a product of two vectors, so the model uses mteb's search interface: `index`
embeds the corpus, `search` returns the best documents of each query. Documents are texts, or clips of video, of audio
or of both; a clip of a corpus may also have a text, which is read as its subtitle. A query is one vector, of a text, a
video or an audio file; a query clip with several modalities can only rank texts. Texts are ranked for texts by their
cosine. mteb gives the audio of a video as a separate column: without it a clip has no audio here, whatever its file
contains.

The processor decodes all videos and audio files, also where mteb would use torchcodec: frames are those of our own
protocol. mteb orders documents of equal score by their identifiers.
"""

import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Audio, Dataset, Video
from mteb.models.model_meta import ModelMeta, ScoringFunction
from mteb.types import PromptType
from tqdm.auto import tqdm
from transformers import PreTrainedModel, ProcessorMixin

from scalar_retrieval.gallery.decoding import sandboxed
from scalar_retrieval.gallery.embedding import Embedded, check_reading
from scalar_retrieval.gallery.second_stage.matching import check_depth, clip_views
from scalar_retrieval.modeling_scalar import load_model
from scalar_retrieval.modeling_scalar.media_scalar import resample
from scalar_retrieval.modeling_scalar.model_identity import device_of_name, identify
from scalar_retrieval.modeling_scalar.scores_scalar import retrieval_scores

from ..embedding.embed_dataset import embed_rows, embed_texts, problems_of
from ..protocol.second_stage import first_candidates, match_logits, two_stage_scores

_BLOCK = 256  # queries scored at once
_UNKNOWN = torch.zeros(0, 2, dtype=torch.long)  # mteb does not reveal which documents are relevant


@dataclass(eq=False)
class _Cell:
    """A video or an audio file in a data set, opened only when needed, so that a corpus is never held as a whole."""

    column: Dataset
    row: int
    name: str

    def __repr__(self) -> str:
        return f"<{self.name} in row {self.row}>"

    def open(self, folder: str) -> Any:
        """Return the input of a processor; bytes become a file in `folder`."""
        # A dictionary holds samples, bytes or a path; a path gives bytes their suffix.
        value = self.column[self.row][self.name]
        path = None
        if isinstance(value, dict):
            if value.get("array") is not None:
                return resample(np.atleast_2d(value["array"]), int(value["sampling_rate"]))
            path = value.get("path")
            value = value.get("bytes") or path
        if isinstance(value, bytes):
            file = Path(folder, self.name).with_suffix(Path(path or "").suffix)
            file.write_bytes(value)
            return file
        return value


class _CellProcessor:
    """A processor that reads the cells of a data set like files."""

    def __init__(self, processor: ProcessorMixin) -> None:
        self.processor = sandboxed(processor)
        self.reader = self.processor.reader
        self.modalities = self.processor.modalities

    def read_clip(self, video: _Cell | None, audio: _Cell | None, subtitle: str | None, **options: Any) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            if video is not None:
                video = video.open(folder)
            if audio is not None:
                audio = audio.open(folder)
            return self.processor.read_clip(video, audio=audio, subtitle=subtitle, **options)

    def __call__(self, **inputs: Any) -> Any:
        return self.processor(**inputs)


@dataclass
class _Texts:
    """Texts, or query clips with a single modality, which have no texts."""

    ids: list[str]
    texts: list[str] | None
    embeds: torch.Tensor  # (texts, dim)


@dataclass
class _Gallery:
    ids: list[str]
    clips: list[dict[str, Any]]
    embeds: torch.Tensor  # (clips, M, dim)
    mask: torch.Tensor  # (clips, M)


def _cells(dataset: Dataset, name: str) -> list[_Cell | None]:
    if name not in dataset.column_names:
        return [None] * len(dataset)
    column = dataset.select_columns([name])
    feature = column.features[name]
    if isinstance(feature, (Audio, Video)) and feature.decode:
        column = column.cast_column(name, type(feature)(decode=False))  # bytes or a path, for our own decoder
    return [_Cell(column, row, name) for row in range(len(column))]


def _read_texts(dataset: Dataset) -> list[str]:
    """Return the text of each row, with its instruction after it and its title before it."""
    texts = []
    for text in dataset["text"]:
        # A conversation is one text, in mteb's format for models that read texts.
        if not isinstance(text, str):
            turns = [turn if isinstance(turn, str) else f"{turn['role']}: {turn['content']}" for turn in text]
            text = "; ".join(turns)
        texts.append(text)
    if "instruction" in dataset.column_names:  # models without support for instructions read them with the query
        for row, instruction in enumerate(dataset["instruction"]):
            texts[row] = f"{texts[row]} {instruction or ''}".strip()
    if "title" in dataset.column_names:  # as mteb joins them
        for row, title in enumerate(dataset["title"]):
            texts[row] = f"{title or ''} {texts[row]}".strip()
    return texts


def _num_embedding_parameters(model: PreTrainedModel) -> int | None:
    try:
        return model.get_input_embeddings().weight.numel()
    except NotImplementedError:  # from encoders without token embeddings, or that do not expose them
        return None


def _check_task(task_metadata: Any, modalities: Sequence[str]) -> None:
    """Raise a ValueError if a model with these modalities cannot do a task."""
    media = {"video", "audio"}
    name = task_metadata.name
    if "Retrieval" not in task_metadata.type and "Reranking" not in task_metadata.type:
        raise ValueError(f"The task {name} is one of {task_metadata.type}; retrieval and reranking can be scored.")
    queries = set(task_metadata.get_modalities(PromptType.query))
    documents = set(task_metadata.get_modalities(PromptType.document))
    # Texts and clips in both directions, or clips by one modality.
    is_known = queries | documents <= media | {"text"}
    is_ranked = len(queries) == 1 or (documents == {"text"} and "text" not in queries)
    if not (is_known and is_ranked):
        raise ValueError(
            f"The task {name} goes from {sorted(queries)} to {sorted(documents)}. This model ranks clips (video, "
            "audio, or both, in a corpus also with a text) and texts for a text, a video or an audio file, and texts "
            "for clips."
        )
    for side in (queries, documents):
        read = side & media
        if read and not read & set(modalities):
            raise ValueError(
                f"The task {name} needs {' or '.join(sorted(read))}; the model embeds {', '.join(modalities)}."
            )


class ScalarSearch:
    """
    mteb's search interface for a model and its processor.

    Args:
        model ([`~scalar_retrieval.modeling_scalar.ScalarModel`]): switched to evaluation mode; stays on its device.
        processor ([`~scalar_retrieval.modeling_scalar.ScalarProcessor`]): reads captions and clips, with its settings
            for testing.
        name (`str`): name of the model, `"organisation/name"`; mteb stores its results under it.
        rerank_depth (`int`, *optional*): number of documents per query that the cross-encoder reorders; default: none.
        score_options (`dict`, *optional*): keyword arguments of `retrieval_scores` and the method; by default those of
            the model.
        num_workers (`int`): as in [`embed_dataset`].
        meta: further fields of mteb's `ModelMeta`, such as `license`, `languages` (`["eng-Latn"]`), `release_date` or
            `training_datasets` (names of mteb's tasks); unknown by default.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        processor: ProcessorMixin,
        name: str,
        rerank_depth: int | None = None,
        score_options: dict[str, Any] | None = None,
        num_workers: int = 2,
        **meta: Any,
    ) -> None:
        check_reading(1, num_workers)
        if rerank_depth is not None:
            check_depth(rerank_depth)
            if not model.config.has_cross_attention:
                raise ValueError("`rerank_depth` needs a model whose text tower has cross-attention.")
        self.model = model.eval()
        self.processor = _CellProcessor(processor)
        self.rerank_depth = rerank_depth
        self.num_workers = num_workers
        if score_options is None:
            score_options = model.score_options()
        # Numbers rather than tensors: mteb writes them beside the results.
        self.score_options = {}
        for key, value in score_options.items():
            self.score_options[key] = value.item() if isinstance(value, torch.Tensor) else value
        self.problems: list[str] = []
        self.modalities = tuple(model.config.modalities)
        self._corpus: _Texts | _Gallery

        # What mteb records of a model; it separates results of different settings by `experiment_kwargs`.
        experiment = dict(self.score_options)
        if rerank_depth is not None:
            experiment["rerank_depth"] = rerank_depth
        inputs = ["text", *(name for name in ("video", "audio") if name in self.modalities)]
        fields = {
            "loader": None,
            "revision": None,
            "release_date": None,
            "languages": None,
            "n_parameters": model.num_parameters(),
            "n_embedding_parameters": _num_embedding_parameters(model),
            "memory_usage_mb": model.get_memory_footprint(return_buffers=False) / 2**20,
            "max_tokens": processor.max_text_length,
            "embed_dim": model.config.projection_dim,
            "license": None,
            "open_weights": None,
            "public_training_code": None,
            "public_training_data": None,
            "framework": ["PyTorch", "Transformers"],
            "similarity_fn_name": ScoringFunction.CUSTOM,
            "use_instructions": False,
            "training_datasets": None,
            "modalities": inputs,
            "experiment_kwargs": experiment,
        }
        self.mteb_model_meta = ModelMeta(name=name, **fields | meta)

    @classmethod
    def from_pretrained(
        cls,
        model_path: str | os.PathLike,
        name: str | None = None,
        device: str | torch.device | None = None,
        **options: Any,
    ) -> "ScalarSearch":
        """
        Load a model, and describe it so that mteb can load it again.

        Args:
            model_path (`str`): folder or Hub name of a model or adapter.
            name (`str`, *optional*): `"organisation/name"`; by default the Hub name, or `local/` and the folder's.
            device (`str` or `torch.device`, *optional*): by default the fastest there is.
            options: arguments of [`ScalarSearch`], further fields of `ModelMeta` among them.
        """
        # A folder has no page, and no name that others know; nor have encoders side by side.
        identity = identify(model_path).cached_if_offline()
        model, processor = load_model(model_path, device=device_of_name(device))
        default_name = identity.name
        reference = f"https://huggingface.co/{identity.name}"
        if identity.commit is None:
            default_name = f"local/{Path(identity.name).name}"
            reference = None
        fields = {
            "revision": identity.commit or identity.fingerprint[:40],
            "loader": load_search,
            "loader_kwargs": {"model_path": str(model_path)},
            "reference": reference,
        }
        return cls(model, processor, name or default_name, **fields | options)

    def index(self, corpus: Dataset, *, task_metadata: Any, encode_kwargs: dict[str, Any], **kwargs: Any) -> None:
        """
        Embed the corpus.

        Args:
            corpus (`datasets.Dataset`): `id` and the columns `text`, `video` or `audio` of the task's documents. A
                video or audio file is a path, bytes, a `{"path", "bytes"}` or `{"array", "sampling_rate"}` dictionary,
                a decoder or an array as the processor reads it, or None if the document has none.
            task_metadata (`mteb.TaskMetadata`): its category decides which columns are used.
            encode_kwargs (`dict`): `batch_size` and `show_progress_bar` are used.
            kwargs: further arguments of mteb, which are not used.

        Raises:
            ValueError: the model cannot do the task, or a document cannot be read.
        """
        self._corpus = self._embed(corpus, PromptType.document, task_metadata, encode_kwargs)

    def search(
        self,
        queries: Dataset,
        *,
        task_metadata: Any,
        top_k: int,
        encode_kwargs: dict[str, Any],
        top_ranked: dict[str, list[str]] | None = None,
        **kwargs: Any,
    ) -> dict[str, dict[str, float]]:
        """
        Find the best documents of each query.

        Args:
            queries (`datasets.Dataset`), task_metadata, encode_kwargs, kwargs: as in [`index`].
            top_k (`int`): number of documents per query.
            top_ranked (`dict`, *optional*): for a reranking task, the documents that may be returned for each query.

        Returns:
            `dict` from each query's identifier to its documents and their scores, higher is better. After reranking, a
            score only gives the order. Documents that cannot be scored are left out.

        Raises:
            ValueError: as in [`index`].
        """
        # A query clip that ranks clips has one modality: it is one vector, like a text.
        asked = self._embed(queries, PromptType.query, task_metadata, encode_kwargs)
        if isinstance(asked, _Gallery) and isinstance(self._corpus, _Gallery):
            (modality,) = task_metadata.get_modalities(PromptType.query)
            asked = _Texts(asked.ids, None, asked.embeds[:, self.modalities.index(modality)])

        # The cross-encoder scores the first candidates of all queries at once: each clip is read once.
        if self.rerank_depth is not None:
            candidates, logits = self._rerank(asked, top_ranked, encode_kwargs)

        # The best documents of each query, a block of queries at a time.
        results = {}
        for block, scores in self._blocks(asked, top_ranked):
            allowed = scores > -torch.inf
            if self.rerank_depth is not None:
                scores = two_stage_scores(scores, _UNKNOWN, candidates[block], logits[block])
            scores = scores.masked_fill(~allowed, -torch.inf)
            best = scores.topk(min(top_k, scores.shape[1]), dim=1)
            for query_id, values, columns in zip(asked.ids[block], best.values, best.indices, strict=True):
                results[query_id] = {}
                for value, column in zip(values.tolist(), columns.tolist(), strict=True):
                    if value > -torch.inf:
                        results[query_id][self._corpus.ids[column]] = value
        return results

    def _embed(
        self, dataset: Dataset, side: PromptType, task_metadata: Any, encode_kwargs: dict[str, Any]
    ) -> _Texts | _Gallery:
        """Embed the queries or the documents of a task, texts or clips."""
        _check_task(task_metadata, self.modalities)
        modalities = task_metadata.get_modalities(side)
        batch_size = encode_kwargs.get("batch_size", 32)
        hidden = not encode_kwargs.get("show_progress_bar", True)
        # Texts alone, or the subtitles of clips.
        ids = list(dataset["id"])
        subtitles = _read_texts(dataset) if "text" in modalities else [None] * len(ids)
        if set(modalities) == {"text"}:
            embeds = embed_texts(self.model, self.processor, subtitles, batch_size, progress=not hidden)
            return _Texts(ids, subtitles, embeds)

        # Clips, with cells in place of paths: a file is opened when it is read.
        columns = {"video_id": ids, "subtitle": subtitles}
        for name in ("video", "audio"):
            columns[f"{name}_path"] = _cells(dataset, name) if name in modalities else [None] * len(ids)
        clips = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        embedded = []
        with tqdm(total=len(clips), desc="clips", unit="clip", disable=hidden) as bar:
            for batch in embed_rows(self.model, self.processor, clips, batch_size, self.num_workers):
                embedded.append(batch)
                self.problems += problems_of(batch)
                bar.update(len(batch.notes))
        return _Gallery(ids, clips, *Embedded.joined(embedded).embeds)

    def _blocks(self, asked: _Texts | _Gallery, top_ranked: dict | None) -> Iterator[tuple[slice, torch.Tensor]]:
        """Yield the first-stage scores of some queries, (queries, documents), -inf where they may not be returned."""
        # Texts for texts by cosine; clips by the model's score, in the direction of the task.
        columns = dict(zip(self._corpus.ids, range(len(self._corpus.ids)), strict=True))
        for start in range(0, len(asked.ids), _BLOCK):
            block = slice(start, start + _BLOCK)
            if isinstance(asked, _Texts) and isinstance(self._corpus, _Texts):
                scores = asked.embeds[block].flatten(1) @ self._corpus.embeds.flatten(1).T
            elif isinstance(asked, _Texts):
                scores = self._score(asked.embeds[block], self._corpus, slice(None), "text_to_video")
            else:
                scores = self._score(self._corpus.embeds, asked, block, "video_to_text").T
            # A reranking task names the documents of each query.
            if top_ranked is not None:
                allowed = torch.zeros(scores.shape, dtype=torch.bool)
                for row, query_id in enumerate(asked.ids[block]):
                    allowed[row, list(map(columns.get, top_ranked.get(query_id, [])))] = True
                scores = scores.masked_fill(~allowed, -torch.inf)
            yield block, scores

    def _score(self, texts: torch.Tensor, gallery: _Gallery, clips: slice, direction: str) -> torch.Tensor:
        return retrieval_scores(
            texts,
            gallery.embeds[clips],
            gallery.mask[clips],
            modalities=self.modalities,
            direction=direction,
            **self.score_options,
        )

    def _rerank(self, asked: _Texts | _Gallery, top_ranked: dict | None, encode_kwargs: dict[str, Any]):
        """Return candidates and their match logits, (queries, candidates) each."""
        # One side must be texts that can be read, the other clips.
        texts = asked
        gallery = self._corpus
        if isinstance(asked, _Gallery):
            texts = self._corpus
            gallery = asked
        if isinstance(gallery, _Texts) or texts.texts is None:
            raise ValueError("The second stage reads a text and a clip together: it does not apply to this task.")

        # The first candidates of each query, (queries, K); documents that may not be returned are not read.
        candidates = []
        allowed = []
        for _, scores in self._blocks(asked, top_ranked):
            chosen = first_candidates(scores, _UNKNOWN, self.rerank_depth)
            candidates.append(chosen)
            allowed.append(scores.gather(1, chosen) > -torch.inf)
        candidates = torch.cat(candidates)
        # The pairs to score: a text, a clip, and what is read of the clip, which is nothing if it is not allowed.
        text_rows = torch.arange(len(candidates))[:, None].expand_as(candidates)
        clip_rows = candidates
        if gallery is asked:
            clip_rows = text_rows
            text_rows = candidates
        views = clip_views(gallery.mask, self.modalities, self.model.config.condition_on)
        views = views[clip_rows].where(torch.cat(allowed), 0)
        logits = match_logits(
            self.model,
            self.processor,
            gallery.clips,
            texts.texts,
            torch.stack([text_rows, clip_rows, views], dim=-1).flatten(0, 1),
            batch_size=encode_kwargs.get("batch_size", 32),
            progress=encode_kwargs.get("show_progress_bar", True),
            num_workers=self.num_workers,
        )
        return candidates, logits.view_as(candidates)


def load_search(
    name: str,
    revision: str | None = None,
    model_path: str | None = None,
    device: str | torch.device | None = None,
    rerank_depth: int | None = None,
    **score_options: Any,
) -> ScalarSearch:
    """
    Load a model as mteb's loader.

    Args:
        name (`str`): name of the model in mteb.
        revision (`str`, *optional*): a commit on the Hub, or the fingerprint of a folder.
        model_path (`str`, *optional*): folder or Hub name; by default `name`.
        device (`str` or `torch.device`, *optional*): by default the fastest there is.
        rerank_depth (`int`, *optional*), score_options: as in [`ScalarSearch`]; by default those of the model.

    Raises:
        ValueError: the model has another revision now.
    """
    path = model_path or name
    options = {"rerank_depth": rerank_depth, "score_options": score_options or None}
    search = ScalarSearch.from_pretrained(path, name, device, **options)
    current = search.mteb_model_meta.revision
    if revision is not None and current != revision:
        raise ValueError(f"{path} has the revision {current}, but {revision} was expected.")
    return search


__all__ = ["ScalarSearch", "load_search"]
