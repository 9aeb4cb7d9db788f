"""The common base of SCALAR models: scoring of embeddings, and the output of a call.

[`ScalarModel`] has a tower for each modality, [`ScalarJointModel`] one encoder for all of them. Search, evaluation and
training need only the interface in this file.
"""

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import nn
from transformers import PreTrainedModel, initialization
from transformers.utils import CONFIG_NAME, ModelOutput, cached_file, find_adapter_config_file

from .configuration_scalar import own_fields
from .modalities_scalar import PAPER_MODALITIES
from .scores_scalar import WEIGHING, find_method, query_weights, retrieval_scores

_TEMPERATURE = 0.07  # contrastive temperature of Table S1; a learned one begins with it


@dataclass
class ScalarOutput(ModelOutput):
    """
    Output of [`ScalarModel`]. Fields that were not requested are None.

    Args:
        loss (`()`): With `return_loss`, the symmetric InfoNCE of the scores, if text i describes clip i.
        logits_per_text (`(queries, clips)`), logits_per_video (its transpose): Scores over contrastive temperature.
        text_embeds (`(queries, dim)`): Unit norm.
        video_embeds, audio_embeds, subtitle_embeds (`(clips, dim)`): The parts of `modality_embeds` with these names.
        modality_embeds (`(clips, M, dim)`): Unit norm, zero where absent.
        modality_mask (bool, `(clips, M)`): The modalities of each clip.
        scores (`(queries, clips)`): The aggregated score; a cosine in [-1, 1], unless it is calibrated.
        match_logits (`(pairs, 2)`): Logits of the cross-encoder for the pairs chosen by `select_pairs`; class 1 is
            "this text describes this clip".
        condition_states (`(clips, tokens, hidden)`), condition_mask (bool, `(clips, tokens)`): The inputs of the
            cross-encoder for each clip, if pairs were chosen.
        temperature (`()`): The learned contrastive temperature, if the model has one.
        score_parameters (two of shape `()`): The learned mix and curvature of `"hypergram"`. Learned scalars are part
            of the output because data-parallel wrappers follow the graph from it to find the used parameters.
        text_model_output, vision_model_output, audio_model_output, subtitle_model_output (`ModelOutput`): The outputs
            of the towers, if `output_hidden_states` or `output_attentions` is set: one row per query, frame, segment
            and subtitle of the clips that have the modality.
    """

    loss: torch.FloatTensor | None = None
    logits_per_text: torch.FloatTensor | None = None
    logits_per_video: torch.FloatTensor | None = None
    text_embeds: torch.FloatTensor | None = None
    video_embeds: torch.FloatTensor | None = None
    audio_embeds: torch.FloatTensor | None = None
    subtitle_embeds: torch.FloatTensor | None = None
    modality_embeds: torch.FloatTensor | None = None
    modality_mask: torch.BoolTensor | None = None
    scores: torch.FloatTensor | None = None
    match_logits: torch.FloatTensor | None = None
    condition_states: torch.FloatTensor | None = None
    condition_mask: torch.BoolTensor | None = None
    temperature: torch.FloatTensor | None = None
    score_parameters: tuple[torch.FloatTensor, torch.FloatTensor] | None = None
    text_model_output: ModelOutput | None = None
    vision_model_output: ModelOutput | None = None
    audio_model_output: ModelOutput | None = None
    subtitle_model_output: ModelOutput | None = None

    def to_tuple(self) -> tuple[Any, ...]:
        """Return all fields that are not None, the outputs of towers as tuples too."""
        parts = []
        for value in self.values():
            if isinstance(value, ModelOutput):
                value = value.to_tuple()
            parts.append(value)
        return tuple(parts)


class ScalarLogitScale(nn.Module):
    """A learned contrastive temperature, stored as the logarithm of its inverse as in CLIP. It is a module, because an
    adapter can only train and save modules."""

    initial_value = math.log(1 / _TEMPERATURE)

    def __init__(self):
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(self.initial_value))

    def forward(self) -> torch.Tensor:
        """Return the temperature, at least 0.01 (CLIP's maximum scale is 100). At this minimum it has no gradient."""
        return torch.exp(-self.log_scale).clamp(min=0.01)


class ScalarHyperbolicMix(nn.Module):
    """The two learned scalars of `"hypergram"`: the share of the Euclidean volume, and the curvature of the other."""

    initial_logit = math.log(0.51 / 0.49)  # of a mix of 0.51

    def __init__(self):
        super().__init__()
        self.mix_logit = nn.Parameter(torch.tensor(self.initial_logit))
        self.log_curvature = nn.Parameter(torch.tensor(0.0))

    def forward(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the mix, in (0, 1), and the curvature, positive."""
        return torch.sigmoid(self.mix_logit), torch.exp(self.log_curvature)


def _check_adapters(model: PreTrainedModel, *_: Any) -> None:
    """Raise a ValueError if an adapter in a model was trained with another configuration than the model's."""
    own = own_fields(model.config)
    for adapter in getattr(model, "peft_config", {}).values():
        trained = (adapter.auto_mapping or {}).get("configuration", {})
        different = {name: value for name, value in trained.items() if own.get(name) != value}
        if different:
            raise ValueError(
                f"The adapter was trained with {different}, unlike the model that it is put on. Load both by "
                "`AutoModel.from_pretrained(ADAPTER)`, or load the base with the adapter's configuration, "
                "`config=AutoConfig.from_pretrained(ADAPTER)`."
            )


class ScalarRetrievalModel(PreTrainedModel):
    """Base class of models that embed queries and clips and score them as the configuration says. A subclass calls
    `add_score_modules` in its `__init__`, and has `get_text_features` and `get_modality_features`."""

    base_model_prefix = "scalar"
    main_input_name = "input_ids"
    input_modalities = ("text", "video", "audio")  # any other modality is a text
    supports_gradient_checkpointing = True

    if TYPE_CHECKING:

        def __call__(self, *args: object, **kwargs: object) -> ScalarOutput: ...

    @property
    def towers(self) -> Iterator[nn.Module]:
        """The parts that are frozen as a whole."""
        return iter(())

    def train(self, mode: bool = True) -> Self:
        """Set the training mode, except of towers without trainable parameters: frozen towers stay deterministic."""
        super().train(mode)
        for tower in self.towers:
            if not any(parameter.requires_grad for parameter in tower.parameters()):
                tower.eval()
        return self

    @torch.no_grad()
    def _init_weights(self, module: nn.Module):
        super()._init_weights(module)
        if isinstance(module, ScalarLogitScale):
            initialization.constant_(module.log_scale, module.initial_value)
        elif isinstance(module, ScalarHyperbolicMix):
            initialization.constant_(module.mix_logit, module.initial_logit)
            initialization.zeros_(module.log_curvature)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | os.PathLike, *args: Any, **kwargs: Any) -> Self:
        """Load a model as transformers does. An adapter, in a folder or on the Hub, is loaded with the configuration
        of its run and on the commit of its base that it was trained on; transformers takes those of the base."""
        # Find the adapter, which `AutoModel` has found already if it is on the Hub. Its files are on the disk then.
        options = dict(kwargs.get("adapter_kwargs") or {})
        source = options.pop("_adapter_model_path", pretrained_model_name_or_path)
        for name in ("cache_dir", "local_files_only", "revision", "token"):
            options.setdefault(name, kwargs.get(name))
        path = find_adapter_config_file(source, **options)
        has_config = path and cached_file(source, CONFIG_NAME, **options, _raise_exceptions_for_missing_entries=False)
        if has_config and not any(Path(source).glob("model*.safetensors")):
            adapter = json.loads(Path(path).read_text("utf-8"))
            pretrained_model_name_or_path = adapter["base_model_name_or_path"]
            kwargs["revision"] = adapter.get("revision") or kwargs.get("revision")
            # `AutoModel` has read the configuration of the base, unless another one is given.
            given = kwargs.get("config")
            if given is None or getattr(given, "_name_or_path", None) == pretrained_model_name_or_path:
                kwargs["config"] = cls.config_class.from_pretrained(source, **options)
            kwargs["adapter_kwargs"] = options | {"_adapter_model_path": source}
        return super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)

    def load_adapter(self, *args: Any, **kwargs: Any) -> Any:
        """Load an adapter into this model as transformers does.

        Raises:
            ValueError: If it was trained with another configuration than that of this model.
        """
        info = super().load_adapter(*args, **kwargs)
        _check_adapters(self)
        return info

    def save_pretrained(self, save_directory: str | os.PathLike, *args: Any, **kwargs: Any) -> None:
        """Save as transformers does, which leaves out the configuration if there is an adapter in the model."""
        super().save_pretrained(save_directory, *args, **kwargs)
        if self._hf_peft_config_loaded:
            self.config.save_pretrained(save_directory)

    def add_score_modules(self) -> None:
        """Add the learned scalars of the configuration, and the check of adapters that PEFT loads into the model."""
        self.register_load_state_dict_post_hook(_check_adapters)
        method = find_method(self.config.aggregation, self.config.modalities, "aggregation")
        if method.uses_concat_heads and not getattr(self.config, "has_concat_heads", False):
            raise ValueError(
                f"`aggregation={self.config.aggregation!r}` needs `has_concat_heads=True`, which only a three-tower "
                "model can have. Convert the checkpoint with `--concat-heads`."
            )
        if self.config.has_logit_scale:
            self.logit_scale = ScalarLogitScale()
        if method.uses_hyperbolic_mix:
            self.hyperbolic = ScalarHyperbolicMix()

    def clip_inputs(
        self,
        inputs: Mapping[str, Any],
        modality_mask: torch.Tensor | None,
        choices: Mapping[str, Sequence[tuple[str, ...]]],
    ) -> tuple[dict[str, tuple[str, ...]], torch.Tensor]:
        """
        Check that the inputs of clips are consistent with each other and with the mask.

        Args:
            inputs (`dict`): The inputs by name, one row per clip; None is absent.
            modality_mask (`torch.BoolTensor` of shape `(batch, M)`, *optional*): By default every modality with inputs
                is present in every row.
            choices (`dict`): For each modality the sets of inputs of which one is needed, whole.

        Returns:
            The set that is given of each modality, and the mask.
        """
        # Each modality needs one whole set of its inputs.
        names = self.config.modalities
        present = {key: value for key, value in inputs.items() if value is not None}
        unknown = set(present)
        given = {}
        for name, sets in choices.items():
            keys = set().union(*sets) & present.keys()
            unknown -= keys
            if keys:
                fitting = [one for one in sets if set(one) == keys]
                if not fitting:
                    raise ValueError(f"The inputs of the {name} must be one of {sets}, got {sorted(keys)}.")
                given[name] = fitting[0]
        if unknown:
            raise TypeError(
                f"This model embeds {names} and got the unknown inputs {sorted(unknown)}. Use the processor that was "
                "saved with it."
            )
        if not given:
            raise ValueError(f"Nothing to embed: expected queries, or the inputs of at least one modality of {names}.")
        # One row per clip in all of them, and in the mask, which may hide inputs but not invent them.
        sizes = {key: len(value) for key, value in present.items()}
        if len(set(sizes.values())) > 1:
            raise ValueError(f"All modalities must have one row per clip, got {sizes}.")
        first = next(iter(present.values()))
        shape = len(first), len(names)
        device = getattr(first, "device", self.device)
        has_input = torch.tensor([name in given for name in names], device=device).expand(shape)
        # By default, what is given is present in every row.
        if modality_mask is None:
            return given, has_input.clone()
        if modality_mask.shape != shape or modality_mask.dtype != torch.bool:
            raise ValueError(
                f"`modality_mask` must be a bool tensor of shape {shape}, got {modality_mask.dtype} "
                f"{tuple(modality_mask.shape)}."
            )
        if (modality_mask & ~has_input).any():
            missing = [name for name in names if name not in given]
            raise ValueError(f"`modality_mask` marks {missing} as present in some rows, but their inputs are None.")
        return given, modality_mask & has_input

    def _weighing(self, **given: Any) -> dict[str, Any]:
        """The options of a query's weights: as given, else those of the configuration, if any."""
        options = {}
        for name in WEIGHING:
            value = given.get(name)
            if value is None:
                value = getattr(self.config, name)
            if value is not None:
                options[name] = value
        return options

    def score_options(self) -> dict[str, Any]:
        """Return the keyword arguments of [`~scores_scalar.retrieval_scores`] for this model: those of the
        configuration, and for `"hypergram"` the learned scalars with gradient. The names of modalities are not among
        them: embeddings have theirs."""
        # What the configuration sets, and what is learned.
        options: dict[str, Any] = {"method": self.config.aggregation} | self._weighing()
        if find_method(self.config.aggregation, self.config.modalities).uses_hyperbolic_mix:
            options["hyperbolic_mix"], options["curvature"] = self.hyperbolic()
        return options

    def compute_scores(
        self,
        text_embeds: torch.Tensor,
        modality_embeds: torch.Tensor,
        modality_mask: torch.Tensor,
        concat_embeds: torch.Tensor | None = None,
        **weighing: Any,
    ) -> torch.Tensor:
        """
        Score stored embeddings with the score of this model: every query against every clip.

        Args:
            text_embeds (`torch.Tensor` of shape `(queries, dim)`), modality_embeds (`(clips, M, dim)`),
                modality_mask (`(clips, M)`): As returned by `forward`.
            concat_embeds (`torch.Tensor` of shape `(clips, 3, dim)`, *optional*): From [`get_concat_features`], for
                the aggregation `"concat_head"`.
            **weighing (`query_temperature`, `modality_scale`, `modality_offset`): Override those of the configuration.
                Ones and zeros disable a calibration.

        Returns:
            `torch.Tensor` of shape `(queries, clips)`, higher is better; `-inf` where the score is not defined.
        """
        options = self.score_options() | self._weighing(**weighing)
        embeds = text_embeds, modality_embeds, modality_mask
        return retrieval_scores(*embeds, concat_embeds=concat_embeds, modalities=self.config.modalities, **options)

    def compute_weights(
        self, text_embeds: torch.Tensor, modality_embeds: torch.Tensor, modality_mask: torch.Tensor, **weighing: Any
    ) -> torch.Tensor:
        """
        Compute the weight of each modality of each clip for each query, SCALAR Eq. 2: why a clip matched.

        They are the weights of the aggregation `"scalar"`, whatever this model's own is: `(queries, clips, M)`,
        non-negative, summing to 1, exactly 0 where absent. Arguments as of [`compute_scores`].
        """
        options = self._weighing(**weighing) | {"modalities": self.config.modalities}
        return query_weights(text_embeds, modality_embeds, modality_mask, **options)

    def new_output(self) -> ScalarOutput:
        """Return an output with only the learned scalars."""
        output = ScalarOutput()
        if self.config.has_logit_scale:
            output.temperature = self.logit_scale()
        if find_method(self.config.aggregation, self.config.modalities).uses_hyperbolic_mix:
            output.score_parameters = self.hyperbolic()
        return output

    def stack_modalities(self, embeds: Mapping[str, torch.Tensor], modality_mask: torch.Tensor) -> torch.Tensor:
        """Stack the embeddings `(batch, dim)` of modalities by name to `(batch, M, dim)`, zero for those that no clip
        has."""
        # Scores need single precision at least, whatever that of the weights.
        dtype = torch.promote_types(self.dtype, torch.float32)
        absent = torch.zeros(len(modality_mask), self.config.projection_dim, dtype=dtype, device=modality_mask.device)
        # Towers may be on several devices; combined results are on the mask's device.
        columns = [embeds.get(name, absent).to(absent) for name in self.config.modalities]
        return torch.stack(columns, dim=1)

    def add_clips(self, output: ScalarOutput, modality_embeds: torch.Tensor, modality_mask: torch.Tensor) -> None:
        """Add the embeddings of clips to an output, those of the paper's modalities by their names, too."""
        output.modality_embeds = modality_embeds
        output.modality_mask = modality_mask
        for index, name in enumerate(self.config.modalities):
            if name in PAPER_MODALITIES:
                output[f"{name}_embeds"] = modality_embeds[:, index]

    def score_output(
        self, output: ScalarOutput, return_loss: bool | None = None, concat_embeds: torch.Tensor | None = None
    ) -> None:
        """Add the scores of the embeddings in an output, and on request the loss if texts are as many as clips."""
        output.scores = self.compute_scores(
            output.text_embeds, output.modality_embeds, output.modality_mask, concat_embeds=concat_embeds
        )
        # Logits as in CLIP: scores over the contrastive temperature.
        temperature = output.temperature
        if temperature is None:
            temperature = _TEMPERATURE
        output.logits_per_text = output.scores / temperature
        output.logits_per_video = output.logits_per_text.T
        if return_loss and output.scores.shape[0] == output.scores.shape[1]:
            output.loss = info_nce(output.logits_per_text)


class Rows:
    """The rows of a batch that have a modality; only these are computed."""

    def __init__(self, present: torch.Tensor):
        self.size = len(present)
        self.index = present.nonzero().flatten()

    def __bool__(self) -> bool:
        return len(self.index) > 0

    def take(self, values: torch.Tensor | list) -> torch.Tensor | list:
        """Select these rows of a tensor, or of a list with an item per clip."""
        if not isinstance(values, torch.Tensor):
            return [values[index] for index in self.index.tolist()]
        # Selecting every row would needlessly copy the largest tensor of the step.
        if len(self.index) == len(values):
            return values
        return values[self.index]

    def spread(self, values: torch.Tensor) -> torch.Tensor:
        """Put the values of these rows at their positions, with zeros elsewhere."""
        if len(self.index) == self.size:
            return values
        # Not in place, so that gradients pass.
        zeros = values.new_zeros(self.size, *values.shape[1:])
        return zeros.index_put((self.index.to(values.device),), values)


def mean_of_tokens(states: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
    """The mean of the tokens `(batch, tokens, hidden)` that are not padding."""
    # A row of padding alone gives zero.
    weights = attention_mask[..., None].to(states.dtype)
    return (states * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)


def info_nce(logits: torch.Tensor) -> torch.Tensor:
    """The mean cross-entropy of rows and columns, where row i matches column i."""
    # Each row has its own column, and each column its own row.
    target = torch.arange(len(logits), device=logits.device)
    return (nn.functional.cross_entropy(logits, target) + nn.functional.cross_entropy(logits.T, target)) / 2


__all__ = ["Rows", "ScalarLogitScale", "ScalarOutput", "ScalarRetrievalModel", "info_nce", "mean_of_tokens"]
