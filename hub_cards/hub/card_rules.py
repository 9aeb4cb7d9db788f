"""The Hub's rules for the cards that are written here, checked without asking it, and what no card should show.

The Hub refuses a commit whose card breaks its rules. It would publish a link to a file that does not exist, a path of
one's own machine or a placeholder.
"""

import math
import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

from huggingface_hub.errors import HFValidationError
from huggingface_hub.repocard import REGEX_YAML_BLOCK
from huggingface_hub.utils import validate_repo_id

from ..card import KEPT_BEGIN, KEPT_END, front_matter, read_marks
from .privacy import TOKEN

REPO_TYPES = ("model", "dataset", "space")

# https://huggingface.co/docs/hub/repositories-licenses
_LICENSES = set(
    """
    apache-2.0 mit openrail bigscience-openrail-m creativeml-openrail-m bigscience-bloom-rail-1.0 bigcode-openrail-m
    afl-3.0 artistic-2.0 bsl-1.0 bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear c-uda cc cc0-1.0 cc-by-2.0 cc-by-2.5
    cc-by-3.0 cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nd-4.0 cc-by-nc-nd-3.0
    cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cdla-sharing-1.0 cdla-permissive-1.0
    cdla-permissive-2.0 wtfpl ecl-2.0 epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 eupl-1.2 agpl-3.0 gfdl gpl gpl-2.0 gpl-3.0
    lgpl lgpl-2.1 lgpl-3.0 isc h-research intel-research lppl-1.3c ms-pl apple-ascl apple-amlr mpl-2.0 odc-by odbl
    openmdw-1.0 openmdw-1.1 openrail++ osl-3.0 postgresql ofl-1.1 ncsa unlicense zlib pddl lgpl-lr
    deepfloyd-if-license fair-noncommercial-research-license llama2 llama3 llama3.1 llama3.2 llama3.3 llama4
    grok2-community gemma unknown other
    """.split()
)
# https://github.com/huggingface/huggingface.js/blob/main/packages/tasks/src/pipelines.ts
_TASKS = set(
    """
    text-classification token-classification table-question-answering question-answering zero-shot-classification
    translation summarization feature-extraction text-generation fill-mask sentence-similarity text-to-speech
    text-to-audio automatic-speech-recognition audio-to-audio audio-classification audio-text-to-text
    voice-activity-detection depth-estimation image-classification object-detection image-segmentation text-to-image
    image-to-text image-to-image image-to-video unconditional-image-generation video-classification
    reinforcement-learning robotics tabular-classification tabular-regression tabular-to-text table-to-text
    multiple-choice text-ranking text-retrieval time-series-forecasting text-to-video image-text-to-text
    image-text-to-image image-text-to-video visual-question-answering document-question-answering
    zero-shot-image-classification graph-ml mask-generation zero-shot-object-detection text-to-3d image-to-3d
    image-feature-extraction video-text-to-text keypoint-detection visual-document-retrieval any-to-any video-to-video
    other
    """.split()
)
# ISO 639-1; the Hub also takes the three letters of ISO 639-2 and 639-3, and these two words.
_LANGUAGES = set(
    """
    aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de dv dz ee el
    en eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie ig ii ik io is it iu
    ja jv ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv mg mh mi mk ml mn mr ms mt my na
    nb nd ne ng nl nn no nr nv ny oc oj om or os pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg sh si sk sl sm sn
    so sq sr ss st su sv sw ta te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu
    code multilingual
    """.split()
)
# https://huggingface.co/docs/hub/model-cards#specifying-a-base-model
_RELATIONS = {"adapter", "finetune", "merge", "quantized"}
# https://github.com/huggingface/hub-docs/blob/main/datasetcard.md, and huggingface_hub's `DatasetCardData`
_SIZES = set(
    "n<1K 1K<n<10K 10K<n<100K 100K<n<1M 1M<n<10M 10M<n<100M 100M<n<1B 1B<n<10B 10B<n<100B 100B<n<1T n>1T other".split()
)
# https://huggingface.co/docs/hub/spaces-config-reference
_SDKS = {"gradio", "docker", "static"}
_COLORS = {"red", "yellow", "green", "blue", "indigo", "purple", "pink", "gray"}
_MAX_DESCRIPTION = 60

_PLACEHOLDER = re.compile(r"\[More Information[^\]\n]*\]|\{\{ *[a-z_]+ *(?:\|[^}\n]*)?\}\}", re.IGNORECASE)
_LOCAL_PATH = re.compile(
    r"(?<![\w/.:~-])/(?:home|Users|root|tmp|private|mnt|media|data|(?<!\]\(/)datasets|var|opt|srv|usr|work|workspace|scratch"
    r"|gpfs|lustre|nfs|storage|project|projects|content|kaggle|app)/[^\s)\"'`>\]]*"
    r"|\bfile://[^\s)\"'`>\]]*|(?<![\w])[A-Za-z]:\\[^\s)\"'`>\]]*"
)
_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})[^\n]*\n.*?(?:^ {0,3}\1[`~]*[ \t]*$|\Z)", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"(?<!`)(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
_LINK = re.compile(
    r"(?<!\\)\]\(\s*<?([^)\s>]+)>?(?:\s+[\"'(][^\n]*?)?\)"
    r"|^ {0,3}\[[^\]\n]+\]:\s*<?([^\s>]+)|(?:src|href)=[\"']([^\"']+)",
    re.MULTILINE,
)
# A place outside the repository: a URL, this page, or one of the Hub's sections.
_ELSEWHERE = re.compile(
    r"[A-Za-z][A-Za-z0-9+.-]*:|//|#|/(?:blog|collections|datasets|docs|models|papers|spaces|tasks)\b"
)


def _listed(data: dict[str, Any], name: str) -> list[Any]:
    """A field that may hold one value or a list of them."""
    value = data.get(name)
    return [] if value is None else value if isinstance(value, list) else [value]


def _is_one_of(value: Any, allowed: set[str]) -> bool:
    return isinstance(value, str) and value in allowed


def _is_url(value: Any) -> bool:
    return isinstance(value, str) and re.match(r"https?://[^\s/]+", value) is not None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


# Rules of every card ------------------------------------------------------------------------------------------------


def _check_license(data: dict[str, Any], folder: Path) -> Iterator[str]:
    found = _listed(data, "license")
    for value in found:
        if not _is_one_of(value, _LICENSES):
            yield (
                f"`license` must be an id of https://huggingface.co/docs/hub/repositories-licenses, got {value!r}. "
                "For any other licence write `other`, with `license_name` and `license_link`."
            )
    name, link = data.get("license_name"), data.get("license_link")
    if "other" in found and not (isinstance(name, str) and re.fullmatch(r"[a-z0-9-.]+", name)):
        yield f"`license: other` needs a `license_name` of lower-case letters, digits, `-` and `.`, got {name!r}."
    if "other" not in found and name is not None:
        yield f"`license_name` belongs to `license: other`, got {name!r} with {found}."
    # A person may have added the file on the Hub.
    is_file = isinstance(link, str) and (link == "LICENSE" or _exists(folder, link))
    if link is not None and not _is_url(link) and not is_file:
        yield f"`license_link` must be a URL or a file of the repository, got {link!r}."


def _check_languages(data: dict[str, Any]) -> Iterator[str]:
    for value in _listed(data, "language"):
        if not isinstance(value, str):
            yield f"`language` must be strings, got {value!r}. YAML reads an unquoted `no` as false: quote it."
        elif value not in _LANGUAGES and not re.fullmatch("[a-z]{3}", value):
            yield f"`language` must be codes of ISO 639, such as `en`, got {value!r}."


def _check_ids(data: dict[str, Any], names: tuple[str, ...]) -> Iterator[str]:
    for name in names:
        for value in _listed(data, name):
            try:
                validate_repo_id(value)
            except HFValidationError:
                yield f"`{name}` must be ids of the Hub, `name` or `user/name`, got {value!r}."


def _check_tags(data: dict[str, Any]) -> Iterator[str]:
    tags = data.get("tags")
    if tags is not None and not (isinstance(tags, list) and all(isinstance(tag, str) and tag for tag in tags)):
        yield f"`tags` must be a list of strings, got {tags!r}."


# Models -------------------------------------------------------------------------------------------------------------


def _check_model(data: dict[str, Any], folder: Path) -> Iterator[str]:
    tag, library, relation = (data.get(name) for name in ("pipeline_tag", "library_name", "base_model_relation"))
    if tag is not None and not _is_one_of(tag, _TASKS):
        yield f"`pipeline_tag` must be a task of https://huggingface.co/tasks, got {tag!r}."
    if library is not None and not (isinstance(library, str) and re.fullmatch(r"[A-Za-z0-9][\w.-]*", library)):
        yield f"`library_name` must be the name of a library, got {library!r}."
    if relation is not None and not _is_one_of(relation, _RELATIONS):
        yield f"`base_model_relation` must be one of {sorted(_RELATIONS)}, got {relation!r}."
    if relation is not None and not _listed(data, "base_model"):
        yield "`base_model_relation` says how this model derives from its `base_model`, which is missing."
    yield from _check_ids(data, ("base_model",))
    emissions = data.get("co2_eq_emissions")
    if emissions is not None:
        grams = emissions.get("emissions") if isinstance(emissions, dict) else None
        if not _is_number(grams) or grams < 0:
            yield f"`co2_eq_emissions` must be a mapping with `emissions` in grams, got {emissions!r}."
    if "model-index" in data:
        yield from _check_model_index(data["model-index"])


def _check_model_index(index: Any) -> Iterator[str]:
    if not isinstance(index, list) or not index or not all(isinstance(entry, dict) for entry in index):
        yield f"`model-index` must be a list of models with `name` and `results`, got {index!r}."
        return
    for entry in index:
        if not isinstance(entry.get("name"), str) or not entry["name"]:
            yield f"`model-index` needs the `name` of its model, got {entry.get('name')!r}."
        results = entry.get("results")
        if not isinstance(results, list):
            yield f"`model-index` needs a list of `results`, got {results!r}."
            continue
        for number, result in enumerate(results):
            for problem in _check_evaluation(result):
                yield f"`model-index`, result {number}: {problem}"


def _check_evaluation(result: Any) -> Iterator[str]:
    if not isinstance(result, dict):
        yield f"expected `task`, `dataset` and `metrics`, got {result!r}."
        return
    for part, fields in (("task", ("type",)), ("dataset", ("type", "name"))):
        content = result.get(part)
        for name in fields:
            value = content.get(name) if isinstance(content, dict) else None
            if not isinstance(value, str) or not value:
                yield f"`{part}.{name}` must be a string, got {value!r}."
    dataset = result.get("dataset")
    if isinstance(dataset, dict) and isinstance(dataset.get("type"), str):
        yield from _check_ids({"dataset.type": dataset["type"]}, ("dataset.type",))
    metrics = result.get("metrics")
    if not isinstance(metrics, list) or not metrics:
        yield f"`metrics` must be a list with at least one, got {metrics!r}."
        return
    for metric in metrics:
        kind, value = (metric.get(name) if isinstance(metric, dict) else None for name in ("type", "value"))
        if not isinstance(kind, str) or not kind:
            yield f"a metric needs a `type`, got {metric!r}."
        elif not _is_number(value) and not (isinstance(value, str) and re.match(r"[-+]?\.?\d", value)):
            # huggingface_hub's `EvalResult` takes "20.0 ± 1.2" too.
            yield f"the value of the metric {kind!r} must be a finite number or begin with one, got {value!r}."


# Data sets ----------------------------------------------------------------------------------------------------------


def _check_dataset(data: dict[str, Any], folder: Path) -> Iterator[str]:
    for name, allowed in (("size_categories", _SIZES), ("task_categories", _TASKS)):
        for value in _listed(data, name):
            if not _is_one_of(value, allowed):
                yield f"`{name}` must be some of {sorted(allowed)}, got {value!r}."
    pretty_name = data.get("pretty_name")
    if pretty_name is not None and not isinstance(pretty_name, str):
        yield f"`pretty_name` must be a string, got {pretty_name!r}."
    configs = data.get("configs")
    if configs is None:
        return
    if not isinstance(configs, list) or not all(isinstance(config, dict) for config in configs):
        yield f"`configs` must be a list of mappings, got {configs!r}."
        return
    names = [config.get("config_name") for config in configs]
    if not all(isinstance(name, str) and name for name in names) or len(set(names)) < len(names):
        yield f"Each of `configs` needs a `config_name` of its own, got {names}."
    if sum(bool(config.get("default")) for config in configs) > 1:
        yield f"Only one of `configs` can be the default, got {names}."
    for config in configs:
        for problem in _check_data_files(config.get("data_files"), folder):
            yield f"`configs`, {config.get('config_name')!r}: {problem}"


def _check_data_files(data_files: Any, folder: Path) -> Iterator[str]:
    if data_files is None:
        return
    files = data_files if isinstance(data_files, list) else [data_files]
    splits = [file["split"] for file in files if isinstance(file, dict) and "split" in file]
    if any(not isinstance(split, str) or not re.fullmatch(r"\w+(\.\w+)*", split) for split in splits):
        yield f"the name of a split must consist of letters, digits, `_` and `.`, got {splits}."
    if len(set(map(str, splits))) < len(splits):
        yield f"a split is there twice, got {splits}."
    for file in files:
        paths = file.get("path") if isinstance(file, dict) else file
        for path in paths if isinstance(paths, list) else [paths]:
            if not isinstance(path, str) or not path:
                yield f"`data_files` must be paths, or mappings of `split` and `path`, got {file!r}."
            elif path.startswith("/") or ".." in PurePosixPath(path).parts:
                yield f"`data_files` must be paths inside the repository, got {path!r}."
            elif not any(found.is_file() for found in folder.glob(path)):
                yield f"`data_files` names {path!r}, but there is no such file."


# Spaces -------------------------------------------------------------------------------------------------------------


def _check_space(data: dict[str, Any], folder: Path) -> Iterator[str]:
    for name in ("title", "emoji", "short_description"):
        if data.get(name) is not None and not isinstance(data[name], str):
            yield f"`{name}` must be a string, got {data[name]!r}."
    sdk, version, python = (data.get(name) for name in ("sdk", "sdk_version", "python_version"))
    if not _is_one_of(sdk, _SDKS):
        yield f"`sdk` must be one of {sorted(_SDKS)}, got {sdk!r}."
    if version is not None and not (isinstance(version, str) and re.fullmatch(r"\d+\.\d+\.\d+", version)):
        yield f"`sdk_version` must be a string x.y.z, got {version!r}. Quote it: YAML reads 6.31 as a number."
    if python is not None and not (isinstance(python, str) and re.fullmatch(r"3\.\d+(\.\d+)?", python)):
        yield f"`python_version` must be a string 3.x or 3.x.y, got {python!r}. Quote it: YAML reads 3.10 as 3.1."
    app = data.get("app_file", "app.py")  # the Hub's default
    if not (isinstance(app, str) and _exists(folder, app)):
        yield f"`app_file` is {app!r}, but there is no such file."
    for name in ("colorFrom", "colorTo"):
        if data.get(name) is not None and not _is_one_of(data[name], _COLORS):
            yield f"`{name}` must be one of {sorted(_COLORS)}, got {data[name]!r}."
    emoji = data.get("emoji")
    if isinstance(emoji, str) and not _is_emoji(emoji):
        yield f"`emoji` must be one emoji, got {emoji!r}."
    description = data.get("short_description")
    if isinstance(description, str) and len(description) > _MAX_DESCRIPTION:
        yield f"`short_description` must have at most {_MAX_DESCRIPTION} characters, got {len(description)}."
    if data.get("pinned") is not None and not isinstance(data["pinned"], bool):
        yield f"`pinned` must be true or false, got {data['pinned']!r}."
    yield from _check_ids(data, ("models", "datasets"))


def _is_emoji(value: str) -> bool:
    """Whether all characters are none that words are written with; several may make up one emoji."""
    return 0 < len(value) <= 8 and all(letter > "\u00a8" and not letter.isalnum() for letter in value)


# Text ---------------------------------------------------------------------------------------------------------------


def _exists(folder: Path, link: str) -> bool:
    """Whether a relative link leads to a file or folder inside `folder`; weights may be staged as symbolic links."""
    target = os.path.normpath(folder / unquote(link))
    return Path(target).is_relative_to(os.path.normpath(folder)) and os.path.exists(target)


def _check_text(card: str, folder: Path) -> Iterator[str]:
    if TOKEN.search(card):
        yield "There is something that looks like an access token. Remove it, and revoke it if it was one."
    # A person may keep what they like: an example with a path, a link to a file that was added on the Hub.
    before, _, rest = card.partition(KEPT_BEGIN)
    written = before + rest.partition(KEPT_END)[2]
    for found in sorted(set(_PLACEHOLDER.findall(_CODE.sub("", _FENCE.sub("", written))))):
        yield f"A placeholder was left in: {found}."
    for found in sorted(set(_LOCAL_PATH.findall(written))):
        yield f"There is a path of one machine: {found}."
    prose = _CODE.sub("", _FENCE.sub("", REGEX_YAML_BLOCK.sub("", written, count=1)))
    for link in dict.fromkeys(part for groups in _LINK.findall(prose) for part in groups if part):
        if not _ELSEWHERE.match(link) and not _exists(folder, link.partition("#")[0].partition("?")[0]):
            yield f"The link {link!r} does not lead to a file of the repository."


def _check_metadata(card: str, folder: Path, repo_type: str | None) -> Iterator[str]:
    try:
        data = front_matter(card)
    except ValueError as error:
        yield str(error)
        return
    if not data:
        yield "There is no front matter: a card begins with metadata in YAML between two lines of `---`."
        return
    try:
        read_marks(card)
    except ValueError as error:
        yield str(error)
    yield from _check_license(data, folder)
    yield from _CHECKS[repo_type or _guess_type(data)](data, folder)
    yield from _check_languages(data)
    yield from _check_tags(data)


_CHECKS = {"model": _check_model, "dataset": _check_dataset, "space": _check_space}


def _guess_type(data: dict[str, Any]) -> str:
    if "sdk" in data:
        return "space"
    return "dataset" if {"configs", "dataset_info", "size_categories", "task_categories"} & data.keys() else "model"


def validate(path: str | os.PathLike, repo_type: str | None = None) -> list[str]:
    """
    Check a card as far as that can be done offline.

    Args:
        path (`str`): a README.md, or the folder of a repository that holds one. Links and files are looked up beside
            the card.
        repo_type (`str`, *optional*): "model", "dataset" or "space"; by default what the front matter looks like.

    Returns:
        `list[str]`: the problems, a sentence each; empty if there are none.

    Raises:
        FileNotFoundError: there is no card.
        ValueError: `repo_type` is not one of the three.
    """
    if repo_type is not None and repo_type not in REPO_TYPES:
        raise ValueError(f"`repo_type` must be one of {REPO_TYPES}, got {repo_type!r}.")
    path = Path(path)
    file = path / "README.md" if path.is_dir() else path
    if not file.is_file():
        raise FileNotFoundError(f"There is no card at {file}: expected a README.md, or a folder that holds one.")
    try:
        card = file.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        return [f"The card is not UTF-8: {error}."]
    return [*_check_metadata(card, file.parent, repo_type), *_check_text(card, file.parent)]


def check_card(folder: str | os.PathLike, repo_type: str) -> None:
    """
    Refuse a folder whose card the Hub would refuse, or nobody should see there.

    Args:
        folder (`str`): what will be published, with its README.md.
        repo_type (`str`): "model", "dataset" or "space".

    Raises:
        FileNotFoundError: there is no card.
        ValueError: it breaks a rule; the message holds every problem.
    """
    problems = validate(folder, repo_type)
    if problems:
        listed = "\n".join(f"- {problem}" for problem in problems)
        raise ValueError(f"The card of this {repo_type} cannot be published:\n{listed}")


__all__ = ["REPO_TYPES", "check_card", "validate"]
