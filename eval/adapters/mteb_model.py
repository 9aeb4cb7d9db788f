"""A [`~modeling_scalar.ScalarModel`] for the video tasks of mteb (2.20 or newer).

    model, processor = load_model("models/scalar", device=default_device())
    mteb.evaluate(ScalarSearch(model, processor, name="organisation/scalar"), mteb.get_tasks(tasks=["MSRVTTT2V"]))

A score that depends on the query is not a product of two vectors, so the model uses mteb's search interface: `index`
embeds the corpus, `search` returns the best documents of each query. Documents are texts, or clips of video, of audio
or of both; a clip of a corpus may also have a text, which is read as its subtitle. A query is one vector, of a text, a
video or an audio file; a query clip with several modalities can only rank texts. Texts are ranked for texts by their
cosine. mteb gives the audio of a video as a separate column: without it a clip has no audio here, whatever its file
contains.

The processor decodes all videos and audio files, also where mteb would use torchcodec: frames are those of our own
protocol. mteb orders documents of equal score by their identifiers.
"""

import copy
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

from eval.embedding.embed_dataset import embed_rows, problems_of
from eval.embedding.embed_fused import embed_fused_rows, fuses, needed_mixes
from eval.embedding.embeddings import FUSED, concat_embeds_of
from eval.protocol.second_stage import first_candidates, match_logits, two_stage_scores
from gallery.columns import listed
from gallery.decoding import sandboxed
from gallery.embedding import Embedded, check_reading, embed_captions
from gallery.gallery import Gallery
from gallery.matching import clip_views
from modeling_scalar.media_scalar import resample
from modeling_scalar.scores_scalar import WEIGHING, retrieval_scores

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
        value = self.column[self.row][self.name]
        path = None
        if isinstance(value, dict):
            if value.get("array") is not None:
                return resample(np.atleast_2d(value["array"]), int(value["sampling_rate"]))
            value, path = value.get("bytes") or value.get("path"), value.get("path")
        if isinstance(value, bytes):
            file = Path(folder, self.name).with_suffix(Path(path or "").suffix)
            file.write_bytes(value)
            return file
        return value


class _CellProcessor:
    """A processor that reads the cells of a data set like files."""

    def __init__(self, processor: ProcessorMixin) -> None:
        self.processor = sandboxed(processor)
        self.reader, self.modalities = self.processor.reader, self.processor.modalities

    def read_clip(self, video: _Cell | None, audio: _Cell | None, subtitle: str | None, **options: Any) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            video, audio = (cell and cell.open(folder) for cell in (video, audio))
            return self.processor.read_clip(video, audio=audio, subtitle=subtitle, **options)

    def fuse(self, *inputs: Any) -> Any:
        return self.processor.fuse(*inputs)

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
    concat_embeds: torch.Tensor | None
    fused: torch.Tensor | None = None  # (clips, dim)


def _cells(dataset: Dataset, name: str) -> list[_Cell | None]:
    if name not in dataset.column_names:
        return [None] * len(dataset)
    column = dataset.select_columns([name])
    feature = column.features[name]
    if isinstance(feature, (Audio, Video)) and feature.decode:
        column = column.cast_column(name, type(feature)(decode=False))  # bytes or a path, for our own decoder
    return [_Cell(column, row, name) for row in range(len(column))]


def _said(text: str | Sequence[str | dict[str, str]]) -> str:
    """Return a text unchanged, or a conversation in mteb's format for models that read texts."""
    if isinstance(text, str):
        return text
    return "; ".join(turn if isinstance(turn, str) else f"{turn['role']}: {turn['content']}" for turn in text)


def _read_texts(dataset: Dataset) -> list[str]:
    texts = [_said(text) for text in dataset["text"]]
    if "instruction" in dataset.column_names:  # models without support for instructions read them with the query
        texts = [f"{text} {more or ''}".strip() for text, more in zip(texts, dataset["instruction"], strict=True)]
    if "title" in dataset.column_names:  # as mteb joins them
        texts = [f"{title or ''} {text}".strip() for title, text in zip(dataset["title"], texts, strict=True)]
    return texts


def _num_embedding_parameters(model: PreTrainedModel) -> int | None:
    try:
        return model.get_input_embeddings().weight.numel()
    except NotImplementedError:  # from encoders without token embeddings, or that do not expose them
        return None


def why_not(task_metadata: Any, modalities: Sequence[str]) -> str | None:
    """
    Return why a model cannot do a task.

    Args:
        task_metadata (`mteb.TaskMetadata`): metadata of the task.
        modalities (`Sequence[str]`): modalities of the model.

    Returns:
        A sentence, or `None` if the model can do it.
    """
    media, name = {"video", "audio"}, task_metadata.name
    if (
        task_metadata.category is None
        or "Retrieval" not in task_metadata.type
        and "Reranking" not in task_metadata.type
    ):
        return f"The task {name} is one of {task_metadata.type}; retrieval and reranking can be scored."
    queries, documents = (set(task_metadata.get_modalities(kind)) for kind in (PromptType.query, PromptType.document))
    if (
        not queries | documents <= media | {"text"}
        or len(queries) > 1
        and (documents != {"text"} or "text" in queries)
    ):
        return (
            f"The task {name} goes from {sorted(queries)} to {sorted(documents)}. This model ranks clips (video, "
            "audio, or both, in a corpus also with a text) and texts for a text, a video or an audio file, and texts "
            "for clips."
        )
    for side in (queries, documents):
        if side & media and not side & media & set(modalities):
            return (
                f"The task {name} needs {' or '.join(sorted(side & media))}; the model embeds {', '.join(modalities)}."
            )
    return None


class ScalarSearch:
    """
    mteb's search interface for a model and its processor.

    Args:
        model ([`~modeling_scalar.ScalarModel`]): switched to evaluation mode; stays on its device.
        processor ([`~modeling_scalar.ScalarProcessor`]): reads captions and clips, with its settings for testing.
        name (`str`): name of the model, `"organisation/name"`; mteb stores its results under it.
        rerank_depth (`int`, *optional*): number of documents per query that the cross-encoder reorders; default: none.
        score_options (`dict`, *optional*): keyword arguments of `retrieval_scores` and the method; by default those of
            the model, with the temperature, scale and offset of the gallery, if one is given.
        on_error (`str`), num_workers (`int`): as in [`embed_dataset`].
        gallery ([`~gallery.gallery.Gallery`], *optional*): clips that this model has embedded, under mteb's `id`:
            their files are not read, except by the cross-encoder.
        fused (`bool`): also embed a joint encoder's fused vectors, for the method `"fused"`; clips are read twice,
            unless `"fused"` is a modality of the model.
        meta: further fields of mteb's `ModelMeta`, such as `revision` or `training_datasets`; unknown by default.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        processor: ProcessorMixin,
        name: str,
        rerank_depth: int | None = None,
        score_options: dict[str, Any] | None = None,
        on_error: str = "raise",
        num_workers: int = 2,
        gallery: Gallery | None = None,
        fused: bool = False,
        **meta: Any,
    ) -> None:
        check_reading(1, on_error, num_workers)
        if rerank_depth is not None and rerank_depth < 1:
            raise ValueError(f"`rerank_depth` must be at least 1, got {rerank_depth}.")
        if rerank_depth is not None and not model.config.has_cross_attention:
            raise ValueError("`rerank_depth` needs a model whose text tower has cross-attention.")
        self.model, self.processor = model.eval(), _CellProcessor(processor)
        self.rerank_depth, self.on_error, self.num_workers = rerank_depth, on_error, num_workers
        if score_options is None:
            score_options = model.score_options()
            if gallery is not None:
                score_options = {name: value for name, value in score_options.items() if name not in WEIGHING}
                score_options |= {"query_temperature": gallery.query_temperature} | gallery.calibration
        self.score_options = {
            key: value.item() if isinstance(value, torch.Tensor) else value for key, value in score_options.items()
        }
        self.problems: list[str] = []
        self.gallery = gallery
        self.modalities = tuple(model.config.modalities) if gallery is None else gallery.modalities
        self.fuses = fused and FUSED not in self.modalities
        if self.fuses and (gallery is not None or not fuses(model)):
            raise ValueError("`fused` needs a joint encoder that takes several modalities at once, and no gallery.")
        self._corpus: _Texts | _Gallery | None = None
        self._kept: dict[tuple[str, ...], _Texts | _Gallery] | None = None
        size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
        fields = {
            "revision": None,
            "release_date": None,
            "languages": None,
            "n_parameters": model.num_parameters(),
            "n_embedding_parameters": _num_embedding_parameters(model),
            "memory_usage_mb": size / 2**20,
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
            "modalities": ["text", *(name for name in ("video", "audio") if name in self.modalities)],
            # mteb separates results of different settings by this.
            "experiment_kwargs": self.score_options | ({} if rerank_depth is None else {"rerank_depth": rerank_depth}),
        }
        self.mteb_model_meta = ModelMeta(**{"loader": None, "name": name} | fields | meta)

    def scored_by(self, method: str, **meta: Any) -> "ScalarSearch":
        """
        Return the same model with another method. The two share their embeddings from now on: each side of a task is
        embedded once, until [`forget`].

        Args:
            method (`str`): method of `retrieval_scores`, or `"fused"`.
            meta: fields of mteb's `ModelMeta` that differ, such as `name`.
        """
        if self._kept is None:
            self._kept = {}
        other = copy.copy(self)
        other.score_options = self.score_options | {"method": method}
        meta = {"experiment_kwargs": other.score_options} | meta
        other.mteb_model_meta = self.mteb_model_meta.model_copy(update=meta)
        return other

    def forget(self) -> None:
        """Delete the embeddings of all methods."""
        self._kept.clear()

    def index(self, corpus: Dataset, *, task_metadata: Any, encode_kwargs: dict[str, Any], **kwargs: Any) -> None:
        """
        Embed the corpus.

        Args:
            corpus (`datasets.Dataset`): `id` and the columns `text`, `video` or `audio` of the task's documents. A
                video or audio file is a path, bytes, a `{"path", "bytes"}` or `{"array", "sampling_rate"}` dictionary,
                a decoder or an array as the processor reads it, or None if the document has none.
            task_metadata (`mteb.TaskMetadata`): its category decides which columns are used.
            encode_kwargs (`dict`): `batch_size` and `show_progress_bar` are used.
            kwargs: further arguments of mteb; `hf_split` and `hf_subset` identify the embeddings shared by
                [`scored_by`].

        Raises:
            ValueError: the model cannot do the task ([`why_not`]), or a document cannot be read.
        """
        self._corpus = self._embed(corpus, PromptType.document, task_metadata, encode_kwargs, kwargs)

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
            ValueError: nothing was indexed, or as in [`index`].
        """
        if self._corpus is None:
            raise ValueError("Nothing was indexed: call `index` before `search`.")
        asked = self._embed(queries, PromptType.query, task_metadata, encode_kwargs, kwargs)
        if isinstance(asked, _Gallery) and isinstance(self._corpus, _Gallery):
            (modality,) = task_metadata.get_modalities(PromptType.query)
            asked = _Texts(asked.ids, None, asked.embeds[:, self.modalities.index(modality)])
        found = None
        if self.rerank_depth is not None:
            found = self._rerank(asked, top_ranked, encode_kwargs)
        results = {}
        for block, scores in self._blocks(asked, top_ranked):
            allowed = scores > -torch.inf
            if found is not None:
                candidates, logits = (values[block] for values in found)
                scores = two_stage_scores(scores, _UNKNOWN, candidates, logits)
            scores = scores.masked_fill(~allowed, -torch.inf)
            best = scores.topk(min(top_k, scores.shape[1]), dim=1)
            for query_id, values, columns in zip(asked.ids[block], best.values, best.indices, strict=True):
                kept = values > -torch.inf
                documents = [self._corpus.ids[column] for column in columns[kept].tolist()]
                results[query_id] = dict(zip(documents, values[kept].tolist(), strict=True))
        return results

    def _embed(
        self,
        dataset: Dataset,
        side: PromptType,
        task_metadata: Any,
        encode_kwargs: dict[str, Any],
        part: dict[str, Any],
    ) -> _Texts | _Gallery:
        if (reason := why_not(task_metadata, self.modalities)) is not None:
            raise ValueError(reason)
        key = (task_metadata.name, str(part.get("hf_split")), str(part.get("hf_subset")), side.value)
        if self._kept is not None and key in self._kept:
            return self._kept[key]
        embedded = self._embed_dataset(dataset, task_metadata.get_modalities(side), encode_kwargs)
        if self._kept is not None:
            self._kept[key] = embedded
        return embedded

    def _embed_dataset(
        self, dataset: Dataset, modalities: list[str], encode_kwargs: dict[str, Any]
    ) -> _Texts | _Gallery:
        batch_size = encode_kwargs.get("batch_size", 32)
        hidden = not encode_kwargs.get("show_progress_bar", True)
        ids = list(dataset["id"])
        subtitles = _read_texts(dataset) if "text" in modalities else [None] * len(ids)
        if set(modalities) == {"text"}:
            starts = tqdm(range(0, len(ids), batch_size), desc="texts", unit="batch", disable=hidden)
            batches = (subtitles[start : start + batch_size] for start in starts)
            embeds = [embed_captions(self.model, self.processor, batch) for batch in batches]
            return _Texts(ids, subtitles, torch.cat(embeds))
        absent = [None] * len(ids)
        videos, audios = (_cells(dataset, name) if name in modalities else absent for name in ("video", "audio"))
        names = ("video_id", "video_path", "audio_path", "subtitle")
        clips = [dict(zip(names, values, strict=True)) for values in zip(ids, videos, audios, subtitles, strict=True)]
        if self.gallery is not None:
            return self._from_gallery(ids, clips)
        embedded = []
        with tqdm(total=len(clips), desc="clips", unit="clip", disable=hidden) as bar:
            reading = batch_size, self.on_error, self.num_workers
            for batch in embed_rows(self.model, self.processor, clips, *reading):
                embedded.append(batch)
                self.problems += problems_of(batch)
                bar.update(len(batch.notes))
        found = _Gallery(ids, clips, *Embedded.joined(embedded).embeds)
        if self.fuses:
            found.fused = self._fuse(found, batch_size, hidden)
        return found

    def _fuse(self, found: _Gallery, batch_size: int, hidden: bool) -> torch.Tensor:
        """Return one vector of all modalities of each clip, `(clips, dim)`; for a single modality, its own vector."""
        whole = needed_mixes([found.mask])
        reading = batch_size, self.on_error, not hidden, self.num_workers
        several = embed_fused_rows(self.model, self.processor, found.clips, whole, *reading)
        fused = found.embeds[range(len(found.ids)), found.mask.int().argmax(dim=1)]
        for (row, _), vector in several.items():
            fused[row] = vector
        return fused

    def _from_gallery(self, ids: list[str], clips: list[dict[str, Any]]) -> _Gallery:
        """Return the clips with these identifiers from the gallery."""
        known = {name: row for row, name in enumerate(self.gallery.clip_ids)}
        missing = [name for name in ids if name not in known]
        if missing:
            raise ValueError(f"These clips are not in the gallery {self.gallery.path}: {listed(missing)}.")
        rows, concat_embeds = [known[name] for name in ids], concat_embeds_of(self.gallery)
        embeds = self.gallery.modality_embeds()[rows].float()
        concat_embeds = None if concat_embeds is None else concat_embeds[rows].float()
        return _Gallery(ids, clips, embeds, self.gallery.modality_mask[rows], concat_embeds)

    def _blocks(self, asked: _Texts | _Gallery, top_ranked: dict | None) -> Iterator[tuple[slice, torch.Tensor]]:
        """Yield the first-stage scores of some queries, (queries, documents), -inf where they may not be returned."""
        columns = {name: column for column, name in enumerate(self._corpus.ids)}
        for start in range(0, len(asked.ids), _BLOCK):
            block = slice(start, start + _BLOCK)
            if isinstance(asked, _Texts) and isinstance(self._corpus, _Texts):
                scores = asked.embeds[block].flatten(1) @ self._corpus.embeds.flatten(1).T
            elif isinstance(asked, _Texts):
                scores = self._score(asked.embeds[block], self._corpus, slice(None), "text_to_video")
            else:
                scores = self._score(self._corpus.embeds, asked, block, "video_to_text").T
            if top_ranked is not None:
                listed = torch.zeros(scores.shape, dtype=torch.bool)
                for row, query_id in enumerate(asked.ids[block]):
                    listed[row, [columns[name] for name in top_ranked.get(query_id, [])]] = True
                scores = scores.masked_fill(~listed, -torch.inf)
            yield block, scores

    def _score(self, texts: torch.Tensor, gallery: _Gallery, clips: slice, direction: str) -> torch.Tensor:
        if self.score_options["method"] == FUSED and gallery.fused is not None:
            return texts @ gallery.fused[clips].T
        concat_embeds = None if gallery.concat_embeds is None else gallery.concat_embeds[clips]
        return retrieval_scores(
            texts,
            gallery.embeds[clips],
            gallery.mask[clips],
            modalities=self.modalities,
            concat_embeds=concat_embeds,
            direction=direction,
            **self.score_options,
        )

    def _rerank(self, asked: _Texts | _Gallery, top_ranked: dict | None, encode_kwargs: dict[str, Any]):
        """Return candidates and their match logits, (queries, candidates) each."""
        sides = {
            type(side) for side in (asked, self._corpus) if not isinstance(side, _Texts) or side.texts is not None
        }
        if len(sides) < 2:
            raise ValueError("The second stage reads a text and a clip together: it does not apply to this task.")
        chosen, known = [], []
        for _, scores in self._blocks(asked, top_ranked):
            chosen.append(first_candidates(scores, _UNKNOWN, self.rerank_depth))
            known.append(scores.gather(1, chosen[-1]) > -torch.inf)
        candidates, known = torch.cat(chosen), torch.cat(known)
        rows = torch.arange(len(candidates))[:, None].expand_as(candidates)
        if isinstance(asked, _Texts):
            texts, gallery, text_rows, clip_rows = asked, self._corpus, rows, candidates
        else:
            texts, gallery, text_rows, clip_rows = self._corpus, asked, candidates, rows
        views = clip_views(gallery.mask, self.model.config.condition_on, modalities=self.modalities)
        views = views[clip_rows].where(known, 0)
        logits = match_logits(
            self.model,
            self.processor,
            gallery.clips,
            texts.texts,
            torch.stack([text_rows, clip_rows, views], dim=-1).flatten(0, 1),
            batch_size=encode_kwargs.get("batch_size", 32),
            on_error=self.on_error,
            progress=encode_kwargs.get("show_progress_bar", True),
            num_workers=self.num_workers,
        )
        return candidates, logits.view_as(candidates)


__all__ = ["ScalarSearch", "why_not"]
