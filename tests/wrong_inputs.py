"""What users give by mistake, others with intent: one wrong input for each command and kind of damage.

`tests/test_wrong_inputs.py` damages a copy of valid inputs, runs the command and looks for the name of what is wrong.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

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


def wrong(name: str, command: str, offending: str, *damages: Damage) -> Any:
    """
    A wrong input.

    Args:
        name (`str`): what is wrong.
        command (`str`): what follows `python`.
        offending (`str`): what the command's sentence must name.
        damages (`Damage`): how the input is made of valid ones.
    """
    return pytest.param(command.split(), offending, damages, id=name)


# Commands that succeed on the valid inputs.
INDEX = "-m scalar_retrieval.search index data/test --model model --output out"
RUN = "-m scalar_retrieval.eval run --embeddings embeddings --output out --rate 0"
MODEL = (
    "-m scalar_retrieval.eval run --model model --benchmark miniature --root data --output out --rate 0 "
    "--plugin evidence.miniature"
)
ADAPTER = "-m scalar_retrieval.search index data/test --model adapter --output out"
CONVERT = "-m scalar_retrieval.modeling_scalar --checkpoint old.pt --output out"
OWN = "-m scalar_retrieval.eval audit --benchmark own --root"
MSRVTT = "-m scalar_retrieval.eval audit --benchmark msrvtt --root msrvtt"
REPORT = "-m scalar_retrieval.eval report results --output out"
PUSH = "-m scalar_retrieval.hub_cards model model user/name --dry-run out"

DEEP = '{"a": ' * 100_000 + "1" + "}" * 100_000
PICKLE = b"\x80\x02cposix\nsystem\nX\x0d\x00\x00\x00touch EXECUTEDq\x00\x85R."
CONFIG, WEIGHTS, TOKENIZER = "model/config.json", "model/model.safetensors", "model/tokenizer.json"
LORA, LORA_CONFIG = "adapter/adapter_model.safetensors", "adapter/adapter_config.json"
DESCS = "msrvtt/descs_ret_test.json"
CODE_ELSEWHERE = {"model_type": "evil", "auto_map": {"AutoConfig": "evil.Evil", "AutoModel": "evil.Evil"}}
NAN_SCORE = """from scalar_retrieval.modeling_scalar.scores_scalar import register_method


@register_method("mine", "a score")
def score(pairs):
    return pairs.similarities[0] * float("nan")
"""


def table(**clip: Any) -> Damage:
    """A table of one clip, some of whose fields are changed."""
    valid = {"video_id": "a", "caption": "a dog", "video_path": "data/test/000000.mp4"}
    return put("own.json", json.dumps([valid | clip]))


WRONG = [
    # Words are printed as they can be read, and never steer a terminal.
    wrong("a path with control characters", "-m scalar_retrieval.search info \x1b[31mred\x07", "\\x1b[31mred\\x07"),
    # Models.
    wrong("no configuration", INDEX, "config.json", gone(CONFIG)),
    wrong("a configuration that is a deep object", INDEX, "config.json", put(CONFIG, DEEP)),
    wrong(
        "a configuration of code elsewhere", INDEX, "evil",
        fields(CONFIG, **CODE_ELSEWHERE), put("model/evil.py", "open('EXECUTED', 'w')"),
    ),
    wrong("a dimension that is text", INDEX, "projection_dim", fields(CONFIG, projection_dim="16")),
    wrong("only a pickle", INDEX, "safetensors", gone(WEIGHTS), put("model/pytorch_model.bin", PICKLE)),
    wrong(
        "an index of a file outside", MODEL, "model cannot be loaded", gone(WEIGHTS),
        put("model/model.safetensors.index.json", '{"metadata": {}, "weight_map": {"a": "../../secret.safetensors"}}'),
    ),
    wrong("no processor", INDEX, "processor", gone("model/processor_config.json")),
    # Adapters.
    wrong("weights of an adapter cut short", ADAPTER, "adapter cannot be loaded", cut(LORA, 0.7)),
    # Checkpoints to convert.
    wrong("a checkpoint that executes code", CONVERT, "old.pt", put("old.pt", PICKLE)),
    wrong(
        "output that holds something", CONVERT.replace("--output out", "--output model"), "model",
        put("old.pt", PICKLE),
    ),
    # Evaluation.
    wrong("an unknown score to measure", f"{RUN} --method best", "best"),
    wrong("a score of NaN", f"{RUN} --plugin mine", "NaN", put("mine.py", NAN_SCORE)),
    wrong("a result that is not JSON", REPORT, "results/results.json", put("results/results.json", "{")),
    # Benchmarks.
    wrong("an empty caption", f"{OWN} own.json", "caption", table(caption="  ")),
    wrong("a path with a NUL", f"{OWN} own.json", "a", table(video_path="a\0.mp4")),
    wrong("a data set of code", f"{OWN} code", "code", put("code/code.py", "open('EXECUTED', 'w')\n")),
    wrong("an annotation that is not JSON", MSRVTT, DESCS, put(DESCS, "a,b\n")),
    wrong("an annotation that was changed", MODEL, "data/test.jsonl", cut("data/test.jsonl")),
    wrong("a clip that is gone", MODEL, "000001", gone("data/test/000001.mp4")),
    # Publishing.
    wrong("a dry run into a folder that is in use", PUSH.replace("--dry-run out", "--dry-run data"), "data"),
]  # fmt: skip
