"""What users give by mistake, others with intent: wrong inputs, the command each is given to, and its answer.

An input is a change of valid ones, which `tests/test_wrong_inputs.py` lays into the folder in which a command runs. It
makes every input of the table, `WRONG`, and runs every command.
"""

import hashlib
import io
import json
import os
import shlex
import shutil
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import load_file, save_file

# How an input is made ------------------------------------------------------------------------------------------------

GONE = object()
"""The file or folder is removed."""

FOLDER = object()
"""A folder stands in the place of a file."""


@dataclass(frozen=True)
class Link:
    """A symbolic link."""

    target: str


@dataclass(frozen=True)
class Cut:
    """The first part of the file: a share, from 0 to 1."""

    share: float


@dataclass(frozen=True)
class Copy:
    """A copy of another file or folder."""

    of: str


@dataclass(frozen=True)
class Zip:
    """A compressed archive of files."""

    files: Mapping[str, bytes]


@dataclass(frozen=True)
class Table:
    """A Parquet file."""

    columns: Mapping[str, list]


@dataclass(frozen=True)
class Checkpoint:
    """What `torch.save` writes: shapes stand for tensors of zeros."""

    content: Any
    share: float = 1


@dataclass(frozen=True)
class Fields:
    """A JSON file with some fields changed: `{"retrieval.rates.0.rate": "x"}`; `GONE` leaves one out."""

    changes: Mapping[str, Any]


@dataclass(frozen=True)
class Tensors:
    """A safetensors file with some tensors changed, each by a function of [`CHANGES`]; `GONE` leaves one out."""

    changes: Mapping[str, Any]


@dataclass(frozen=True)
class Header:
    """A safetensors file of this header and this many bytes of zeros; its length can lie."""

    header: Any
    size: int = 0
    length: int | None = None


CHANGES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "nan": lambda tensor: torch.full_like(tensor, float("nan")),
    "longer": lambda tensor: torch.cat([tensor, tensor]),
}


def _change_field(content: Any, path: str, value: Any) -> None:
    *parents, last = path.split(".")
    for name in parents:
        content = content[int(name) if isinstance(content, list) else name]
    last = int(last) if isinstance(content, list) else last
    if value is GONE:
        del content[last]
    else:
        content[last] = value


def _with_tensors(content: Any) -> Any:
    if isinstance(content, dict):
        return {name: _with_tensors(value) for name, value in content.items()}
    return torch.zeros(content) if isinstance(content, tuple) else content


def make(path: Path, content: Any) -> None:
    """Put `content` in the place of what is at `path`."""
    if isinstance(content, Fields):
        found = json.loads(path.read_text())
        for name, value in content.changes.items():
            _change_field(found, name, value)
        content = json.dumps(found)
    elif isinstance(content, Tensors):
        found = load_file(path)
        for name, change in content.changes.items():
            if change is GONE:
                del found[name]
            else:
                found[name] = CHANGES[change](found[name]) if isinstance(change, str) else torch.zeros(change)
        path.unlink()
        save_file(found, path, {"format": "pt"})
        return
    elif isinstance(content, Header):
        header = content.header if isinstance(content.header, bytes) else json.dumps(content.header).encode()
        length = len(header) if content.length is None else content.length
        content = length.to_bytes(8, "little") + header + bytes(content.size)
    elif isinstance(content, Copy):
        found = Path(os.path.normpath(path.parent / content.of.format(metric=METRIC)))
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(found, path, symlinks=True) if found.is_dir() else shutil.copyfile(found, path)
        return
    elif isinstance(content, Zip):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, found in content.files.items():
                archive.writestr(name, found)
        content = buffer.getvalue()
    elif isinstance(content, Table):
        buffer = io.BytesIO()
        pq.write_table(pa.table(content.columns), buffer)
        content = buffer.getvalue()
    elif isinstance(content, Checkpoint):
        buffer = io.BytesIO()
        torch.save(_with_tensors(content.content), buffer)
        content = buffer.getvalue()[: int(content.share * buffer.tell())]
    elif isinstance(content, Cut):
        found = path.read_bytes()
        content = found[: int(len(found) * content.share)]
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    if content is GONE:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    if content is FOLDER:
        path.mkdir()
    elif isinstance(content, Link):
        os.symlink(content.target, path)
    else:
        path.write_bytes(content.encode(errors="surrogateescape") if isinstance(content, str) else content)


# The table -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wrong:
    """
    A wrong input.

    Args:
        name (`str`): what is wrong.
        command (`str`): words as a shell reads them, after `python`; `{name}` is one of `words`.
        message (`str`): part of the sentence that the command prints.
        files (`Mapping`): names in the folder to what is put there, see [`make`].
        code (`int`): how the command ends: 1, what the user can mend; 2, usage; 0, harmless.
        words (`Mapping`): words of the command that no shell would pass on in writing.
    """

    name: str
    command: str
    message: str
    files: Mapping[str, Any] = field(default_factory=dict)
    code: int = 1
    words: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_finding(self) -> bool:
        """Whether the answer is what the command is for, and on stdout."""
        return self.code == 1 and self.command == _VALIDATE

    def argv(self) -> list[str]:
        """The words after `python`."""
        return [
            self.words.get(word[1:-1], word) if word.startswith("{") else word for word in shlex.split(self.command)
        ]


_DEEP_OBJECT = '{"a": ' * 100_000 + "1" + "}" * 100_000


_INDEX = "-m search index data/test --model model --output out"
_QUERY = "-m search query gallery text --model model"
_RUN = "-m eval run --embeddings embeddings --output out --rate 0"
_MODEL = "-m eval run --model model --benchmark miniature --root data --output out --rate 0"
_OWN = "-m eval audit --benchmark own --root"

METRIC = Path(__file__).resolve().parent.parent / "eval" / "metrics" / "retrieval"

_USAGE = [
    ("no command", "-m search", "Usage:"),
    ("an unknown command", "-m search find", "No such command 'find'"),
    ("an unknown option", "-m search info gallery --verbose", "No such option: --verbose"),
    ("no gallery", "-m search info", "Missing argument 'gallery'"),
    ("no output", "-m search index clips --model model", "Missing option '--output'"),
    ("k of 0", f"{_QUERY} --k 0", "should be greater than or equal to 1"),
    ("another precision", f"{_INDEX} --dtype float64", "'float64' is not one of"),
    ("no command of eval", "-m eval", "Usage:"),
    ("an unknown command of eval", "-m eval evaluate", "No such command 'evaluate'"),
    ("eval without output", "-m eval run --embeddings embeddings", "Missing option '--output'"),
    ("a depth of 0", f"{_RUN} --depth 0", "should be greater than or equal to 1"),
    ("a set that shares too much", "-m eval miniature --output out --shared 1.5", "less than or equal to 1"),
    ("a set that shares no number", "-m eval miniature --output out --shared nan", "less than or equal to 1"),
    (
        "a set of 2**63 clips",
        f"-m eval miniature --output out --num-train {2**63}",
        "less than or equal to 1000000",
    ),
    (
        "a set by 2**63 processes",
        f"-m eval miniature --output out --num-proc {2**63}",
        "less than or equal to 1024",
    ),
    ("a report of nothing", "-m eval report --output out", "Missing argument 'results'"),
    ("no command of hub_cards", "-m hub_cards", "Usage:"),
    ("a push without a name", "-m hub_cards model model", "Missing argument 'name'"),
    ("a push of nothing", "-m hub_cards model", "Missing argument 'folder'"),
    ("a Space of no gallery", "-m hub_cards space user/x", "Missing option '--gallery'"),
    ("validate nothing", "-m hub_cards validate", "Missing argument 'path'"),
    ("a conversion of nothing", "-m modeling_scalar.convert_vast_to_hf --output out", "--checkpoint"),
    (
        "a conversion of '--'",
        "-m modeling_scalar.convert_vast_to_hf --checkpoint=-- --output out",
        "expected one argument",
    ),
    ("a conversion to nowhere", "-m modeling_scalar.convert_vast_to_hf --checkpoint x.pt", "--output"),
]

_WORDS = {
    "surrogates": "caf\udce9",
    "control": "\x1b[31mred\x07",
    "long": "word " * 25_000,
    "bidi": "\u202egnp.\u05d0",
    "metric": str(METRIC),
}

_QUERIES = [
    ("no query", "-m search query gallery", "There is no query. Type what you are looking for"),
    ("a query that is not UTF-8", "-m search query gallery {surrogates} --model model", "is not UTF-8"),
    ("an empty query", "-m search query gallery '' --model model", "empty"),
    ("a path that is not UTF-8", "-m search info {surrogates}", "There is no gallery"),
    ("a path with control characters", "-m search info {control}", "\\x1b[31mred\\x07"),
    ("a path that turns the text around", "-m search info {bidi}", "\\u202egnp."),
    ("a gallery of 5,000 characters", f"-m search info {'x' * 5000}", "is too long for this disk"),
    ("a model that is not UTF-8", "-m search index data/test --model {surrogates} --output out", "no model folder"),
    ("a model with control characters", "-m search index data/test --model {control} --output out", "\\x1b"),
    ("a benchmark with control characters", "-m eval audit --benchmark {control} --root data", "\\x1b"),
]
_HARMLESS = [
    ("a query with control characters", "-m search query gallery {control} --model model", "\\x1b[31mred\\x07"),
    ("a query that turns the text around", "-m search query gallery {bidi} --model model", "\\u202e"),
    ("a query of emoji", "-m search query gallery 🐕👩‍🚀 --model model", "query: 🐕👩‍🚀"),
    ("a query of Hebrew", "-m search query gallery 'כלב נובח' --model model", "query: כלב נובח"),
    ("a query of 125,000 characters", "-m search query gallery {long} --model model", "query: word"),
    ("more hits than clips", f"{_QUERY} --k {10**30}", "  3  "),
    ("a query that looks like an option", "-m search query gallery --model model -- --k", "query: --k"),
]

_DEVICES = [
    (f"a device {name!r} of {command.split()[2]}", f"{command} --device {name!r}", "must be one of this machine, cpu")
    for command, names in ((_INDEX, ("foo", "cuda:7", "meta", "", "cpu:1")), (_QUERY, ("foo",)), (_MODEL, ("foo",)))
    for name in names
]

_CONFIG, _WEIGHTS, _PROCESSOR = "model/config.json", "model/model.safetensors", "model/processor_config.json"
_TOKENIZER = "model/tokenizer.json"
_ONE = {"text_projection.weight": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}
_PICKLE = b"\x80\x02cposix\nsystem\nX\x0d\x00\x00\x00touch EXECUTEDq\x00\x85R."
_INDEX_FILE = "model/model.safetensors.index.json"


def _index(**shards: str) -> str:
    return json.dumps({"metadata": {}, "weight_map": shards})


_MODELS = [
    (name, _MODEL if "index" in name else _INDEX, message, files)
    for name, message, files in [
        ("no folder of a model", "There is no model folder 'model', and the Hub does not give it", {"model": GONE}),
        (
            "a file in the place of a model",
            "model is a file. Give the folder of a model or adapter, or its Hub id.",
            {"model": "weights"},
        ),
        ("an empty folder of a model", "holds no model: no file like model*.safetensors", {"model": FOLDER}),
        ("no weights", "holds no model: no file like model*.safetensors", {_WEIGHTS: GONE}),
        (
            "weights without their end",
            "is not a valid safetensors file (Error while deserializing header",
            {_WEIGHTS: Cut(0.9)},
        ),
        (
            "a header of a terabyte",
            "is not a valid safetensors file (Error while deserializing header",
            {_WEIGHTS: Header(_ONE, 4, 2**40)},
        ),
        ("weights of no tensor", "lacks 169 weights of the model, such as", {_WEIGHTS: Header({})}),
        (
            "weights of another model",
            "do not have the shapes that its config.json requires, such as",
            {_WEIGHTS: Header(_ONE, 4)},
        ),
        (
            "a weight is missing",
            "lacks 1 weights of the model, such as ['text_projection.weight'].",
            {_WEIGHTS: Tensors({"text_projection.weight": GONE})},
        ),
        (
            "a weight is NaN",
            "has values that are not finite: its training failed, or",
            {_WEIGHTS: Tensors({"text_projection.weight": "nan"})},
        ),
        (
            "a weight that is too long",
            "do not have the shapes that its config.json requires, such as",
            {_WEIGHTS: Tensors({"text_projection.weight": "longer"})},
        ),
        ("a link to nothing", "There is no", {_WEIGHTS: Link("nowhere")}),
        ("a link in a circle", "is a link that leads to itself.", {_WEIGHTS: Link("model.safetensors")}),
        ("a folder in the place of weights", "is a folder; a file was expected.", {_WEIGHTS: FOLDER}),
        (
            "only a pickle",
            "holds no model: no file like model*.safetensors",
            {_WEIGHTS: GONE, "model/pytorch_model.bin": _PICKLE},
        ),
        (
            "an index of a file that is gone",
            "names model-00001-of-00002.safetensors, but",
            {_WEIGHTS: GONE, _INDEX_FILE: _index(a="model-00001-of-00002.safetensors")},
        ),
        (
            "an index of a file outside",
            "names '../../secret.safetensors', which is not a safetensors file",
            {_WEIGHTS: GONE, _INDEX_FILE: _index(a="../../secret.safetensors")},
        ),
        (
            "an index of a pickle",
            "names 'model.bin', which is not a safetensors file next to it.",
            {_WEIGHTS: GONE, _INDEX_FILE: _index(a="model.bin"), "model/model.bin": _PICKLE},
        ),
        (
            "an index of numbers",
            "must map tensor names to files. Restore the file.",
            {_WEIGHTS: GONE, _INDEX_FILE: '{"weight_map": {"a": 1}}'},
        ),
        ("no configuration", "holds no config.json: it is not a saved model.", {_CONFIG: GONE}),
        (
            "a configuration that is not JSON",
            "is not JSON: Expecting property name enclosed in double quotes: line",
            {_CONFIG: "{model_type: scalar}"},
        ),
        ("a configuration that is a list", "must hold a JSON object, got list. Restore the file.", {_CONFIG: "[]"}),
        (
            "a configuration that is a deep object",
            "is not JSON: maximum recursion depth exceeded while decoding a JSON",
            {_CONFIG: _DEEP_OBJECT},
        ),
        (
            "a configuration of another model",
            "must describe a ScalarModel, got a `model_type` of 'bert'.",
            {_CONFIG: Fields({"model_type": "bert"})},
        ),
        (
            "a configuration of code elsewhere",
            "must describe a ScalarModel, got a `model_type` of 'evil'.",
            {
                _CONFIG: Fields(
                    {"model_type": "evil", "auto_map": {"AutoConfig": "evil.Evil", "AutoModel": "evil.Evil"}}
                ),
                "model/evil.py": "open('EXECUTED', 'w')",
            },
        ),
        (
            "a dimension that is text",
            "cannot be loaded: TypeError: Field 'projection_dim' expected int, got",
            {_CONFIG: Fields({"projection_dim": "16"})},
        ),
        (
            "a dimension of 0",
            "cannot be loaded: `projection_dim` must be at least 1, got 0.",
            {_CONFIG: Fields({"projection_dim": 0})},
        ),
        (
            "another dimension",
            "do not have the shapes that its config.json requires, such as",
            {_CONFIG: Fields({"projection_dim": 17})},
        ),
        (
            "a billion layers",
            "is 1000000000, but the model has 169 weights. Restore the file.",
            {_CONFIG: Fields({"text_config.num_hidden_layers": 10**9})},
        ),
        (
            "a layer too many",
            ".attention.gate_scale']. Use the configuration that belongs to the",
            {_CONFIG: Fields({"audio_config.num_hidden_layers": 3})},
        ),
        (
            "a vocabulary of another size",
            "do not have the shapes that its config.json requires, such as",
            {_CONFIG: Fields({"text_config.vocab_size": 61})},
        ),
        (
            "pictures of 10**9 pixels",
            "makes pictures of 32 pixels a side, but the model needs 1000000000.",
            {_CONFIG: Fields({"vision_config.image_size": 10**9})},
        ),
        (
            "patches of 0 pixels",
            "cannot be loaded: ZeroDivisionError: integer division or modulo by",
            {_CONFIG: Fields({"vision_config.patch_size": 0})},
        ),
        (
            "heads that do not divide",
            "cannot be loaded: `hidden_size` must be a multiple of",
            {_CONFIG: Fields({"audio_config.num_attention_heads": 5})},
        ),
        (
            "a text tower that is a list",
            "cannot be loaded: TypeError: Field 'text_config' with value []",
            {_CONFIG: Fields({"text_config": []})},
        ),
        (
            "a text tower of an unknown kind",
            "cannot be loaded: Unrecognized model type for subconfig: evil. Should",
            {_CONFIG: Fields({"text_config.model_type": "evil"})},
        ),
        ("an unknown score", "`aggregation` must be one of", {_CONFIG: Fields({"aggregation": "best"})}),
        (
            "a temperature of 0",
            "cannot be loaded: `query_temperature` must be positive in float32",
            {_CONFIG: Fields({"query_temperature": 0})},
        ),
        (
            "an unknown pooling",
            "cannot be loaded: `text_pooling` must be one of ('cls', 'mean'",
            {_CONFIG: Fields({"text_pooling": "max"})},
        ),
        (
            "a dtype of no number",
            "cannot be loaded: AttributeError: module 'torch' has no attribute",
            {_CONFIG: Fields({"dtype": "evil"})},
        ),
        (
            "heads that the weights lack",
            "lacks 6 weights of the model, such as ['concat_projections.0.bias'",
            {_CONFIG: Fields({"has_concat_heads": True})},
        ),
        ("no processor", "must hold a ScalarProcessor in its processor_config.json, got None.", {_PROCESSOR: GONE}),
        ("a processor that is a list", "must hold a JSON object, got list. Restore the file.", {_PROCESSOR: "[]"}),
        (
            "a processor of another class",
            "must hold a ScalarProcessor in its processor_config.json, got",
            {_PROCESSOR: Fields({"processor_class": "CLIPProcessor"})},
        ),
        (
            "a processor of code elsewhere",
            "must hold a ScalarProcessor in its processor_config.json, got 'Evil'.",
            {
                _PROCESSOR: Fields({"processor_class": "Evil", "auto_map": {"AutoProcessor": "evil.Evil"}}),
                "model/evil.py": "open('EXECUTED', 'w')",
            },
        ),
        (
            "no frames",
            "cannot be loaded: `num_frames` must be a whole number, at least 1, got 0.",
            {_PROCESSOR: Fields({"num_frames": 0})},
        ),
        (
            "10**9 frames",
            "must be at most 1024 for this model, got 1000000000. Copy the file",
            {_PROCESSOR: Fields({"num_frames": 10**9})},
        ),
        (
            "captions of no token",
            "cannot be loaded: `max_text_length` must be a whole number, at least 1, got 0.",
            {_PROCESSOR: Fields({"max_text_length": 0})},
        ),
        (
            "captions longer than the model reads",
            "must be at most 80 for this model, got 1000000. Copy the file that",
            {_PROCESSOR: Fields({"max_text_length": 10**6})},
        ),
        (
            "pictures of no pixel",
            "cannot be loaded: `image_size` must be a whole number, at least 1, got 0.",
            {_PROCESSOR: Fields({"image_processor.image_size": 0})},
        ),
        (
            "pictures of another size than the model's",
            "must be at most 32 for this model, got 48. Copy the file that the",
            {_PROCESSOR: Fields({"image_processor.image_size": 48})},
        ),
        (
            "a segment of no frame",
            "cannot be loaded: `segment_length` must be a whole number, at least 1, got 0.",
            {_PROCESSOR: Fields({"feature_extractor.segment_length": 0})},
        ),
        (
            "a segment of 10**9 frames",
            "must be at most 100000 for this model, got 1000000000. Copy the",
            {_PROCESSOR: Fields({"feature_extractor.segment_length": 10**9})},
        ),
        (
            "sound of 10**12 filters",
            "cannot be loaded: `num_mel_bins` must be a whole number, at least 1, got",
            {_PROCESSOR: Fields({"feature_extractor.num_mel_bins": 10**12})},
        ),
        (
            "sound of a million filters",
            "must be at most 1024 for this model, got 1000000. Copy the file that",
            {_PROCESSOR: Fields({"feature_extractor.num_mel_bins": 10**6})},
        ),
        (
            "segments that are no number",
            "cannot be loaded: `num_segments` must be a whole number, at least 1, got True.",
            {_PROCESSOR: Fields({"feature_extractor.num_segments": True})},
        ),
        (
            "sound of an infinite mean",
            "cannot be loaded: `mean` must be a number, at least -1e+06 and at most a million, got inf.",
            {_PROCESSOR: Fields({"feature_extractor.mean": float("inf")})},
        ),
        (
            "sound of a deviation that is text",
            "cannot be loaded: `std` must be a number, at least 1e-06 and at most a million, got '3'.",
            {_PROCESSOR: Fields({"feature_extractor.std": "3"})},
        ),
        (
            "pictures of a deviation below 0",
            "cannot be loaded: `image_std` must be a number, at least 1e-06 and at most a million, got -1.",
            {_PROCESSOR: Fields({"image_processor.image_std.0": -1})},
        ),
        (
            "pictures of a mean of 1e300",
            "cannot be loaded: `image_mean` must be a number, at least -1e+06 and at most a million, got 1e+300.",
            {_PROCESSOR: Fields({"image_processor.image_mean.0": 1e300})},
        ),
        (
            "half a frame",
            "cannot be loaded: `num_frames` must be a whole number, at least 1, got 1.5.",
            {_PROCESSOR: Fields({"num_frames": 1.5})},
        ),
        (
            "a dropout of NaN",
            "must be a finite number below 2**53, got nan.",
            {_CONFIG: Fields({"text_config.hidden_dropout_prob": float("nan")})},
        ),
        (
            "no picture processor",
            "If you were trying to load it from 'https://huggingface.co/models'",
            {_PROCESSOR: Fields({"image_processor": GONE})},
        ),
        ("no vocabulary", "holds no vocabulary of its tokenizer (tokenizer.json or vocab.txt).", {_TOKENIZER: GONE}),
        ("a vocabulary that is a list", "must hold a JSON object, got list. Restore the file.", {_TOKENIZER: "[]"}),
        (
            "a word that the model does not know",
            "has 1001 tokens, but the model has 60. Copy the tokenizer that the",
            {_TOKENIZER: Fields({"model.vocab.weather": 1000})},
        ),
        (
            "a tokenizer of code elsewhere",
            "cannot be loaded: it needs remote code, which is never executed",
            {
                "model/tokenizer_config.json": Fields(
                    {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", None]}}
                ),
                "model/evil.py": "open('EXECUTED', 'w')",
            },
        ),
        (
            "tokenizer settings that are a list",
            "must hold a JSON object, got list. Restore the file.",
            {"model/tokenizer_config.json": "[]"},
        ),
    ]
]

_ADAPTER, _LORA = "adapter/adapter_config.json", "adapter/adapter_model.safetensors"
_LORA_A = "base_model.model.text_model.encoder.layer.0.attention.self.query.lora_A.weight"

_ADAPTERS = [
    (name, "-m search index data/test --model adapter --output out", message, files)
    for name, message, files in [
        (
            "an adapter without a base",
            "must name its base, got None, revision 'main'. Name the base in",
            {_ADAPTER: Fields({"base_model_name_or_path": GONE})},
        ),
        (
            "a base that is a list",
            "must name its base, got ['model'], revision 'main'. Name the base in",
            {_ADAPTER: Fields({"base_model_name_or_path": ["model"]})},
        ),
        (
            "an adapter of itself",
            "names itself as its base. Name the base in `base_model_name_or_path`",
            {_ADAPTER: Fields({"base_model_name_or_path": "adapter"})},
        ),
        (
            "adapters in a circle",
            "a model was expected. Name the base in `base_model_name_or_path` of",
            {
                _ADAPTER: Fields({"base_model_name_or_path": "other"}),
                "other": Copy("adapter"),
                "other/adapter_config.json": Fields({"base_model_name_or_path": "adapter"}),
            },
        ),
        (
            "an adapter of an adapter",
            "a model was expected. Name the base in `base_model_name_or_path` of",
            {
                _ADAPTER: Fields({"base_model_name_or_path": "other"}),
                "other": Copy("adapter"),
                "other/adapter_config.json": Fields({"base_model_name_or_path": "model"}),
            },
        ),
        (
            "a base that is gone",
            "is gone. Put it back. Name the base in `base_model_name_or_path` of",
            {_ADAPTER: Fields({"base_model_name_or_path": "/nowhere/model"})},
        ),
        (
            "a base beside it that is gone",
            "is gone. Put it back. Name the base in `base_model_name_or_path` of",
            {_ADAPTER: Fields({"base_model_name_or_path": "./nowhere"})},
        ),
        (
            "a base on the Hub, out of reach",
            "cannot be loaded: user/base is not a folder, and the Hub has",
            {_ADAPTER: Fields({"base_model_name_or_path": "user/base"})},
        ),
        (
            "a base that is no id",
            "There is no model folder 'user/base/more and more', and this is not a",
            {_ADAPTER: Fields({"base_model_name_or_path": "user/base/more and more"})},
        ),
        (
            "a base that is a file",
            "model/config.json is a file. Give the folder of a model or adapter, or",
            {_ADAPTER: Fields({"base_model_name_or_path": "model/config.json"})},
        ),
        (
            "a base without weights",
            "holds no model: no file like model*.safetensors",
            {"model/model.safetensors": GONE},
        ),
        (
            "another kind of adapter",
            "must be 'LORA', got 'IA3'. Other adapters are not supported.",
            {_ADAPTER: Fields({"peft_type": "IA3"})},
        ),
        (
            "a rank of 0",
            "must be those of its weights, which have at most 32 rows, got [0].",
            {_ADAPTER: Fields({"r": 0})},
        ),
        (
            "another rank",
            "do not have the shapes that its base and its adapter_config.json",
            {_ADAPTER: Fields({"r": 3})},
        ),
        (
            "a rank of 10**12",
            "must be those of its weights, which have at most 32 rows, got",
            {_ADAPTER: Fields({"r": 10**12})},
        ),
        (
            "a scale that is text",
            "`lora_alpha` in the adapter_config.json of",
            {_ADAPTER: Fields({"lora_alpha": "8"})},
        ),
        (
            "layers that are copied",
            "must be None, got [[0, 1000000000]]. Other adapters are not supported.",
            {_ADAPTER: Fields({"layer_replication": [[0, 10**9]]})},
        ),
        (
            "targets that are not there",
            "cannot be loaded: No modules were targeted for adaptation. This might",
            {_ADAPTER: Fields({"target_modules": ["evil"]})},
        ),
        (
            "targets that are no expression",
            "cannot be loaded: error: missing ), unterminated subpattern at",
            {_ADAPTER: Fields({"target_modules": "("})},
        ),
        ("an adapter that is a list", "must hold a JSON object, got list. Restore the file.", {_ADAPTER: "[]"}),
        ("no weights of an adapter", "holds no model: no file like model*.safetensors", {_LORA: GONE}),
        (
            "weights of an adapter cut short",
            "is not a valid safetensors file (Error while deserializing header",
            {_LORA: Cut(0.7)},
        ),
        (
            "only a pickle of an adapter",
            "holds no model: no file like model*.safetensors",
            {_LORA: GONE, "adapter/adapter_model.bin": _PICKLE},
        ),
        (
            "an adapter of another shape",
            "do not have the shapes that its base and its adapter_config.json",
            {_LORA: Tensors({_LORA_A: "longer"})},
        ),
        (
            "an adapter of NaN",
            "has values that are not finite: its training failed, or",
            {_LORA: Tensors({_LORA_A: "nan"})},
        ),
        (
            "an adapter without one of its weights",
            "do not fit its base and its adapter_config.json: 1 missing (such as",
            {_LORA: Tensors({_LORA_A: GONE})},
        ),
        (
            "an adapter with a weight of nothing",
            "do not fit its base and its adapter_config.json: 1 unexpected (such",
            {_LORA: Tensors({"base_model.model.evil.lora_A.weight": (2, 2)})},
        ),
        (
            "an adapter of another model",
            "must be those of its weights, which have at most 1 rows, got [2].",
            {_LORA: Header(_ONE, 4)},
        ),
    ]
]

_SIZES = {
    "vision": {"width": 8, "mlp_ratio": 2, "layers": 1, "head_width": 4, "image_size": 32, "patch_size": 16},
    "audio": {
        "encoder_embed_dim": 8, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_embed_dim": 8,
        "input_patch_size": 16, "embed_dim": 8, "conv_bias": False, "conv_pos": 4, "conv_pos_groups": 2,
        "num_buckets": 8, "max_distance": 16, "deep_norm": True,
    },
    "text": {
        "vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8
    },
    "contra_dim": 4, "max_vision_sample_num": 2, "max_audio_sample_num": 1,
}  # fmt: skip
_PLUGIN = """from modeling_scalar.scores_scalar import register_method


@register_method("{name}", "a score")
def score(pairs):
    return {body}
"""
_CONVERT = "-m modeling_scalar.convert_vast_to_hf --checkpoint old.pt --output out"
_CONVERSIONS = [
    ("no checkpoint", _CONVERT, "There is no checkpoint old.pt. Give a file written by `torch.save`."),
    (
        "a folder in the place of a checkpoint",
        _CONVERT,
        "There is no checkpoint old.pt. Give a file written by `torch.save`.",
        {"old.pt": FOLDER},
    ),
    (
        "a checkpoint that executes code",
        _CONVERT,
        "old.pt is not a checkpoint of plain tensors: it is truncated, or not",
        {"old.pt": _PICKLE},
    ),
    (
        "a checkpoint that executes code, zipped",
        _CONVERT,
        "old.pt holds compressed files, such as 'archive/data.pkl', which",
        {"old.pt": Zip({"archive/data.pkl": _PICKLE, "archive/version": b"3"})},
    ),
    (
        "a zip of nothing",
        _CONVERT,
        "old.pt is not a checkpoint of plain tensors: it is damaged, or holds",
        {"old.pt": Zip({})},
    ),
    (
        "a zip bomb",
        _CONVERT,
        "old.pt holds compressed files, such as 'archive/data.pkl', which",
        {"old.pt": Zip({"archive/data.pkl": bytes(2**26), "archive/version": b"3"})},
    ),
    (
        "half a checkpoint",
        _CONVERT,
        "old.pt is not a checkpoint of plain tensors: it is truncated, or not",
        {"old.pt": Checkpoint({"a": (1000, 1000)}, 0.5)},
    ),
    (
        "a checkpoint of another network",
        _CONVERT,
        "old.pt is not a complete checkpoint of this network; nothing was",
        {"old.pt": Checkpoint({"evil.weight": (2, 2)})},
    ),
    (
        "a checkpoint that is a list",
        _CONVERT,
        "old.pt must hold a state dict, a mapping of names to tensors, got",
        {"old.pt": Checkpoint([1, 2])},
    ),
    (
        "a checkpoint of numbers",
        _CONVERT,
        "old.pt must hold a state dict, a mapping of names to tensors, got",
        {"old.pt": Checkpoint({"a": 1.5})},
    ),
    (
        "positions without an axis",
        _CONVERT,
        "old.pt does not have the expected sizes. Pass `--sizes`. tuple index",
        {"old.pt": Checkpoint({"vision_frame_embedding": ()})},
    ),
    (
        "sizes that are not there",
        f"{_CONVERT} --sizes sizes.json",
        "There is no sizes.json.",
        {"old.pt": Checkpoint({})},
    ),
    (
        "sizes that are not JSON",
        f"{_CONVERT} --sizes sizes.json",
        "sizes.json is not JSON: Expecting property name enclosed in double",
        {"old.pt": Checkpoint({}), "sizes.json": "{"},
    ),
    (
        "sizes without a field",
        f"{_CONVERT} --sizes sizes.json",
        "The sizes lack the field 'vision'; `config_from_sizes` says what is",
        {"old.pt": Checkpoint({}), "sizes.json": "{}"},
    ),
    (
        "sizes of text",
        f"{_CONVERT} --sizes sizes.json",
        "The sizes do not describe a valid network: Validation error for",
        {"old.pt": Checkpoint({}), "sizes.json": json.dumps(_SIZES | {"contra_dim": "x"})},
    ),
    (
        "a billion layers to convert",
        f"{_CONVERT} --sizes sizes.json",
        "`vision_config.num_hidden_layers` in the sizes is 1000000000, but the",
        {
            "old.pt": Checkpoint({}),
            "sizes.json": json.dumps(_SIZES | {"vision": _SIZES["vision"] | {"layers": 10**9}}),
        },
    ),
    (
        "output that is a file",
        "-m modeling_scalar.convert_vast_to_hf --checkpoint old.pt --output file",
        "file already exists. Choose a new folder, or remove it.",
        {"old.pt": Checkpoint({}), "file": "mine"},
    ),
    (
        "output that holds something",
        "-m modeling_scalar.convert_vast_to_hf --checkpoint old.pt --output model",
        "model already exists. Choose a new folder, or remove it.",
        {"old.pt": Checkpoint({})},
    ),
    (
        "a tokenizer that is not there",
        f"{_CONVERT} --tokenizer ./nowhere",
        "Cannot load a tokenizer from ./nowhere: Repo id must use",
        {"old.pt": Checkpoint({})},
    ),
]

_EVALS = [
    (
        "nothing to evaluate",
        "-m eval run --output out",
        "Expected a model, a benchmark and its root, or embeddings instead",
    ),
    (
        "a model without a benchmark",
        "-m eval run --output out --model model",
        "A model, a benchmark and its root belong together, got ['model'",
    ),
    ("a rate of NaN", f"{_RUN} --rate nan", "`rate` is the fraction of clips that lose a modality, between 0 and"),
    ("a rate below 0", f"{_RUN} --rate -0.1", "`rate` is the fraction of clips that lose a modality, between 0 and"),
    ("an unknown score to measure", f"{_RUN} --method best", "`methods` must be among"),
    (
        "a score that the embeddings lack",
        f"{_RUN} --method concat_head",
        '"concat_head" needs `concat_embeds`, which were not',
    ),
    ("an unknown policy", f"{_MODEL} --policy ones", "`policies` must be some of ('absent', 'zeros'), got ['ones']."),
    (
        "a fusion chosen on what is reported",
        f"{_MODEL} --fusion-split test",
        "must be chosen on another split than",
    ),
    ("a split that is not there to choose on", f"{_MODEL} --fusion-split val", "`split` of miniature must be one of"),
    ("a negative weight of the fusion", f"{_MODEL} --fusion-weight -1", "must be a finite number from 0, got -1.0"),
    (
        "a second stage without a model",
        f"{_RUN} --two-stage",
        "The second stage needs a cross-encoder and clips to read: give a model whose",
    ),
    (
        "settings of no benchmark",
        f"{_RUN} --captions all",
        "['captions'] say how a benchmark is read: give a model, a benchmark",
    ),
    (
        "an unknown benchmark",
        "-m eval run --model model --benchmark imagenet --root data --output out",
        "`name` must be one of ['activitynet', 'audiocaps', 'didemo'",
    ),
    (
        "an unknown split",
        f"{_MODEL} --split val",
        "`split` of miniature must be one of ('train', 'validation', 'test')",
    ),
    (
        "a setting that the benchmark lacks",
        f"{_MODEL} --captions all",
        "The benchmark miniature has the settings [], not ['captions'].",
    ),
    (
        "a column without a name",
        "-m eval audit --benchmark own --root own.json --column =clip",
        "A column is given as NAME=COLUMN, such as video_id=clip; got",
    ),
    (
        "a column that is none of ours",
        "-m eval audit --benchmark own --root own.json --column clip=video_id",
        "`columns` can name ['video_id', 'caption', 'video_path'",
    ),
    (
        "no embeddings",
        "-m eval run --embeddings nowhere --output out",
        "There are no embeddings at nowhere: neither a folder nor a file.",
    ),
    (
        "embeddings that are a text",
        "-m eval run --embeddings own.json --output out",
        "Embeddings are the folder of a gallery, or a .safetensors or .npz",
        {"own.json": "[]"},
    ),
    (
        "embeddings of an empty folder",
        "-m eval run --embeddings empty --output out",
        "There is no gallery in 'empty': neither gallery.json nor the data set",
        {"empty": FOLDER},
    ),
    (
        "a gallery without queries",
        "-m eval run --embeddings gallery --output out",
        "The gallery gallery has clips but no queries, so relevant clips are unknown",
    ),
    (
        "output in a file",
        "-m eval run --embeddings embeddings --output file --rate 0",
        "file already exists and is not what was expected there. Move it, or",
        {"file": "mine"},
    ),
    (
        "output below a file",
        "-m eval run --embeddings embeddings --output file/out --rate 0",
        "file/out cannot exist: part of this path is a file, not a folder.",
        {"file": "mine"},
    ),
    (
        "results.json that is a folder",
        "-m eval run --embeddings embeddings --output other --rate 0",
        "other/results.json is a folder; a file was expected.",
        {"other/results.json": FOLDER},
    ),
    (
        "a set in a file",
        "-m eval miniature --output file --num-train 1 --num-validation 0 --num-test 1",
        "exists and is not a miniature benchmark. Choose another folder or",
        {"file": "mine"},
    ),
    (
        "a set in a folder of something else",
        "-m eval miniature --output model --num-train 1 --num-validation 0 --num-test 1",
        "exists and is not a miniature benchmark. Choose another folder or",
    ),
    (
        "an audit in a folder",
        "-m eval audit --benchmark miniature --root data --output model",
        "model is a folder; a file was expected.",
    ),
    (
        "a plugin that is not there",
        f"{_RUN} --plugin nowhere",
        "The plugin 'nowhere' cannot be imported: No module named",
    ),
    ("a plugin of no name", f"{_RUN} --plugin ''", "A plugin must be the name of an importable module, got ''."),
    (
        "a plugin that is a path",
        f"{_RUN} --plugin ./mine.py",
        "A plugin must be the name of an importable module, got",
        {"mine.py": ""},
    ),
    (
        "a plugin with a slip",
        f"{_RUN} --plugin mine",
        "The plugin 'mine' failed on import: SyntaxError: invalid",
        {"mine.py": "def score(:\n"},
    ),
    (
        "a plugin that fails",
        f"{_RUN} --plugin mine",
        "The plugin 'mine' failed on import: ZeroDivisionError",
        {"mine.py": "1 / 0\n"},
    ),
    (
        "a plugin that ends the program",
        f"{_RUN} --plugin mine",
        "The plugin 'mine' failed on import: SystemExit: 0 (mine.py",
        {"mine.py": "import sys\nsys.exit(0)\n"},
    ),
    (
        "a plugin that takes a name again",
        f"{_RUN} --plugin mine",
        "The plugin 'mine' failed on import: ValueError: There is a",
        {"mine.py": _PLUGIN.format(name="scalar", body="pairs.similarities[0]")},
    ),
    (
        "a score of another shape",
        f"{_RUN} --plugin mine",
        "The plugin score 'mine' must return a tensor of shape (12, 12)",
        {"mine.py": _PLUGIN.format(name="mine", body="pairs.similarities")},
    ),
    (
        "a score of NaN",
        f"{_RUN} --plugin mine",
        "`scores` has NaN in query rows [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]: a NaN",
        {"mine.py": _PLUGIN.format(name="mine", body="pairs.similarities[0] * float('nan')")},
    ),
    (
        "a score that fails",
        f"{_RUN} --plugin mine",
        "The plugin score 'mine' failed: ZeroDivisionError: division by",
        {"mine.py": _PLUGIN.format(name="mine", body="1 / 0")},
    ),
]

_OWN = "-m eval audit --benchmark own --root"
_MSRVTT = "-m eval audit --benchmark msrvtt --root msrvtt"
_VGGSOUND = "-m eval audit --benchmark vggsound --root vggsound"
_DESCS, _CSV = "msrvtt/descs_ret_test.json", "vggsound/vggsound.csv"
_CLIP = {"video_id": "a", "caption": "a dog", "video_path": "data/test/000000.mp4"}
_VIDEOS = {"msrvtt/videos/a.mp4": Copy("../../data/test/000000.mp4")}


def _clips(*clips: Any) -> str:
    return json.dumps([_CLIP | clip if isinstance(clip, dict) else clip for clip in clips])


_BENCHMARKS = [
    ("no table", f"{_OWN} own.json", "There is no file own.json."),
    (
        "a table of nothing",
        f"{_OWN} own.json",
        "own.json has the columns [], but not ['caption', 'video_id']. Name",
        {"own.json": "[]"},
    ),
    (
        "a table that is an object",
        f"{_OWN} own.json",
        "own.json must hold a list of objects, one per row, got dict.",
        {"own.json": "{}"},
    ),
    (
        "a table cut short",
        f"{_OWN} own.json",
        "own.json: not JSON (Unterminated string starting at: line 1 column",
        {"own.json": _clips({})[:-5]},
    ),
    (
        "a table without ids",
        f"{_OWN} own.json",
        "own.json has the columns ['caption'], but not ['video_id']. Name the ones",
        {"own.json": '[{"caption": "a dog"}]'},
    ),
    (
        "a table without captions",
        f"{_OWN} own.json",
        "own.json has the columns ['video_id'], but not ['caption']. Name the ones",
        {"own.json": '[{"video_id": "a"}]'},
    ),
    (
        "an id that is null",
        f"{_OWN} own.json",
        "own.json, row 1: 'video_id' must be text, got None.",
        {"own.json": _clips({"video_id": None})},
    ),
    (
        "an id of half a character",
        f"{_OWN} own.json",
        "The text '\\ud800' of the annotation is not Unicode. Restore the file.",
        {"own.json": '[{"video_id": "\\ud800", "caption": "a", "video_path": "data/test/000000.mp4"}]'},
    ),
    (
        "an id with a NUL",
        f"{_OWN} own.json",
        "1 of 1 clips lack a file: a\\x00",
        {"own.json": '[{"video_id": "a\\u0000", "caption": "a"}]'},
    ),
    (
        "an id of a file outside",
        f"{_OWN} own.json",
        "1 of 1 clips lack a file: ../../etc/passwd",
        {"own.json": '[{"video_id": "../../etc/passwd", "caption": "a"}]'},
    ),
    (
        "a caption that is null",
        f"{_OWN} own.json",
        "own.json, row 1, clip 'a': 'caption' must be a",
        {"own.json": _clips({"caption": None})},
    ),
    (
        "a caption that is empty",
        f"{_OWN} own.json",
        "own.json, row 1, clip 'a': 'caption' must be a",
        {"own.json": _clips({"caption": "  "})},
    ),
    (
        "a caption of half a character",
        f"{_OWN} own.json",
        "The text '\\ud800' of the annotation is not Unicode. Restore the file.",
        {"own.json": '[{"video_id": "a", "caption": "\\ud800", "video_path": "data/test/000000.mp4"}]'},
    ),
    (
        "captions of which one is a list",
        f"{_OWN} own.json",
        "own.json, row 1, clip 'a': 'caption' must be a",
        {"own.json": _clips({"caption": ["a dog", ["a cat"]]})},
    ),
    (
        "a path that is a list",
        f"{_OWN} own.json",
        "own.json, row 1, clip 'a': 'video_path' must be text",
        {"own.json": _clips({"video_path": ["a.mp4"]})},
    ),
    (
        "a path that is gone",
        f"{_OWN} own.json",
        "1 of 1 clips lack a file: a",
        {"own.json": _clips({"video_path": "nowhere.mp4"})},
    ),
    (
        "a path with a NUL",
        f"{_OWN} own.json",
        "1 of 1 clips lack a file: a",
        {"own.json": _clips({"video_path": "a\0.mp4"})},
    ),
    (
        "a path of 5,000 characters",
        f"{_OWN} own.json",
        "is too long for this disk",
        {"own.json": _clips({"video_path": "x" * 5000})},
    ),
    (
        "a subtitle that is an object",
        f"{_OWN} own.json",
        "own.json, row 1, clip 'a': 'subtitle' must be text, got",
        {"own.json": _clips({"subtitle": {}})},
    ),
    (
        "one clip of two files",
        f"{_OWN} own.json",
        "own.json, row 2 gives other files or texts for the clip",
        {"own.json": _clips({}, {"video_path": "data/test/000001.mp4"})},
    ),
    (
        "a table of another kind",
        f"{_OWN} own.xlsx",
        "A table must be one of ['.csv', '.json', '.jsonl', '.parquet'], got",
        {"own.xlsx": b"PK"},
    ),
    (
        "lines that are not JSON",
        f"{_OWN} own.jsonl",
        "own.jsonl, line 1: not JSON (Expecting value: line 1 column 1 (char 0)).",
        {"own.jsonl": "video_id: a\n"},
    ),
    (
        "a CSV of nothing",
        f"{_OWN} own.csv",
        "own.csv has the columns [], but not ['caption', 'video_id']. Name the ones",
        {"own.csv": ""},
    ),
    ("a CSV without rows", f"{_OWN} own.csv", "own.csv has no rows.", {"own.csv": "video_id,caption\n"}),
    (
        "a CSV with other columns",
        f"{_OWN} own.csv",
        "own.csv has the columns ['id;text'], but not ['caption', 'video_id'].",
        {"own.csv": "id;text\na;a dog\n"},
    ),
    (
        "a CSV with a column twice",
        f"{_OWN} own.csv",
        "own.csv: the columns ['caption'] appear more than once. Give each",
        {"own.csv": "video_id,caption,caption\na,b,c\n"},
    ),
    (
        "a CSV with an open quote",
        f"{_OWN} own.csv",
        "own.csv, line 2: unexpected end of data.",
        {"own.csv": 'video_id,caption\na,"b\n'},
    ),
    (
        "a CSV in Latin-1",
        f"{_OWN} own.csv",
        "own.csv: the table is not UTF-8 (invalid continuation byte, byte 22).",
        {"own.csv": "video_id,caption\na,caf\xe9\n".encode("latin-1")},
    ),
    (
        "a Parquet file of text",
        f"{_OWN} own.parquet",
        "own.parquet is not a Parquet file, or is damaged: Parquet magic bytes not found in footer.",
        {"own.parquet": "video_id,caption\n"},
    ),
    (
        "a Parquet file of other columns",
        f"{_OWN} own.parquet",
        "own.parquet has the columns ['query_id', 'caption', 'clip_id'",
        {"own.parquet": Copy("results/queries.parquet")},
    ),
    (
        "a data set that is not there",
        f"{_OWN} user/data",
        "There is no file or folder 'user/data', and the Hub cannot be",
    ),
    ("a data set of no name", f"{_OWN} 'user/a b/c'", "Couldn't find any data file at"),
    ("a data set of an empty folder", f"{_OWN} empty", "doesn't contain any data files", {"empty": FOLDER}),
    (
        "a data set of code",
        f"{_OWN} code",
        "No data set could be loaded from 'code': Dataset scripts are no",
        {"code/code.py": "open('EXECUTED', 'w')\n"},
    ),
    ("no folder of a benchmark", f"{_MSRVTT}", "No annotation at msrvtt/descs_ret_test.json. It must be a JSON list"),
    (
        "an annotation that is not JSON",
        _MSRVTT,
        "msrvtt/descs_ret_test.json is not JSON: Expecting value: line 1",
        {_DESCS: "a,b\n"},
    ),
    (
        "an annotation that is an object",
        _MSRVTT,
        "msrvtt/descs_ret_test.json must be a JSON list of objects with `video_id`",
        {_DESCS: "{}"},
    ),
    (
        "an annotation of nothing",
        _MSRVTT,
        "The annotation lists no clip of this split. Give the annotation of",
        {_DESCS: "[]"},
    ),
    (
        "an annotation of lists",
        _MSRVTT,
        "Entry 0 of msrvtt/descs_ret_test.json must be an object, got [].",
        {_DESCS: "[[]]"},
    ),
    (
        "an annotation without ids",
        _MSRVTT,
        "Entry 0 of msrvtt/descs_ret_test.json must have a `video_id` that is",
        {_DESCS: '[{"desc": "a"}]'},
    ),
    (
        "an annotation with a number for a caption",
        _MSRVTT,
        "Entry 0 of msrvtt/descs_ret_test.json, clip 'a': `desc` or",
        {_DESCS: '[{"video_id": "a", "desc": 1}]'},
    ),
    (
        "an annotation with a number for a subtitle",
        _MSRVTT,
        "Entry 0 of msrvtt/descs_ret_test.json, clip 'a': `subtitle` must",
        {_DESCS: '[{"video_id": "a", "desc": "a", "subtitle": 1}]'},
    ),
    (
        "an annotation that names a clip twice",
        _MSRVTT,
        "Entry 1 of msrvtt/descs_ret_test.json repeats the clip 'a'. Put all its",
        {_DESCS: '[{"video_id": "a", "desc": "a"}, {"video_id": "a", "desc": "b"}]'},
    ),
    (
        "an annotation of half a character",
        _MSRVTT,
        "The text '\\udc80' of the annotation is not Unicode. Restore the file.",
        _VIDEOS | {_DESCS: '[{"video_id": "a", "desc": "\\udc80"}]'},
    ),
    (
        "an annotation of an unknown clip",
        _MSRVTT,
        "1 of 1 clips have no file in msrvtt/videos or msrvtt/audios: b. Is",
        _VIDEOS | {_DESCS: '[{"video_id": "b", "desc": "a"}]'},
    ),
    (
        "a clip of two files",
        _MSRVTT,
        "1 clips have several files in msrvtt/videos: a.mkv and a.mp4. Keep",
        _VIDEOS | {"msrvtt/videos/a.mkv": b"", _DESCS: '[{"video_id": "a", "desc": "a"}]'},
    ),
    (
        "an annotation elsewhere that is gone",
        f"{_MSRVTT} --annotations nowhere.json",
        "No annotation at nowhere.json. It must be a JSON list of objects with",
        _VIDEOS,
    ),
    (
        "an annotation elsewhere that is a folder",
        f"{_MSRVTT} --annotations data",
        "data is a folder; a file was expected.",
        _VIDEOS,
    ),
    ("no annotation of classes", _VGGSOUND, "No annotation at vggsound/vggsound.csv. It must be VGGSound's"),
    (
        "classes with too few cells",
        _VGGSOUND,
        "Row 1 of vggsound/vggsound.csv must be a YouTube id, a start in whole",
        {_CSV: "a,1\n"},
    ),
    (
        "classes with a start that is text",
        _VGGSOUND,
        "Row 1 of vggsound/vggsound.csv must be a YouTube id, a start in whole",
        {_CSV: "a,one,dog,test\n"},
    ),
    (
        "classes that repeat a clip",
        _VGGSOUND,
        "Row 2 of vggsound/vggsound.csv repeats the clip 'a_000001'. A clip",
        {_CSV: "a,1,dog,test\na,1,cat,test\n"},
    ),
    (
        "classes with an open quote",
        _VGGSOUND,
        "vggsound/vggsound.csv is not CSV in UTF-8: unexpected end of data.",
        {_CSV: 'a,1,"dog,test\n'},
    ),
    (
        "a clip of two classes",
        _VGGSOUND,
        "Every clip of vggsound/descs_ret_test.json must have one label; these",
        {"vggsound/descs_ret_test.json": '[{"video_id": "a", "label": ["dog", "cat"]}]'},
    ),
    (
        "no corpus",
        "-m eval audit --benchmark vast27m --root data --split train",
        "No annotation at data/train.json. It must be a JSON list of objects",
        {"data/train.json": GONE},
    ),
    (
        "a corpus without captions",
        "-m eval audit --benchmark vast27m --root data --split train",
        "Entry 0 of data/train.json, clip 'a': `vast_cap` must be",
        {"data/train.json": '[{"clip_id": "a"}]'},
    ),
    (
        "a corpus of a split outside",
        "-m eval audit --benchmark vast27m --root data --split ../model/config",
        "data/../model/config.json must be a JSON list of objects with `clip_id`",
    ),
    (
        "no miniature benchmark",
        "-m eval audit --benchmark miniature --root model",
        "model is not a finished miniature benchmark. Generate it: `scalar eval",
    ),
    (
        "a miniature benchmark without a manifest",
        _MODEL,
        "data is not a finished miniature benchmark. Generate it: `scalar eval",
        {"data/miniature.json": GONE},
    ),
    (
        "a manifest that is not JSON",
        _MODEL,
        "data/miniature.json is not JSON: Expecting property name enclosed in",
        {"data/miniature.json": "{"},
    ),
    (
        "a manifest without sums",
        _MODEL,
        "data/miniature.json is not the manifest of a miniature benchmark: it",
        {"data/miniature.json": Fields({"sha256": GONE})},
    ),
    (
        "a manifest of evidence that there is not",
        _MODEL,
        "it lacks ['evidence']. Make it again.",
        {"data/miniature.json": Fields({"evidence": [["title"]]})},
    ),
    (
        "evidence that a set cannot have",
        "-m eval miniature --output out --evidence smell",
        "`evidence` must be among ['title', 'screen'], got ['smell'].",
    ),
    (
        "a set without clips",
        "-m eval miniature --output out --num-train 0 --num-validation 0 --num-test 0",
        "must be at least 0, and one count at least 1; got 0 and",
    ),
    (
        "a split without clips",
        "-m eval audit --benchmark miniature --root data --split validation",
        "data has no clips in the split 'validation': it was generated with --num-train",
    ),
    (
        "a set of an earlier version",
        _MODEL,
        "data was made by version 1 of the miniature benchmark, and this is",
        {"data/miniature.json": Fields({"version": 1, "shared": GONE})},
    ),
    (
        "an annotation that was changed",
        _MODEL,
        "data/test.jsonl is not the file that miniature.json describes. Remove",
        {"data/test.jsonl": Cut(0.5)},
    ),
    ("an annotation that is gone", _MODEL, "There is no data/test.jsonl.", {"data/test.jsonl": GONE}),
    (
        "an annotation that was changed with its sum",
        _MODEL,
        "data/test.jsonl does not hold clips of a miniature benchmark. Make it",
        {
            "data/test.jsonl": "{}\n",
            "data/miniature.json": Fields({"sha256": {"test.jsonl": hashlib.sha256(b"{}\n").hexdigest()}}),
        },
    ),
    (
        "a clip that is gone",
        _MODEL,
        "Restore them, or remove them from the annotation; no clip is left out",
        {"data/test/000001.mp4": GONE},
    ),
    (
        "a clip that is cut",
        _MODEL,
        "its index, which is written last, is missing: the recording or copy was interrupted",
        {"data/test/000001.mp4": Cut(0.5)},
    ),
]

_RESULTS = "-m eval report results --output out"
_RESULT = "results/results.json"

_RESULTS = [
    (name, "-m eval report results --output out", message, {_RESULT: change})
    for name, message, change in [
        ("a result that is not JSON", "results/results.json is not JSON: Expecting property name enclosed in", "{"),
        ("a result that is a list", "results/results.json must hold a JSON object, got list. Evaluate", "[]"),
        (
            "a result of nothing",
            "it lacks ['label', 'seed', 'benchmark', 'split', 'task', 'score', 'retrieval', 'two_stage'",
            "{}",
        ),
        ("a result with NaN", "results/results.json is not JSON: NaN is not JSON. Evaluate again.", '{"label": NaN}'),
        (
            "a label that is a list",
            "`label` must be text, got []",
            Fields({"label": []}),
        ),
        (
            "a seed that is text",
            "`seed` must be a whole number or null, got 'one'",
            Fields({"seed": "one"}),
        ),
        ("no score", "it lacks ['score']", Fields({"score": GONE})),
        (
            "queries that are text",
            "`retrieval.num_queries` must be a whole number from 0, got '12'",
            Fields({"retrieval.num_queries": "12"}),
        ),
        (
            "a metric that is text",
            "`retrieval.rates[0].methods.scalar.text_to_video_recall_at_1` must be a finite number or n",
            Fields({"retrieval.rates.0.methods.scalar.text_to_video_recall_at_1": "5"}),
        ),
        (
            "a second stage without a depth",
            "`two_stage[0]` must be an object with `depth`, `policy`, `method`, `rate` and metrics, got",
            Fields({"two_stage": [{"policy": "absent", "method": "scalar", "rate": 0}]}),
        ),
    ]
] + [
    (
        "no results",
        "-m eval report nowhere --output out",
        "nowhere does not exist; expected a results.json or a folder that contains",
    ),
    (
        "a folder without results",
        "-m eval report data --output out",
        "There is no results.json in data; `scalar eval run` writes them.",
    ),
    (
        "one result twice",
        "-m eval report results copy --output out",
        "results/results.json and copy/results.json both hold embeddings of",
        {"copy": Copy("results")},
    ),
    (
        "a result of another gallery",
        "-m eval report results copy --output out",
        "Runs on embeddings must share one protocol to be compared, but the",
        {"copy": Copy("results"), "copy/results.json": Fields({"label": "other", "gallery.sha256": "0" * 64})},
    ),
    (
        "a label with another score",
        "-m eval report results copy --output out",
        "results/results.json and copy/results.json have the label 'ours' but",
        {"copy": Copy("results"), "copy/results.json": Fields({"seed": 1, "score.method": "gram"})},
    ),
    (
        "an unknown baseline",
        "-m eval report results --output out --baseline best",
        "The baseline 'best' is not among the labels ['ours'].",
    ),
    (
        "an unknown reference",
        "-m eval report results --output out --reference best",
        "The reference 'best' is not among the labels ['ours'].",
    ),
    (
        "a report in a file",
        "-m eval report results --output file",
        "file already exists and is not what was expected there. Move it, or",
        {"file": "mine"},
    ),
    (
        "queries that are no Parquet",
        "-m eval report results --output out",
        "results/queries.parquet is not a table of queries by `scalar eval run`",
        {"results/queries.parquet": "text"},
    ),
    (
        "queries of other columns",
        "-m eval report results --output out",
        "results/queries.parquet is not a table of queries by `scalar eval run`",
        {"results/queries.parquet": Table({"a": [1]})},
    ),
]
_FINE = [
    (
        "a label with separators",
        "-m eval report results --output out",
        "# Results",
        {_RESULT: Fields({"label": "../../a/b\n\x1b[31m"})},
        0,
    ),
    (
        "a benchmark with separators",
        "-m eval report results --output out",
        "# Results",
        {_RESULT: Fields({"benchmark": "../x"})},
        0,
    ),
]

_PUSH = "-m hub_cards model model user/name --dry-run --output out"
_PUSH_ADAPTER = "-m hub_cards adapter adapter user/name --base user/base --dry-run --output out"
_PUSH_GALLERY = "-m hub_cards gallery gallery user/name --model user/model --dry-run --output out"
_PUSH_METRIC = "-m hub_cards metric retrieval user/retrieval --dry-run --output out"
_VALIDATE = "-m hub_cards validate card"
_CARD = "card/README.md"
_HEAD = "---\nlicense: mit\n---\n\n# A model\n"
_PUBLISHED = {"model/results": Copy("../results"), "model/results/results.json": Fields({"embedded.weights": {}})}


def _card(**fields: Any) -> dict[str, str]:
    return {_CARD: f"---\n{json.dumps({'license': 'mit'} | fields)}\n---\n\n# A model\n"}


_TRAINING = {
    "trainable_parameters": {}, "frozen_parameters": {}, "num_examples": 1, "global_step": 1, "batch_size": 1,
    "seconds": 1.0, "resumed": False, "hardware": {"device": "cpu", "num_processes": 1}, "precision": "fp32",
    "versions": {}, "source": None, "date": "2026-01-01",
}  # fmt: skip

_PUSHES = [
    (
        "a name with two slashes",
        "-m hub_cards model model user/my/name --dry-run --output out",
        "Repo id must be in the form 'repo_name' or 'namespace/repo_name'",
    ),
    (
        "an empty name",
        "-m hub_cards model model '' --dry-run --output out",
        "Repo id must use alphanumeric chars, '-', '_' or '.'. The name cannot",
    ),
    (
        "a name of dots",
        "-m hub_cards model model user/.. --dry-run --output out",
        "Repo id must use alphanumeric chars, '-', '_' or '.'. The name cannot",
    ),
    (
        "a name of 200 characters",
        f"-m hub_cards model model user/{'x' * 200} --dry-run --output out",
        "Repo id must use alphanumeric chars, '-', '_' or '.'. The name cannot",
    ),
    (
        "a name with control characters",
        "-m hub_cards model model {control} --dry-run --output out",
        "Repo id must use alphanumeric chars, '-', '_' or '.'. The name cannot",
    ),
    (
        "a licence without a name",
        f"{_PUSH} --license other",
        "The licence 'other' needs a name and a link: give --license-name",
    ),
    (
        "a dry run into a file",
        "-m hub_cards model model user/name --dry-run --output file",
        "file must be a new or an empty folder: give another one, or remove it.",
        {"file": "mine"},
    ),
    (
        "a dry run into a folder that is in use",
        "-m hub_cards model model user/name --dry-run --output data",
        "data must be a new or an empty folder: give another one, or remove it.",
    ),
    (
        "a dry run into itself",
        "-m hub_cards model model user/name --dry-run --output model",
        "model must be a new or an empty folder: give another one, or remove",
    ),
    (
        "no folder to publish",
        "-m hub_cards model nowhere user/name --dry-run --output out",
        "There is no folder 'nowhere'.",
    ),
    (
        "a file to publish",
        "-m hub_cards model model/config.json user/name --dry-run --output out",
        "There is no folder 'model/config.json'.",
    ),
    (
        "a model without a configuration",
        _PUSH,
        "model holds no config.json: it is not a saved model.",
        {"model/config.json": GONE},
    ),
    (
        "a model with a configuration that is a list",
        _PUSH,
        "must hold a JSON object, got list. Restore the file.",
        {"model/config.json": "[]"},
    ),
    (
        "a model with a deep configuration",
        _PUSH,
        "is not JSON: maximum recursion depth exceeded while decoding a JSON",
        {"model/config.json": _DEEP_OBJECT},
    ),
    (
        "a model with another configuration",
        _PUSH,
        "must describe a ScalarModel, got a `model_type` of 'bert'.",
        {"model/config.json": Fields({"model_type": "bert"})},
    ),
    (
        "a model with a wrong field",
        _PUSH,
        "cannot be loaded: TypeError: Field 'projection_dim' expected int, got",
        {"model/config.json": Fields({"projection_dim": "x"})},
    ),
    (
        "a model without weights",
        _PUSH,
        "model holds no weights (model*.safetensors).",
        {"model/model.safetensors": GONE},
    ),
    (
        "a model with weights cut short",
        _PUSH,
        "model/model.safetensors is not a safetensors file: Error while",
        {"model/model.safetensors": Cut(0.5)},
    ),
    (
        "a model with only a pickle",
        _PUSH,
        "model holds no weights (model*.safetensors), only the pickles",
        {"model/model.safetensors": GONE, "model/pytorch_model.bin": _PICKLE},
    ),
    (
        "a model without a processor",
        _PUSH,
        "holds no processor, and nobody can use the model without one",
        {"model/processor_config.json": GONE},
    ),
    (
        "a model with a processor that is a list",
        _PUSH,
        "model holds no processor, and nobody can use the model without one",
        {"model/processor_config.json": "[]"},
    ),
    (
        "a model with a deep processor",
        _PUSH,
        "model holds no processor, and nobody can use the model without one",
        {"model/processor_config.json": _DEEP_OBJECT},
    ),
    (
        "a model without a vocabulary",
        _PUSH,
        "model holds no processor, and nobody can use the model without one",
        {"model/tokenizer.json": GONE},
    ),
    ("a model with half a vocabulary", _PUSH, "tokenizer.json is not JSON", {"model/tokenizer.json": Cut(0.5)}),
    (
        "a recipe that is a list",
        _PUSH,
        "model/recipe.json must hold a JSON object, got list. Restore the file.",
        {"model/recipe.json": "[]"},
    ),
    (
        "a recipe that is deep",
        _PUSH,
        "model/recipe.json is not JSON: maximum recursion depth exceeded while",
        {"model/recipe.json": _DEEP_OBJECT},
    ),
    (
        "a recipe that is not JSON",
        _PUSH,
        "model/recipe.json is not JSON: Expecting value: line 1 column 1 (char",
        {"model/recipe.json": "seed: 1"},
    ),
    (
        "a recipe with a step that is text",
        _PUSH,
        "model/recipe.json is not the recipe of a run: `max_steps` cannot be",
        {"model/recipe.json": '{"max_steps": "many"}'},
    ),
    (
        "a recipe with an objective that is a list",
        _PUSH,
        "model/recipe.json is not the recipe of a run: `objective` cannot be",
        {"model/recipe.json": '{"objective": []}'},
    ),
    (
        "a record that is a list",
        _PUSH,
        "model/training.json must hold a JSON object, got list. Restore the",
        {"model/training.json": "[]"},
    ),
    (
        "a record of nothing",
        _PUSH,
        "model/training.json is not the record of a run: `trainable_parameters` cannot",
        {"model/training.json": "{}"},
    ),
    (
        "a record with text for parameters",
        _PUSH,
        "model/training.json is not the record of a run",
        {"model/training.json": json.dumps(_TRAINING | {"trainable_parameters": {"a": "1"}})},
    ),
    (
        "a record without hardware",
        _PUSH,
        "model/training.json is not the record of a run: `trainable_parameters` must",
        {"model/training.json": json.dumps(_TRAINING | {"hardware": {}})},
    ),
    (
        "a record with versions that are a list",
        _PUSH,
        "model/training.json is not the record of a run: `versions` cannot be []",
        {"model/training.json": json.dumps(_TRAINING | {"versions": []})},
    ),
    (
        "emissions without rows",
        _PUSH,
        "model/emissions.csv is not a record of CodeCarbon: expected rows with",
        {"model/emissions.csv": "emissions\n"},
    ),
    (
        "emissions of text",
        _PUSH,
        "model/emissions.csv is not a record of CodeCarbon: expected rows with",
        {"model/emissions.csv": "emissions,energy_consumed,duration\na,b,c\n"},
    ),
    (
        "emissions in UTF-16",
        _PUSH,
        "model/emissions.csv is not a record of CodeCarbon: expected rows with",
        {"model/emissions.csv": "emissions\n".encode("utf-16")},
    ),
    (
        "emissions of NaN",
        _PUSH,
        "model/emissions.csv is not a record of CodeCarbon: expected rows with",
        {"model/emissions.csv": "emissions,energy_consumed,duration\nnan,1,1\n"},
    ),
    (
        "results that are not there",
        f"{_PUSH} --results nowhere",
        "There is no results.json at nowhere; `scalar eval run` writes it.",
    ),
    (
        "results of other weights",
        _PUSH,
        "The result 'results' was measured with other weights: it names {}",
        _PUBLISHED,
    ),
    (
        "results that are a list",
        _PUSH,
        "model/results/results.json must hold a JSON object, got list. Restore",
        {"model/results/results.json": "[]"},
    ),
    (
        "results that are deep",
        _PUSH,
        "model/results/results.json is not JSON: maximum recursion depth",
        {"model/results/results.json": _DEEP_OBJECT},
    ),
    (
        "results without a gallery",
        _PUSH,
        "model/results/results.json is not a result of `scalar eval run`",
        _PUBLISHED | {"model/results/results.json": Fields({"gallery": GONE})},
    ),
    (
        "results without weights",
        _PUSH,
        "model/results/results.json is not a result of `scalar eval run`",
        _PUBLISHED | {"model/results/results.json": Fields({"embedded": []})},
    ),
    (
        "an adapter as a model",
        "-m hub_cards model adapter user/name --dry-run --output out",
        "adapter holds an adapter: publish it with `scalar publish adapter`, or the whole",
    ),
    (
        "a model as an adapter",
        "-m hub_cards adapter model user/name --dry-run --output out",
        "model holds no adapter_config.json: it is not a saved adapter.",
    ),
    ("a model that is merged with nothing", f"{_PUSH} --merge", "model holds no adapter to merge: leave out --merge."),
    (
        "an adapter of a folder that was not pushed",
        "-m hub_cards adapter adapter user/name --dry-run --output out",
        "The adapter's base is the folder model, which has not been pushed to",
    ),
    (
        "a base without a slash",
        "-m hub_cards adapter adapter user/name --base 'a b' --dry-run --output out",
        "`base` must be an id on the Hub, such as 'user/name', got 'a b'.",
    ),
    (
        "an adapter to publish without a base",
        _PUSH_ADAPTER,
        "adapter/adapter_config.json is not that of an adapter",
        {_ADAPTER: Fields({"base_model_name_or_path": GONE})},
    ),
    (
        "an adapter to publish with a base that is a list",
        _PUSH_ADAPTER,
        "adapter/adapter_config.json is not that of an adapter",
        {_ADAPTER: Fields({"base_model_name_or_path": []})},
    ),
    (
        "an adapter to publish of no kind",
        _PUSH_ADAPTER,
        "adapter/adapter_config.json is not that of an adapter: `peft_type` cannot be None",
        {_ADAPTER: Fields({"peft_type": GONE})},
    ),
    (
        "an adapter to publish of a kind that is a number",
        _PUSH_ADAPTER,
        "adapter/adapter_config.json is not that of an adapter: `peft_type`",
        {_ADAPTER: Fields({"peft_type": 1})},
    ),
    (
        "an adapter to publish that is deep",
        _PUSH_ADAPTER,
        "adapter/adapter_config.json is not JSON: maximum recursion depth",
        {_ADAPTER: _DEEP_OBJECT},
    ),
    (
        "an adapter to publish without a configuration",
        _PUSH_ADAPTER,
        "adapter has no config.json, the configuration that the adapter was",
        {"adapter/config.json": GONE},
    ),
    (
        "an adapter to publish without weights",
        _PUSH_ADAPTER,
        "adapter holds no weights (adapter_model*.safetensors).",
        {_LORA: GONE},
    ),
    (
        "an adapter to publish cut short",
        _PUSH_ADAPTER,
        "adapter/adapter_model.safetensors is not a safetensors file: Error",
        {_LORA: Cut(0.5)},
    ),
    (
        "a merge with a base that is gone",
        "-m hub_cards model adapter user/name --merge --dry-run --output out",
        "is gone. Put it back. Name the base in `base_model_name_or_path` of",
        {_ADAPTER: Fields({"base_model_name_or_path": "/nowhere"})},
    ),
    (
        "a merge of an adapter of itself",
        "-m hub_cards model adapter user/name --merge --dry-run --output out",
        "names itself as its base. Name the base in `base_model_name_or_path`",
        {_ADAPTER: Fields({"base_model_name_or_path": "adapter"})},
    ),
    (
        "a merge of other shapes",
        "-m hub_cards model adapter user/name --merge --dry-run --output out",
        "do not have the shapes that its base and its adapter_config.json",
        {_LORA: Tensors({_LORA_A: "longer"})},
    ),
    (
        "no gallery to publish",
        "-m hub_cards gallery data user/name --model user/model --dry-run --output out",
        "There is no gallery in data.",
    ),
    (
        "a gallery of a model without a name",
        "-m hub_cards gallery gallery user/name --model 'a b' --dry-run --output out",
        "`model` must be an id on the Hub, such as 'user/name', got 'a b'.",
    ),
    (
        "a gallery that is not whole",
        _PUSH_GALLERY,
        "gallery/gallery.json is not JSON: Expecting property name enclosed in",
        {"gallery/gallery.json": "{"},
    ),
    (
        "no metric",
        "-m hub_cards metric data user/data --dry-run --output out",
        "is not the folder of a metric: it lacks ['data.py', 'README.md'",
    ),
    (
        "a metric of another name",
        "-m hub_cards metric {metric} user/name --dry-run --output out",
        "The Space of the metric 'retrieval' must have the same name, got",
    ),
    (
        "a metric without documentation",
        _PUSH_METRIC,
        "it lacks ['README.md']",
        {"retrieval": Copy("{metric}"), "retrieval/README.md": GONE},
    ),
    (
        "a metric with empty documentation",
        _PUSH_METRIC,
        "must be the documentation of a metric below its front matter.",
        {"retrieval": Copy("{metric}"), "retrieval/README.md": ""},
    ),
    (
        "a metric with documentation that is not UTF-8",
        _PUSH_METRIC,
        "The README.md of the metric retrieval is not UTF-8: 'utf-8' codec",
        {"retrieval": Copy("{metric}"), "retrieval/README.md": b"\xff"},
    ),
    (
        "a metric with documentation without sections",
        _PUSH_METRIC,
        "The documentation of retrieval must have sections, each below a line",
        {
            "retrieval": Copy("{metric}"),
            "retrieval/README.md": '---\ntitle: a\n---\nevaluate.load("eval/metrics/retrieval")\n',
        },
    ),
    (
        "a metric whose front matter is no YAML",
        _PUSH_METRIC,
        "The front matter of the card is not YAML: while parsing a flow node",
        {
            "retrieval": Copy("{metric}"),
            "retrieval/README.md": '---\na: [\n---\nevaluate.load("eval/metrics/retrieval")\n\n## A\n',
        },
    ),
    (
        "a Space of a gallery without a model",
        "-m hub_cards space user/name --gallery user/gallery --dry-run --output out",
        "A dry run does not look up the gallery: name the model that made it",
    ),
    (
        "a Space of a gallery without a name",
        "-m hub_cards space user/name --gallery 'a b' --model user/model --dry-run --output out",
        "`gallery` must be an id on the Hub, such as 'user/name', got 'a b'.",
    ),
    (
        "no card",
        "-m hub_cards validate nowhere",
        "There is no card at nowhere: expected a README.md, or a folder that",
    ),
    (
        "a folder without a card",
        "-m hub_cards validate data",
        "There is no card at data/README.md: expected a README.md, or a folder",
    ),
    (
        "a card that is not UTF-8",
        _VALIDATE,
        "The card is not UTF-8: 'utf-8' codec can't decode byte 0xff in",
        {_CARD: b"\xff\xfe"},
    ),
    (
        "a card for an unknown kind",
        f"{_VALIDATE} --repo-type app",
        "`repo_type` must be one of ('model', 'dataset', 'space'), got 'app'.",
        {_CARD: _HEAD},
    ),
]
_LAUGHS = "\n".join(
    ["---", "a: &a [1]"]
    + [f"{name}: &{name} [{', '.join(['*' + before] * 9)}]" for before, name in zip("abcdefg", "bcdefgh", strict=True)]
    + ["license: *h", "---", ""]
)
_ODD_CONFIGS = (("text", "x"), ("a list of lists", [[]]), ("a mapping", {"a": 1}))
_CARDS = [
    (name, _VALIDATE, message, {_CARD: card} if isinstance(card, str) else _card(**card))
    for name, message, card in [
        ("an empty card", "There is no front matter: a card begins with metadata in YAML between", ""),
        (
            "a card without front matter",
            "There is no front matter: a card begins with metadata in YAML between",
            "# A model\n",
        ),
        (
            "a card with an open list",
            "The front matter of the card is not YAML: while parsing a flow node",
            "---\na: [\n---\n",
        ),
        (
            "a card with a tab",
            "The front matter of the card is not YAML: while scanning for the next",
            "---\na:\t- b\n\t- c\n---\n",
        ),
        (
            "a card with code",
            "The front matter of the card is not YAML: could not determine a",
            "---\na: !!python/object/apply:os.system ['touch EXECUTED']\n---\n",
        ),
        (
            "a card that is deep",
            "The front matter of the card is nested too deeply.",
            f"---\na: {'[' * 5000}{']' * 5000}\n---\n",
        ),
        ("a card that is a list", "The front matter of the card must be a mapping, got list.", "---\n- a\n- b\n---\n"),
        ("a card that is a number", "The front matter of the card must be a mapping, got int.", "---\n7\n---\n"),
        (
            "a card with names that are lists",
            "The front matter of the card is not YAML: while constructing a",
            "---\n? [a]\n: b\n---\n",
        ),
        (
            "a card with a wrong date",
            "The front matter of the card is not YAML: month must be in 1..12.",
            "---\na: 2026-13-45\n---\n",
        ),
        (
            "a card with a long number",
            "The front matter of the card is not YAML: Exceeds the limit (4300",
            f"---\na: {'9' * 5000}\n---\n",
        ),
        (
            "a card with a control character",
            "The front matter of the card is not YAML: unacceptable character",
            "---\na: \x1b\n---\n",
        ),
    ]
]
_HARMLESS += [
    (name, _VALIDATE, "nothing wrong here, but the Hub was not asked", {_CARD: card})
    for name, card in [
        ("a card with laughs", _LAUGHS),
        *((f"a card whose configs are {kind}", _card(configs=content)[_CARD]) for kind, content in _ODD_CONFIGS),
    ]
]


def _table(rows: Iterable[tuple], code: int = 1) -> list[Wrong]:
    return [Wrong(*row, **({} if len(row) > 4 else {"code": code}), words=_WORDS) for row in rows]


_REFUSED = (
    _QUERIES, _DEVICES, _MODELS, _ADAPTERS, _CONVERSIONS, _EVALS, _BENCHMARKS, _RESULTS, _FINE, _PUSHES, _CARDS
)  # fmt: skip
WRONG = [*_table(_USAGE, code=2), *_table(_HARMLESS, code=0), *_table(row for rows in _REFUSED for row in rows)]
