"""README.md of what is published: front matter, the text of a template, and what a person wrote between marked lines.

A card is written anew each time. What no file says, the licence, the languages and the text between the marked lines,
is read from the earlier card and written again, byte for byte.
"""

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import jinja2
import torch
import yaml
from huggingface_hub import CardData, ModelCardData
from huggingface_hub.errors import HFValidationError
from huggingface_hub.repocard import REGEX_YAML_BLOCK
from huggingface_hub.utils import validate_repo_id, yaml_dump

from hub_cards.files import read_json
from hub_cards.markdown import Markdown, code, table, text
from hub_cards.results import (
    POLICY_NAMES,
    Result,
    complete_table,
    eval_results,
    findings,
    identifier,
    masked_table,
    presence,
    read_results,
)
from hub_cards.training import (
    Emissions,
    check_parameters,
    count_parameters,
    read_emissions,
    read_training,
    training_table,
)
from modeling_scalar.aggregation_scalar import METHODS, method_title, scorable_clips
from modeling_scalar.configuration_scalar import MODALITIES

KEPT_BEGIN = "<!-- hub_cards: begin: what stands between these two lines is kept when the card is written again -->"
KEPT_END = "<!-- hub_cards: end of what is kept -->"

# Front matter that cards here write, where the files give it: never taken over from an earlier card. (Those of Spaces
# write `datasets` too; beside a model it is a person's.)
_FROM_FILES = frozenset(
    "license license_name license_link language model-index co2_eq_emissions base_model base_model_relation "
    "library_name pipeline_tag tags configs dataset_info pretty_name size_categories task_categories title emoji "
    "colorFrom colorTo sdk sdk_version python_version app_file pinned description short_description models".split()
)
_TEMPLATES = Path(__file__).parent / "templates"
_MARK = re.compile(r"^[ \t]*<!-- hub_cards:.*$", re.MULTILINE)
_KIND = re.compile(r"<!-- hub_cards: ([a-z]+) -->")


@dataclass(frozen=True)
class Details:
    """
    What no file says. What the publisher gives now wins over what the card on the Hub says already.

    Args:
        license (`str`, *optional*): an id of the Hub's list, "apache-2.0".
        languages (`tuple[str, ...]`): ISO 639-1 codes, "en".
        kept (`str`): the Markdown between the marked lines of the earlier card.
        license_name (`str`, *optional*), license_link (`str`, *optional*): of the licence "other".
        others (`dict`): front matter that no card here writes, such as `extra_gated_prompt`: a person's.
    """

    license: str | None = None
    languages: tuple[str, ...] = ()
    kept: str = ""
    license_name: str | None = None
    license_link: str | None = None
    others: Mapping[str, Any] = field(default_factory=dict)

    def over(self, earlier: "Details") -> "Details":
        """Return these details, with those of an earlier card for what is not given here."""
        if self.license is None:  # a name and a link belong to one licence
            names = ("license", "license_name", "license_link")
            merged = replace(self, **{name: getattr(earlier, name) for name in names})
        else:
            merged = self
        return replace(
            merged,
            languages=self.languages or earlier.languages,
            kept=self.kept or earlier.kept,
            others={**earlier.others, **self.others},
        )


def _front_matter(card: str) -> dict[str, Any]:
    block = REGEX_YAML_BLOCK.search(card)
    if block is None:
        return {}
    try:
        data = yaml.safe_load(block.group(2))
    except yaml.YAMLError as error:
        raise ValueError(f"The front matter of the card is not YAML: {error}. Mend it, then publish again.") from error
    if not isinstance(data, dict | None):
        raise ValueError(f"The front matter of the card must be a mapping, got {type(data).__name__}.")
    return data or {}


def _strings(data: Mapping[str, Any], name: str) -> tuple[str, ...]:
    found = data.get(name)
    found = [] if found is None else found if isinstance(found, list) else [found]
    if not all(isinstance(item, str) for item in found):
        # YAML 1.1 reads an unquoted `no`, Norwegian, as false.
        raise ValueError(f"`{name}` in the front matter of the card must be strings, got {found}. Quote them.")
    return tuple(found)


def read_marks(card: str) -> tuple[str | None, str]:
    """
    Read the marked lines of a card.

    Args:
        card (`str`): a README.md, with its own line breaks.

    Returns:
        `tuple`: the kind of the card, `None` if it was not written here, and the text that is kept.

    Raises:
        ValueError: a marked line is missing, doubled, changed or in the wrong place, so that text could be lost.
    """
    marks = [(match.group().strip(), match) for match in _MARK.finditer(card)]
    kinds = [match.group(1) for mark, _ in marks if (match := _KIND.fullmatch(mark))]
    begins, ends = ([match for mark, match in marks if mark == line] for line in (KEPT_BEGIN, KEPT_END))
    unknown = [mark for mark, _ in marks if mark not in (KEPT_BEGIN, KEPT_END) and not _KIND.fullmatch(mark)]
    if unknown or len(kinds) > 1 or (len(begins), len(ends)) != ((1, 1) if kinds else (0, 0)):
        raise ValueError(
            f"The marked lines of the card are broken: expected one that names its kind, then\n{KEPT_BEGIN}\nand\n"
            f"{KEPT_END}\nonce each, got {[mark for mark, _ in marks]}. Put them back around what is to be kept."
        )
    if not kinds:
        return None, ""
    if begins[0].start() > ends[0].start():
        raise ValueError(f"The marked lines of the card are in the wrong order: {KEPT_END} comes first. Swap them.")
    line_break = "\r\n" if begins[0].group().endswith("\r") else "\n"
    return kinds[0], card[begins[0].end() + 1 : ends[0].start()].removesuffix(line_break)


def read_card(card: str) -> tuple[str | None, Details]:
    """
    Read what has to outlive a card.

    Args:
        card (`str`): an earlier README.md, with its own line breaks.

    Returns:
        `tuple`: the kind of the card, `None` if it was not written here, and its [`Details`].

    Raises:
        ValueError: the marked lines are broken, so that something could be lost; the front matter is not a YAML
            mapping, or its licence or languages are not strings.
    """
    kind, kept = read_marks(card)
    data = _front_matter(card)
    licenses = _strings(data, "license")
    if len(licenses) > 1:
        raise ValueError(f"Expected one `license` in the front matter of the card, got {list(licenses)}. Choose one.")
    names = {name: next(iter(_strings(data, name)), None) for name in ("license_name", "license_link")}
    others = {name: value for name, value in data.items() if name not in _FROM_FILES}
    return kind, Details(next(iter(licenses), None), _strings(data, "language"), kept, **names, others=others)


def _metadata(data: CardData | Mapping[str, Any], details: Details) -> dict[str, Any]:
    metadata = data.to_dict() if isinstance(data, CardData) else dict(data)
    known = {
        "license": details.license,
        "license_name": details.license_name,
        "license_link": details.license_link,
        "language": list(details.languages) or None,
    }
    known = {name: value for name, value in known.items() if value is not None}
    for name, value in known.items():
        if metadata.get(name, value) != value:
            raise ValueError(f"`{name}` is {value!r} in the details of the card but {metadata[name]!r} in its data.")
    return known | metadata | {name: value for name, value in details.others.items() if name not in metadata}


def render(kind: str, data: CardData | Mapping[str, Any], details: Details, **variables: Any) -> str:
    """
    Write the README.md of a kind.

    In a template `details` and `text`, `code` and `table` of [`hub_cards.markdown`], also as filters, are at hand.
    `{% include "_kept.md.jinja" %}` is the section that people write in, and every template needs it.

    Args:
        kind (`str`): the name of a template in `templates/`, without `.md.jinja`.
        data ([`~huggingface_hub.CardData`] or `Mapping`): the front matter. Licence and languages of `details` are
            added to it.
        details ([`Details`]): what no file says.
        variables: for the template. One that it names and does not get is an error.

    Returns:
        `str`: front matter, the line that names the kind, and the text.

    Raises:
        ValueError: the data contradicts the details; the kept text holds a marked line.
    """
    loader = jinja2.FileSystemLoader(_TEMPLATES)
    environment = jinja2.Environment(
        loader=loader,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    helpers = {"text": text, "code": code, "table": table}
    environment.filters |= helpers
    environment.globals |= helpers
    variables |= {"details": details, "kept_begin": KEPT_BEGIN, "kept_end": KEPT_END}
    body = environment.get_template(f"{kind}.md.jinja").render(variables)
    front_matter = yaml_dump(_metadata(data, details), sort_keys=False).strip()
    card = f"---\n{front_matter}\n---\n\n<!-- hub_cards: {kind} -->\n\n{body}"
    found, read = read_card(card)
    if (found, read.kept) != (kind, details.kept):
        raise ValueError(
            "The card would not be read back as it was written: its template needs the section `_kept.md.jinja` once, "
            f"and no line of the kept text may begin with {KEPT_BEGIN.split(':')[0]!r}."
        )
    return card


# Models and adapters ------------------------------------------------------------------------------------------------

_TAGS = ("video-retrieval", "text-to-video-retrieval", "multimodal", "video", "audio", "subtitles")
_MINIATURE = ("miniature", "miniature_classes")
_VAST = ("blip_2_vision_model", "beats", "bert")


def _optional_json(path: Path) -> dict[str, Any] | None:
    return read_json(path) if path.is_file() else None


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


def _hardware(training: Mapping[str, Any] | None) -> str | None:
    if training is None:
        return None
    hardware = training["hardware"]
    return f"{hardware['num_processes']} x {hardware['device']}"


def _evaluation(folder: Path, result: Result) -> dict[str, Any]:
    """What the card says of one evaluation."""
    path = Path("results", result.name)
    report = path / "report" / "tables.md"
    return {
        "result": result,
        "content": result.content,
        "own": method_title(result.method),
        "presence": presence(result),
        "complete": complete_table(result),
        "masked": masked_table(result),
        "policies": {policy: POLICY_NAMES.get(policy, policy) for policy in result.policies},
        "depth": max((entry["depth"] for entry in result.content["two_stage"]), default=None),
        "findings": findings(result),
        "is_miniature": result.content["benchmark"] in _MINIATURE,
        "file": (path / "results.json").as_posix(),
        "figure": (path / "results.png").as_posix() if "results.png" in result.figures else None,
        "report": report.as_posix() if (folder / report).is_file() else None,
    }


def _emissions_data(
    emissions: Emissions, training: Mapping[str, Any] | None, recipe: Mapping[str, Any] | None
) -> dict[str, Any]:
    found = {
        "emissions": emissions.grams,
        "source": f"CodeCarbon {emissions.version}",
        "training_type": "pre-training" if recipe is not None and recipe.get("new_model") else "fine-tuning",
        "geographical_location": emissions.place or None,
        "hardware_used": _hardware(training),
    }
    return {name: value for name, value in found.items() if value is not None}


def _made_with(record: Mapping[str, Any]) -> Markdown:
    """When, with which code and with which versions something was made, as its file says."""
    date, source = record.get("date"), record.get("source")
    commit = "its commit is not recorded"
    if source is not None:
        commit = f"commit {code(source['commit'])}" + (" with changes" if source["dirty"] else "")
    versions = ", ".join(f"{name} {version}" for name, version in (record.get("versions") or {}).items() if version)
    return Markdown(f"{text((date or 'date not recorded')[:10])}; code of SCALAR: {commit}; {text(versions)}")


def _counted(counts: Mapping[str, int], trained: Mapping[str, int] | None = None) -> list[list[str]]:
    """The rows of a table of parameters: of each part how many there are and, if known, how many were trained."""
    columns = [counts] if trained is None else [counts, trained]
    rows = [[code(part), *(column.get(part, 0) for column in columns)] for part in counts]
    rows.append(["total", *(sum(column.values()) for column in columns)])
    return [[part, *(f"{number:,}" for number in numbers)] for part, *numbers in rows]


def _describe(folder: Path, repo_id: str, pattern: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The front matter that models and adapters share, and the variables of their templates; `pattern`: of weights."""
    validate_repo_id(repo_id)
    weights = sorted(folder.glob(pattern))
    if not weights:
        raise FileNotFoundError(f"There are no weights ({pattern}) in {folder}.")
    config = read_json(folder / "config.json")
    recipe, training = _optional_json(folder / "recipe.json"), read_training(folder / "training.json")
    emissions = read_emissions(folder / "emissions.csv")
    results = read_results(folder)
    aggregation, temperature = config["aggregation"], _temperature(config["query_temperature"])
    towers = {name: config[f"{name}_config"] for name in ("vision", "audio", "text")}
    model_name = repo_id.split("/")[-1]
    data = {
        "pipeline_tag": "feature-extraction",
        "tags": [*_TAGS, identifier(aggregation)],
    }
    if results:
        data |= {"model_name": model_name, "eval_results": eval_results(results)}
    if emissions is not None:
        data["co2_eq_emissions"] = _emissions_data(emissions, training, recipe)
    variables = {
        "repo_id": repo_id,
        "counts": count_parameters(weights),
        "model_name": model_name,
        "aggregation": aggregation,
        "aggregation_name": method_title(aggregation),
        "query_temperature": temperature,
        "has_equal_weights": math.isinf(temperature),
        "needed": _needed(aggregation),
        "projection_dim": config["projection_dim"],
        "towers": [Markdown(code(tower["model_type"]) + _layers(tower)) for tower in towers.values()],
        "is_vast": tuple(tower["model_type"] for tower in towers.values()) == _VAST,
        "has_second_stage": bool(towers["text"].get("is_decoder") and towers["text"].get("add_cross_attention")),
        "recipe": recipe,
        "training": training,
        "training_time": None if training is None else _duration(training["seconds"]),
        "hardware": _hardware(training),
        "emissions": emissions,
        "emission_time": None if emissions is None else _duration(emissions.seconds),
        "settings": training_table(recipe, training, _optional_json(folder / "adapter_config.json")),
        "made_with": _made_with,
        "counted": _counted,
        "trained_on_miniature": recipe is not None and recipe.get("benchmark") in _MINIATURE,
        "evaluations": [_evaluation(folder, result) for result in results],
    }
    return data, variables


def _temperature(value: Any) -> float:
    """JSON knows no infinity; transformers writes an object in its place."""
    return float(value["__float__"] if isinstance(value, dict) else value)


def _needed(aggregation: str) -> list[str]:
    """The modalities without which a clip has no score."""
    if aggregation not in METHODS:
        return []
    masks = torch.tensor(list(product((False, True), repeat=len(MODALITIES))))
    always = masks[scorable_clips(masks, aggregation)].all(dim=0)
    return [name for name, is_needed in zip(MODALITIES, always.tolist(), strict=True) if is_needed]


def _layers(tower: Mapping[str, Any]) -> str:
    return f" ({tower['num_hidden_layers']} layers)" if isinstance(tower.get("num_hidden_layers"), int) else ""


def model_card(folder: str | os.PathLike, repo_id: str, details: Details) -> str:
    """
    Write the card of a whole model.

    Args:
        folder (`str`): what is published, staged: `config.json`, `model*.safetensors`, and if there are any
            `recipe.json`, `training.json`, `emissions.csv`, `merge.json` and evaluations in `results/`.
        repo_id (`str`): where it goes.
        details ([`Details`]): what no file says.

    Returns:
        `str`: README.md.

    Raises:
        FileNotFoundError: the folder has no `config.json` or no weights, or an evaluation has no `results.json`.
        ValueError: a file is not what its name says, or `training.json` counts other parameters than the weights.
    """
    folder = Path(folder)
    data, variables = _describe(folder, repo_id, "model*.safetensors")
    counts = variables["counts"]
    merge = _optional_json(folder / "merge.json")
    training = variables["training"]
    if training is not None and merge is None:  # the record of a merged model is that of its adapter
        check_parameters(counts, training, is_adapter=False)
    # Only a base that came from the Hub has a commit; any other name is one of a folder.
    if merge is not None and merge.get("base_model_revision"):
        data |= {"base_model": merge["base_model"], "base_model_relation": "finetune"}
    trained = training["trainable_parameters"] if training is not None and merge is None else None
    card = ModelCardData(library_name="transformers", **data)
    return render("model", card, details, merge=merge, trained=trained, adapter=None, **variables)


def _check_base(base: Any, revision: Any) -> None:
    """They become part of code that readers run."""
    try:
        validate_repo_id(base)
    except HFValidationError as error:
        raise ValueError(
            f"adapter_config.json must name the adapter's base by its id on the Hub, got {base!r}: publish the base, "
            "then name it there."
        ) from error
    if revision is not None and not re.fullmatch(r"[\w./-]+", str(revision)):
        raise ValueError(f"`revision` in adapter_config.json must be a commit, branch or tag, got {revision!r}.")


def adapter_card(folder: str | os.PathLike, repo_id: str, details: Details) -> str:
    """
    Write the card of an adapter.

    Args:
        folder (`str`): what is published, staged: `adapter_config.json`, which names the base and its commit,
            `adapter_model.safetensors`, `config.json`, and what [`model_card`] reads beside them.
        repo_id (`str`), details ([`Details`]): as in [`model_card`].

    Returns:
        `str`: README.md.

    Raises:
        FileNotFoundError, ValueError: as [`model_card`].
    """
    folder = Path(folder)
    data, variables = _describe(folder, repo_id, "adapter_model*.safetensors")
    counts = variables["counts"]
    adapter = read_json(folder / "adapter_config.json")
    if variables["training"] is not None:
        check_parameters(counts, variables["training"], is_adapter=True)
    data["tags"] += [identifier(adapter["peft_type"].lower())]
    base, revision = adapter["base_model_name_or_path"], adapter.get("revision")
    _check_base(base, revision)
    card = ModelCardData(library_name="peft", base_model=base, base_model_relation="adapter", **data)
    # What the run changed about the base's way to score is in the adapter's own configuration alone.
    is_changed = variables["recipe"] is None or variables["recipe"].get("aggregation") is not None
    added = [part for part in ("logit_scale", "hyperbolic") if part in counts]
    return render(
        "adapter",
        card,
        details,
        adapter=adapter,
        merge=None,
        is_changed=is_changed,
        added=added,
        **variables,
    )


__all__ = ["KEPT_BEGIN", "KEPT_END", "Details", "adapter_card", "model_card", "read_card", "read_marks", "render"]
