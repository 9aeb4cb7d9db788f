"""What users give by mistake, others with intent: one wrong input for each command and kind of damage.

`tests/test_wrong_inputs.py` damages a copy of valid inputs, runs the command and looks for the name of what is wrong.
"""

import io
import json
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

Damage = Callable[[Path], Any]
"""Changes the folder in which the command will run."""


def gone(name: str) -> Damage:
    """Remove a file or folder."""

    def make(folder: Path) -> None:
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()

    return make


def put(name: str, content: str | bytes) -> Damage:
    """Put a file in the place of what is there."""

    def make(folder: Path) -> None:
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())

    return make


def cut(name: str, share: float = 0.5) -> Damage:
    """Keep the first part of a file."""

    def make(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: int(len(content) * share)])

    return make


def fields(name: str, **changes: Any) -> Damage:
    """Change fields of a JSON file; two underscores stand between the names of nested ones."""

    def make(folder: Path) -> None:
        found = json.loads((folder / name).read_text())
        for field_path, value in changes.items():
            *parents, last = field_path.split("__")
            inner = found
            for parent in parents:
                inner = inner[parent]
            inner[last] = value
        (folder / name).write_text(json.dumps(found))

    return make


def tensor(name: str, of: str, change: Callable[[torch.Tensor], torch.Tensor] | None) -> Damage:
    """Change a tensor of a safetensors file, or without a change leave it out."""

    def make(folder: Path) -> None:
        found = load_file(folder / name)
        value = found.pop(of)
        if change is not None:
            found[of] = change(value)
        (folder / name).unlink()
        save_file(found, folder / name, {"format": "pt"})

    return make


def zipped(name: str, files: dict[str, bytes]) -> Damage:
    """Put a compressed archive of files there."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for inner, content in files.items():
            archive.writestr(inner, content)
    return put(name, buffer.getvalue())


def checkpoint(name: str, content: Any, share: float = 1) -> Damage:
    """Put the first part of what `torch.save` writes there."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return put(name, buffer.getvalue()[: int(share * buffer.tell())])


def copied(name: str, to: str) -> Damage:
    """Copy a folder."""
    return lambda folder: shutil.copytree(folder / name, folder / to)


@dataclass(frozen=True)
class Wrong:
    """
    A wrong input.

    Args:
        name (`str`): what is wrong.
        command (`list[str]`): what follows `python`.
        offending (`str`): what the command's sentence must name.
        damages (`list[Damage]`): how the input is made of valid ones.
        code (`int`): exit status: 1, the user can mend it; 2, usage; 0, harmless.
    """

    name: str
    command: list[str]
    offending: str
    damages: list[Damage] = field(default_factory=list)
    code: int = 1


def usage(name: str, command: str, offending: str) -> Wrong:
    return Wrong(name, command.split(), offending, code=2)


def harmless(name: str, command: list[str], printed: str) -> Wrong:
    return Wrong(name, command, printed, code=0)


def wrong(name: str, command: str | list[str], offending: str, *damages: Damage) -> Wrong:
    return Wrong(name, command.split() if isinstance(command, str) else command, offending, list(damages))


# Commands that succeed on the valid inputs.
INDEX = "-m scalar_retrieval.search index data/test --model model --output out"
QUERY = "-m scalar_retrieval.search query gallery text --model model"
RUN = "-m scalar_retrieval.eval run --embeddings embeddings --output out --rate 0"
MODEL = (
    "-m scalar_retrieval.eval run --model model --benchmark miniature --root data --output out --rate 0 "
    "--plugin evidence.miniature"
)
ADAPTER = "-m scalar_retrieval.search index data/test --model adapter --output out"
CONVERT = "-m scalar_retrieval.modeling_scalar --checkpoint old.pt --output out"
OWN = "-m scalar_retrieval.eval audit --benchmark own --root"
MSRVTT = "-m scalar_retrieval.eval audit --benchmark msrvtt --root msrvtt"
REPORT = "-m scalar_retrieval.eval report results copy --output out"
PUSH = "-m scalar_retrieval.hub_cards model model user/name --dry-run out"

DEEP = '{"a": ' * 100_000 + "1" + "}" * 100_000
PICKLE = b"\x80\x02cposix\nsystem\nX\x0d\x00\x00\x00touch EXECUTEDq\x00\x85R."
CONFIG, WEIGHTS, TOKENIZER = "model/config.json", "model/model.safetensors", "model/tokenizer.json"
PROJECTION = "text_projection.weight"
LORA, LORA_CONFIG = "adapter/adapter_model.safetensors", "adapter/adapter_config.json"
DESCS = "msrvtt/descs_ret_test.json"
CODE_ELSEWHERE = {"model_type": "evil", "auto_map": {"AutoConfig": "evil.Evil", "AutoModel": "evil.Evil"}}
NAN_SCORE = """from scalar_retrieval.modeling_scalar.scores_scalar import register_method


@register_method("mine", "a score")
def score(pairs):
    return pairs.similarities[0] * float("nan")
"""


def twice(weight: torch.Tensor) -> torch.Tensor:
    return torch.cat([weight, weight])


def table(**clip: Any) -> Damage:
    """A table of one clip, some of whose fields are changed."""
    valid = {"video_id": "a", "caption": "a dog", "video_path": "data/test/000000.mp4"}
    return put("own.json", json.dumps([valid | clip]))


WRONG = [
    usage("no command", "-m scalar_retrieval.search", "Usage:"),
    usage("no port", "-m scalar_retrieval.search serve gallery --port 70000", "65535"),
    usage("eval without output", "-m scalar_retrieval.eval run --embeddings embeddings", "--output"),
    usage("a conversion to nowhere", CONVERT.removesuffix(" --output out"), "--output"),
    # Words are printed as they can be read, and never steer a terminal.
    harmless("a query with control characters", QUERY.replace("text", "\x1b[31mred\x07").split(), "\\x1b[31mred\\x07"),
    harmless("a query that turns the text around", QUERY.replace("text", "\u202egnp").split(), "\\u202e"),
    harmless("more hits than clips", [*QUERY.split(), "-k", str(10**30)], "  3  "),
    wrong("an empty query", ["-m", "scalar_retrieval.search", "query", "gallery", "", "--model", "model"], "empty"),
    wrong("a path with control characters", ["-m", "scalar_retrieval.search", "info", "\x1b[31mred\x07"],
          "\\x1b[31mred\\x07"),
    # Models.
    wrong("a file in the place of a model", INDEX, "model", put("model", "weights")),
    wrong("no configuration", INDEX, "config.json", gone(CONFIG)),
    wrong("a configuration that is a deep object", INDEX, "config.json", put(CONFIG, DEEP)),
    wrong("a configuration of another model", INDEX, "bert", fields(CONFIG, model_type="bert")),
    wrong(
        "a configuration of code elsewhere", INDEX, "evil",
        fields(CONFIG, **CODE_ELSEWHERE), put("model/evil.py", "open('EXECUTED', 'w')"),
    ),
    wrong("a dimension that is text", INDEX, "projection_dim", fields(CONFIG, projection_dim="16")),
    wrong("no weights", INDEX, "safetensors", gone(WEIGHTS)),
    wrong("weights without their end", INDEX, "model cannot be loaded", cut(WEIGHTS, 0.9)),
    wrong("only a pickle", INDEX, "safetensors", gone(WEIGHTS), put("model/pytorch_model.bin", PICKLE)),
    wrong("a weight is missing", INDEX, PROJECTION, tensor(WEIGHTS, PROJECTION, None)),
    wrong(
        "an index of a file outside", MODEL, "model cannot be loaded", gone(WEIGHTS),
        put("model/model.safetensors.index.json", '{"metadata": {}, "weight_map": {"a": "../../secret.safetensors"}}'),
    ),
    wrong("no processor", INDEX, "processor", gone("model/processor_config.json")),
    # Adapters.
    wrong("an adapter of a base that is gone", ADAPTER, "base", fields(LORA_CONFIG, base_model_name_or_path="base")),
    wrong("weights of an adapter cut short", ADAPTER, "adapter cannot be loaded", cut(LORA, 0.7)),
    wrong("only a pickle of an adapter", ADAPTER, "safetensors", gone(LORA), put("adapter/adapter_model.bin", PICKLE)),
    # Checkpoints to convert.
    wrong("no checkpoint", CONVERT, "old.pt"),
    wrong("a checkpoint that executes code", CONVERT, "old.pt", put("old.pt", PICKLE)),
    wrong(
        "a checkpoint that executes code, zipped", CONVERT, "old.pt",
        zipped("old.pt", {"archive/data.pkl": PICKLE, "archive/version": b"3"}),
    ),
    wrong("a checkpoint of another network", CONVERT, "old.pt", checkpoint("old.pt", {"evil": torch.zeros(2)})),
    wrong(
        "output that holds something", CONVERT.replace("--output out", "--output model"), "model",
        checkpoint("old.pt", {}),
    ),
    # Evaluation.
    wrong("nothing to evaluate", "-m scalar_retrieval.eval run --output out", "embeddings"),
    wrong("a rate of NaN", f"{RUN} --rate nan", "rate"),
    wrong("an unknown score to measure", f"{RUN} --method best", "best"),
    wrong("a fusion chosen on what is reported", f"{MODEL} --fusion-split test", "split"),
    wrong("a gallery without queries", RUN.replace("embeddings --output", "gallery --output"), "gallery"),
    wrong("output in a file", RUN, "out", put("out", "mine")),
    wrong("a plugin that is not there", f"{RUN} --plugin nowhere", "nowhere"),
    wrong("a plugin that fails", f"{RUN} --plugin mine", "mine", put("mine.py", "1 / 0\n")),
    wrong("a score of NaN", f"{RUN} --plugin mine", "NaN", put("mine.py", NAN_SCORE)),
    wrong(
        "a result that is not JSON", REPORT, "results/results.json", copied("results", "copy"),
        put("results/results.json", "{"),
    ),
    wrong(
        "a result of another gallery", REPORT, "share one protocol", copied("results", "copy"),
        fields("copy/results.json", label="other", gallery__sha256="0" * 64),
    ),
    # Benchmarks.
    wrong("no table", f"{OWN} own.json", "own.json"),
    wrong("a table without captions", f"{OWN} own.json", "caption", put("own.json", '[{"video_id": "a"}]')),
    wrong("an empty caption", f"{OWN} own.json", "caption", table(caption="  ")),
    wrong("a path that is gone", f"{OWN} own.json", "a", table(video_path="nowhere.mp4")),
    wrong("a path with a NUL", f"{OWN} own.json", "a", table(video_path="a\0.mp4")),
    wrong("a Parquet file of text", f"{OWN} own.parquet", "own.parquet", put("own.parquet", "video_id,caption\n")),
    wrong("a data set of code", f"{OWN} code", "code", put("code/code.py", "open('EXECUTED', 'w')\n")),
    wrong("no annotation", MSRVTT, DESCS, put("msrvtt/notes.txt", "")),
    wrong("an annotation that is not JSON", MSRVTT, DESCS, put(DESCS, "a,b\n")),
    wrong(
        "an annotation that names a clip twice", MSRVTT, "'a'",
        put(DESCS, '[{"video_id": "a", "desc": "a"}, {"video_id": "a", "desc": "b"}]'),
    ),
    wrong("a clip without a file", MSRVTT, "msrvtt/videos", put(DESCS, '[{"video_id": "b", "desc": "a"}]')),
    wrong("an annotation that was changed", MODEL, "data/test.jsonl", cut("data/test.jsonl")),
    wrong("a clip that is gone", MODEL, "000001", gone("data/test/000001.mp4")),
    # Publishing.
    wrong("a name with two slashes", PUSH.replace("user/name", "user/my/name"), "user/my/name"),
    wrong("a dry run into a folder that is in use", PUSH.replace("--dry-run out", "--dry-run data"), "data"),
    wrong("a model with only a pickle", PUSH, "safetensors", gone(WEIGHTS), put("model/pytorch_model.bin", PICKLE)),
    wrong("a model without a tokenizer", PUSH, "tokenizer", gone(TOKENIZER)),
    wrong(
        "results of other weights", PUSH, "results", copied("results", "model/results"),
        fields("model/results/results.json", embedded__weights={}),
    ),
    wrong("a damaged gallery", PUSH.replace("model model", "gallery gallery") + " --model user/model",
          "gallery.json", put("gallery/gallery.json", "{")),
]  # fmt: skip
