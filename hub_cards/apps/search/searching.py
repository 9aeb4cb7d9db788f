"""A gallery of embeddings, the model that made it, and what a query finds in it: everything but the page.

Nothing here is read from the project that published this Space: the model brings its own code, and the gallery is an
ordinary data set. Shapes: N clips, D dimensions; the axis of 3 is that of `MODALITIES`.
"""

import hashlib
import json
import math
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path, PurePosixPath

import torch
from datasets import get_dataset_config_names, load_dataset
from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from peft import PeftModel
from transformers import AutoConfig, AutoModel, AutoProcessor, PreTrainedModel, ProcessorMixin
from transformers.dynamic_module_utils import get_class_from_dynamic_module

MODALITIES = ("video", "audio", "subtitle")
NEUTRAL = {"modality_scale": [1.0] * len(MODALITIES), "modality_offset": [0.0] * len(MODALITIES)}
"""What changes no cosine of a modality, by the names of the options of a score."""
MAX_CHARACTERS = 2000
"""A longer query is refused; a tokenizer would cut it to a small part anyway."""

_MODEL_FILES = ["*.json", "*.py", "*.safetensors", "*.txt", "*.model"]
# The same model on another machine, or in half precision, gives the same direction to a few thousandths.
_SAME_DIRECTION = 0.99
_UNIT_TOLERANCE = 0.01
_SHORT = 120
_WINDOW = re.compile(r"#t=\d+(\.\d+)?(,\d+(\.\d+)?)?")  # the seconds of a clip in its file, in its identifier


class QueryError(ValueError):
    """A query that cannot be searched for; the message is for whoever typed it."""


@dataclass(frozen=True)
class Settings:
    """
    What `space.json` says.

    Args:
        model (`str`), gallery (`str`): Hub ids; for a try on one's own machine, folders.
        model_revision (`str`, *optional*), gallery_revision (`str`, *optional*): commits. Without one, the model is
            taken at the commit that the gallery names, and the gallery as it is now.
    """

    model: str
    gallery: str
    model_revision: str | None = None
    gallery_revision: str | None = None

    @classmethod
    def read(cls, path: Path) -> "Settings":
        """Read the file; a ValueError or FileNotFoundError says what is wrong with it."""
        content = _read_json(path)
        required, optional = ("model", "gallery"), ("model_revision", "gallery_revision")
        if not all(isinstance(content.get(name), str) for name in required) or not all(
            isinstance(content.get(name), str | None) for name in optional
        ):
            raise ValueError(f"`{path.name}` must give {required} and may give {optional}, as texts; got {content}.")
        return cls(**{name: content.get(name) for name in required + optional})


@dataclass(frozen=True, eq=False)
class Gallery:
    """
    The clips that can be found.

    Args:
        folder (`Path`): where its files lie; media may have to be fetched first.
        commit (`str`, *optional*): of the data set on the Hub, `None` for a folder.
        model (`str`, *optional*), model_revision (`str`, *optional*): what made the embeddings, if that is known.
        query_temperature (`float`, *optional*): the one its model was used with.
        calibration (`dict`, *optional*): the scale and offset of the cosines of each modality, as far as it has any;
            `None` if it does not say how it is scored.
        clip_ids (`list[str]`): one per clip.
        modality_embeds (`torch.FloatTensor` of shape `(N, 3, D)`): unit norm, zero where absent.
        modality_mask (`torch.BoolTensor` of shape `(N, 3)`): what each clip has.
        files (`list[str | None]`): where the media of each clip lies in the data set, if it is published.
        captions (`list[list[str]]`): the texts that describe each clip.
        queries (`dict[str, list[int]]`): which clips a caption, as [`normalize`] writes it, describes.
        probe (`tuple[str, torch.FloatTensor]`, *optional*): a caption and its embedding, to know the model by; the
            vectors of a model that makes one for each modality follow each other.
    """

    folder: Path
    commit: str | None
    model: str | None
    model_revision: str | None
    query_temperature: float | None
    clip_ids: list[str]
    modality_embeds: torch.Tensor
    modality_mask: torch.Tensor
    files: list[str | None]
    captions: list[list[str]]
    queries: dict[str, list[int]] = field(default_factory=dict)
    probe: tuple[str, torch.Tensor] | None = None
    calibration: dict[str, list[float]] | None = None

    def __len__(self) -> int:
        return len(self.clip_ids)

    def examples(self, count: int = 5) -> list[str]:
        """Return a few captions from all over the gallery, short ones if there are any."""
        captions = sorted({texts[0] for texts in self.captions if texts})
        captions = [text for text in captions if len(text) <= _SHORT] or captions
        count = min(count, len(captions))
        return [captions[len(captions) * number // count] for number in range(count)]


@dataclass(frozen=True)
class Hit:
    """One clip that was found; `weights` and `states` ("present", "masked" or "absent") in the order of modalities.

    `window` is what of its file it is, such as `#t=30,60`, empty if it is all of it.
    """

    rank: int
    clip_id: str
    score: float
    weights: tuple[float, ...]
    states: tuple[str, ...]
    captions: list[str]
    file: str | None
    is_described: bool
    window: str = ""


@dataclass(frozen=True)
class Result:
    """
    What a query found.

    Args:
        hits (`list[Hit]`): best first.
        num_clips (`int`), num_searched (`int`): of the gallery, and of those with a modality left.
        masked (`tuple[int, ...]`), available (`tuple[int, ...]`): how many clips have each modality masked, of how
            many that have it.
        described (`list[tuple[str, int | None]]`): if the query is a caption of the gallery, the clips that it
            describes, each with its rank; `None` where nothing of the clip is left.
        notes (`list[str]`): what the reader should know about the query.
    """

    hits: list[Hit]
    num_clips: int
    num_searched: int
    masked: tuple[int, ...]
    available: tuple[int, ...]
    described: list[tuple[str, int | None]]
    notes: list[str]


def normalize(text: str) -> str:
    """Write a text so that spaces and capitals make no difference."""
    return " ".join(text.split()).casefold()


def draw(clip_id: str, modality: str) -> float:
    """Return the number in [0, 1) that decides at which share of masking a clip loses a modality."""
    digest = hashlib.sha256(f"{modality}\0{clip_id}".encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2**48  # exact in float64, so never rounded up to 1


def _read_json(path: Path) -> dict:
    if not path.is_file():
        raise FileNotFoundError(f"There is no file `{path.name}`. Publish this Space or its gallery again.")
    try:
        content = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ValueError(f"`{path.name}` is not JSON: {error}. Publish this Space or its gallery again.") from error
    if not isinstance(content, dict):
        raise ValueError(f"`{path.name}` must hold an object, got {type(content).__name__}.")
    return content


def _fetch(kind: str, name: str, revision: str | None, patterns: Sequence[str]) -> tuple[Path, str | None]:
    """The folder of a model or data set and its commit; `None` for what is a local folder already."""
    if Path(name).is_dir():
        return Path(name).resolve(), None
    noun = "data set" if kind == "dataset" else kind
    at = f" at revision {revision}" if revision else ""
    try:
        # Nothing below the top of a model is part of it; the data sets' own folders are named one by one.
        ignored = ["*/*"] if kind == "model" else None
        folder = Path(
            snapshot_download(
                name, repo_type=kind, revision=revision, allow_patterns=list(patterns), ignore_patterns=ignored
            )
        )
    except HFValidationError as error:
        raise ValueError(f"{name!r} is neither a folder nor the id of a {noun} on the Hub.") from error
    except GatedRepoError as error:
        raise PermissionError(
            f"Access to the {noun} {name} has to be asked for on its page. Then add a token that may read it to this "
            "Space, as the secret HF_TOKEN."
        ) from error
    except RepositoryNotFoundError as error:
        raise FileNotFoundError(
            f"There is no {noun} {name} on the Hub. If it is private, add a token that may read it to this Space, as "
            "the secret HF_TOKEN."
        ) from error
    except RevisionNotFoundError as error:
        raise FileNotFoundError(f"The {noun} {name} has no revision {revision}.") from error
    except (LocalEntryNotFoundError, ConnectionError) as error:
        raise ConnectionError(f"The Hub cannot be reached to fetch the {noun} {name}{at}.") from error
    except HfHubHTTPError as error:
        raise ConnectionError(f"The Hub did not give the {noun} {name}{at}: {error}") from error
    return folder, folder.name


def load_model(name: str, revision: str | None = None) -> tuple[PreTrainedModel, ProcessorMixin]:
    """
    Load a model or an adapter with the code that is published with it, everything at fixed commits.

    Args:
        name (`str`): Hub id or folder.
        revision (`str`, *optional*): a commit; the newest by default.

    Returns:
        `tuple`: the model, an adapter merged into it, and its processor.

    Raises:
        ValueError, OSError: it cannot be fetched or is not a model of this kind; the message says why.
    """
    folder, _ = _fetch("model", name, revision, _MODEL_FILES)
    # An adapter may score otherwise than its base: the configuration is always the one published with it.
    config = AutoConfig.from_pretrained(folder, trust_remote_code=True)
    processor = AutoProcessor.from_pretrained(folder, trust_remote_code=True)
    options = {"config": config, "use_safetensors": True, "dtype": torch.float32}
    if not (folder / "adapter_config.json").is_file():
        return AutoModel.from_pretrained(folder, trust_remote_code=True, **options).eval(), processor
    adapter = _read_json(folder / "adapter_config.json")
    base, _ = _fetch("model", adapter["base_model_name_or_path"], adapter.get("revision"), _MODEL_FILES)
    # Its code, too: the base may be an encoder as its publisher has it, without any of this.
    model_class = get_class_from_dynamic_module(config.auto_map["AutoModel"], folder)
    model = PeftModel.from_pretrained(model_class.from_pretrained(base, **options), folder)
    return model.merge_and_unload().eval(), processor


def _calibration(description: dict) -> dict[str, list[float]] | None:
    """The scale and the offset of modalities that a gallery is scored with, if it says how it is scored."""
    options = description.get("score_options")
    if options is None:
        return None if description.get("query_temperature") is None else {}
    found = {name: options[name] for name in NEUTRAL if options.get(name) is not None}
    for name, values in found.items():
        kinds = [type(value) for value in values] if isinstance(values, list) else []
        if len(kinds) != len(MODALITIES) or not set(kinds) <= {int, float}:
            raise ValueError(f"The gallery's `{name}` must be {len(MODALITIES)} numbers, got {values!r:.80}.")
    return found


def _media_file(clip_id: str, file: str | None) -> str | None:
    if file is None:
        return None
    parts = PurePosixPath(file).parts
    if parts[:1] != ("media",) or ".." in parts or "\\" in file:
        raise ValueError(f"The media of the clip {clip_id!r} must lie in the gallery's folder media/, got {file!r}.")
    return file


def load_gallery(name: str, revision: str | None = None) -> Gallery:
    """
    Load a data set of embeddings, without its media.

    Args:
        name (`str`): Hub id or folder.
        revision (`str`, *optional*): a commit; the newest by default.

    Returns:
        [`Gallery`].

    Raises:
        ValueError, OSError: it cannot be fetched or is no such data set; the message says why.
    """
    patterns = ["README.md", "embeddings.json", "clips/*", "queries/*"]
    folder, commit = _fetch("dataset", name, revision, patterns)
    description = _read_json(folder / "embeddings.json")
    temperature = description.get("query_temperature")
    temperature = None if temperature is None else float(temperature)  # infinity is written as a text
    if temperature is not None and not temperature > 0:
        raise ValueError(f"The gallery's `query_temperature` must be above 0, got {temperature}.")
    configs = get_dataset_config_names(str(folder))
    if "clips" not in configs:
        raise ValueError(f"{name} is no gallery of embeddings: it has the configurations {configs}, not 'clips'.")
    clips = _read_split(folder, "clips", ("clip_id", "presence", *MODALITIES))
    clip_ids = clips["clip_id"]
    embeds = torch.stack([clips[modality] for modality in MODALITIES], dim=1)  # (N, 3, D)
    mask = clips["presence"].bool()
    empty = [clip_ids[row] for row in (~mask.any(dim=1)).nonzero().flatten().tolist()]
    if empty:
        raise ValueError(f"Every clip of a gallery needs a modality; these have none: {empty[:10]}.")
    if not ((embeds.norm(dim=-1) - 1).abs() <= _UNIT_TOLERANCE)[mask].all():
        raise ValueError("The embeddings of the gallery must be unit vectors wherever a clip has the modality.")

    rows = {clip_id: row for row, clip_id in enumerate(clip_ids)}
    captions, described, probe = [[] for _ in clip_ids], {}, None
    if "queries" in configs:
        queries = _read_split(folder, "queries", ("caption", "clip_ids", "embedding"))
        for caption, names in zip(queries["caption"], queries["clip_ids"], strict=True):
            unknown = [name for name in names if name not in rows]
            if unknown:
                raise ValueError(f"The caption {caption!r} describes clips that the gallery does not hold: {unknown}.")
            same = described.setdefault(normalize(caption), [])
            for row in (rows[name] for name in names):
                captions[row].append(caption)
                if row not in same:
                    same.append(row)
        probe = (queries["caption"][0], queries["embedding"][0])
    files = clips.get("file", [None] * len(clip_ids))
    return Gallery(
        folder=folder,
        commit=commit,
        model=description.get("model"),
        model_revision=description.get("model_revision"),
        query_temperature=temperature,
        clip_ids=clip_ids,
        modality_embeds=embeds,
        modality_mask=mask,
        files=[_media_file(clip_id, file) for clip_id, file in zip(clip_ids, files, strict=True)],
        captions=captions,
        queries=described,
        probe=probe,
        calibration=_calibration(description),
    )


def _read_split(folder: Path, config: str, required: Sequence[str]) -> dict:
    """The columns of the only split of a configuration: numbers as tensors, texts as lists."""
    # A cache of its own: the shared one knows a folder by its name and returns what another one of this name held.
    with tempfile.TemporaryDirectory(prefix="datasets-") as cache:
        splits = load_dataset(str(folder), config, cache_dir=cache)
        if len(splits) != 1:
            raise ValueError(f"The configuration {config!r} of a gallery must have one split, got {list(splits)}.")
        (split,) = splits.values()
        missing = [name for name in required if name not in split.column_names]
        if missing:
            raise ValueError(f"The configuration {config!r} of the gallery lacks the columns {missing}.")
        return split.with_format("torch")[:]


def load(settings: Settings) -> "Searcher":
    """
    Load what `space.json` names and check that gallery and model belong together.

    Raises:
        ValueError, OSError: something is missing or does not fit; the message says what, for the page.
    """
    gallery = load_gallery(settings.gallery, settings.gallery_revision)
    is_known = gallery.model is not None and not Path(settings.model).is_dir()
    if is_known and settings.model != gallery.model:
        raise ValueError(
            f"The gallery {settings.gallery} was made with the model {gallery.model}, but this Space is set to "
            f"{settings.model}. Publish the Space with the model of its gallery."
        )
    revision = settings.model_revision or gallery.model_revision
    if is_known and gallery.model_revision not in (None, revision):
        raise ValueError(
            f"The gallery {settings.gallery} was made with revision {gallery.model_revision} of {gallery.model}, but "
            f"this Space is set to revision {revision}. Publish the Space again, or embed the gallery again."
        )
    return Searcher(gallery, *load_model(settings.model, revision))


class Searcher:
    """
    Ranks the clips of a gallery.

    Args:
        gallery ([`Gallery`]): the clips.
        model ([`~transformers.PreTrainedModel`]): embeds queries and scores clips.
        processor ([`~transformers.ProcessorMixin`]): reads queries.

    Attributes:
        query_temperature (`float`): the gallery's, or else the model's.
        is_calibrated (`bool`): whether cosines of modalities are scaled or shifted.

    Raises:
        ValueError: the model has no modality weights to show, or the gallery is not its own.
    """

    def __init__(self, gallery: Gallery, model: PreTrainedModel, processor: ProcessorMixin):
        if model.config.aggregation != "scalar":
            raise ValueError(
                f"This Space shows the weights of the modalities, but the model scores by "
                f"{model.config.aggregation!r}, which has none. Choose a model that scores by 'scalar'."
            )
        width = gallery.modality_embeds.shape[-1]
        if width != model.config.projection_dim:
            raise ValueError(
                f"The gallery holds embeddings of {width} numbers, but the model gives "
                f"{model.config.projection_dim}: it was made with another model."
            )
        self.gallery, self._model, self._processor = gallery, model, processor
        self.query_temperature = gallery.query_temperature or model.config.query_temperature
        own = gallery.calibration
        if own is not None:  # a gallery without a calibration is scored without one, whatever the model's is
            own = {name: NEUTRAL[name] for name in NEUTRAL if getattr(model.config, name, None) is not None} | own
        self._options = own or {}
        used = {name: self._options.get(name, getattr(model.config, name, None)) for name in NEUTRAL}
        self.is_calibrated = any(value is not None and list(value) != NEUTRAL[name] for name, value in used.items())
        self.embed = lru_cache(maxsize=256)(self._embed)  # a slider asks for the same query again and again
        self._draws = torch.tensor(
            [[draw(clip_id, modality) for modality in MODALITIES] for clip_id in gallery.clip_ids],
            dtype=torch.float64,
        )
        if gallery.probe is not None:
            caption, embedding = gallery.probe
            found = self.embed(caption)[0].flatten()
            cosine = torch.cosine_similarity(found, embedding, dim=0).item() if found.shape == embedding.shape else 0
            if not cosine >= _SAME_DIRECTION:
                raise ValueError(
                    "The model does not give the embeddings of the gallery: for the caption "
                    f"{caption!r} they differ (cosine {cosine:.3f}, expected 1). The gallery was made with another "
                    "model, or with another revision of it."
                )

    @torch.inference_mode()
    def _embed(self, query: str) -> torch.Tensor:
        inputs = self._processor(text=[query])
        return self._model.get_text_features(
            inputs["input_ids"], inputs["attention_mask"]
        ).pooler_output  # (1, D) or (1, 3, D)

    def _notes(self, query: str) -> list[str]:
        tokenizer, longest = self._processor.tokenizer, self._processor.max_text_length
        ids, notes = tokenizer(query)["input_ids"], []
        if len(ids) > longest:
            notes.append(f"The query has {len(ids)} tokens; the model reads the first {longest} and no more.")
        unknown = ids.count(tokenizer.unk_token_id)
        if unknown:
            notes.append(f"{unknown} of the words are unknown to the model, which cannot tell them apart.")
        return notes

    def mask(self, shares: Sequence[float]) -> torch.Tensor:
        """
        Return what is left of each clip when modalities are hidden.

        A clip loses a modality when its [`draw`] lies below the share: the same clips each time, and all those of a
        smaller share too.

        Args:
            shares (`Sequence[float]`): for each modality the share of clips it is hidden from, in [0, 1].

        Returns:
            `torch.BoolTensor` of shape `(N, 3)`.
        """
        return self.gallery.modality_mask & (self._draws >= torch.tensor(shares, dtype=torch.float64))

    @torch.inference_mode()
    def search(
        self, query: str, query_temperature: float, shares: Sequence[float] = (0.0, 0.0, 0.0), k: int = 10
    ) -> Result:
        """
        Rank every clip that has a modality left.

        Args:
            query (`str`): what to look for.
            query_temperature (`float`): of the weights, above 0; infinity weighs all modalities equally.
            shares (`Sequence[float]`): as in [`mask`].
            k (`int`): hits wanted; fewer come back where fewer clips can be found.

        Returns:
            [`Result`].

        Raises:
            QueryError: the query is empty or too long, or a number is out of its range.
        """
        query = " ".join(query.split())
        if not query:
            raise QueryError("Type what you are looking for.")
        if len(query) > MAX_CHARACTERS:
            raise QueryError(f"The query has {len(query):,} characters; at most {MAX_CHARACTERS:,} are accepted.")
        if k < 1 or not query_temperature > 0 or not all(0 <= share <= 1 for share in shares):
            raise QueryError("A number of hits from 1, a temperature above 0 and shares between 0 and 1 are needed.")
        gallery = self.gallery
        described = gallery.queries.get(normalize(query), [])
        mask, notes = self.mask(shares), self._notes(query)
        rows = mask.any(dim=1).nonzero().flatten()
        ranks, hits = {}, []
        if len(rows):
            is_whole = len(rows) == len(gallery)  # the usual case needs no copy of the gallery
            embeds, left = (gallery.modality_embeds, mask) if is_whole else (gallery.modality_embeds[rows], mask[rows])
            text = self.embed(query)
            options = {"query_temperature": query_temperature} | self._options
            scores = self._model.compute_scores(text, embeds, left, **options)[0]
            order = scores.argsort(descending=True, stable=True)
            ranks = {row: rank for rank, row in enumerate(rows[order].tolist(), start=1)}
            best = order[:k]
            weights = self._model.compute_weights(text, embeds[best], left[best], **options)[0]
            found = zip(rows[best].tolist(), scores[best].tolist(), weights.tolist(), strict=True)
            hits = [
                self._hit(rank, row, score, weight, mask[row], row in described)
                for rank, (row, score, weight) in enumerate(found, start=1)
            ]
            if len(rows) < k:
                notes.append(f"{k} hits were asked for, but only {len(rows)} can be found.")
        return Result(
            hits=hits,
            num_clips=len(gallery),
            num_searched=len(rows),
            masked=tuple((gallery.modality_mask & ~mask).sum(dim=0).tolist()),
            available=tuple(gallery.modality_mask.sum(dim=0).tolist()),
            described=[(gallery.clip_ids[row], ranks.get(row)) for row in described],
            notes=notes,
        )

    def _hit(self, rank, row, score, weights, left, is_described) -> Hit:
        states = (
            "present" if kept else "masked" if had else "absent"
            for kept, had in zip(left.tolist(), self.gallery.modality_mask[row].tolist(), strict=True)
        )
        clip_id, file = self.gallery.clip_ids[row], self.gallery.files[row]
        window = "" if file is None else clip_id.removeprefix(file.partition("/")[2])
        return Hit(
            rank=rank,
            clip_id=clip_id,
            score=score,
            weights=tuple(weights),
            states=tuple(states),
            captions=self.gallery.captions[row],
            file=file,
            is_described=is_described,
            window=window if _WINDOW.fullmatch(window) else "",
        )


def temperatures(default: float) -> list[float]:
    """Return the stops of a slider, ascending: ten for each factor of ten, `default` among them, infinity last."""
    stops = {float(f"{10 ** (step / 10):.2g}") for step in range(-30, 21)}
    near = {stop for stop in stops if abs(math.log(stop / default)) < 0.03} if default < math.inf else set()
    return sorted(stops - near | {default, math.inf})


def format_temperature(value: float) -> str:
    """Write a temperature as a reader expects it."""
    return "∞" if value == math.inf else re.sub(r"\.0$", "", f"{value:.3g}")


__all__ = [
    "MAX_CHARACTERS",
    "MODALITIES",
    "NEUTRAL",
    "Gallery",
    "Hit",
    "QueryError",
    "Result",
    "Searcher",
    "Settings",
    "draw",
    "format_temperature",
    "load",
    "load_gallery",
    "load_model",
    "normalize",
    "temperatures",
]
