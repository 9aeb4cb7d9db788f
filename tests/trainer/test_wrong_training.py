"""Wrong inputs of training: one sentence that says what was expected, what came and what to do, and no traceback."""

import logging
import re
import signal
import sys

import pytest

from commands.errors import run_command
from tests.trainer.wrong_training import FLAGS, NUMBERS, OTHER_FILES, READ, RECIPES
from trainer.run import main
from trainer.training_args import RANGES, ScalarTrainingArguments

RIGHT = ["--model", "no-such-model", "--benchmark", "miniature", "--root", "data", "--use_cpu", "true"]
HELD = ("output that holds a run", "output with a broken recipe.json")
RIGHT += ["--output_dir", "out", "--report_to", "none"]


def check_answer(code, stdout, stderr, expected_code, words):
    """One sentence, or the parser's usage; the words; no traceback."""
    everything = stdout + stderr
    assert code == expected_code, everything[-3000:]
    assert "Traceback" not in everything, everything[-3000:]
    lines = [line for line in stderr.splitlines() if re.match(r"Error: |.*: error: |[Uu]sage: ", line)]
    assert lines, everything[-3000:]
    sentence = lines[-1] if expected_code == 1 else stderr
    assert [word for word in words if word not in sentence] == [], sentence
    if expected_code == 1:
        assert len(lines) == 1 and len(sentence) < 900


@pytest.fixture
def called(tmp_path, monkeypatch, capfd):
    """Run train.py's main here, with the files of the table in the working folder."""
    for name, content in OTHER_FILES.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    before = signal.getsignal(signal.SIGTERM)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["train.py", *arguments])
        monkeypatch.setattr(logging, "basicConfig", lambda **options: None)
        try:
            run_command(main)
        except SystemExit as error:
            code = error.code
        return code, *capfd.readouterr()

    yield call
    signal.signal(signal.SIGTERM, before)


@pytest.mark.promise("errors", "A wrong recipe is refused in one sentence")
@pytest.mark.parametrize("name", RECIPES)
def test_a_wrong_recipe_is_reported_in_one_sentence(called, tmp_path, name):
    content, code, words = RECIPES[name]
    content = content if isinstance(content, bytes) else content.replace("{folder}", tmp_path.name).encode()
    (tmp_path / "recipe.yaml").write_bytes(content)
    check_answer(*called("recipe.yaml"), code, words)
    assert not (tmp_path / "harm").exists() and not (tmp_path / "out").exists()


@pytest.mark.parametrize(("field", "value"), NUMBERS)
def test_a_number_outside_its_range_is_refused_by_the_name_of_its_field(called, field, value):
    shown = value if len(value) < 50 else "401 digits"
    answer = called(*RIGHT, f"--{field}={value}")
    check_answer(*answer, 1, [f"`{field}` must be"])
    assert shown in answer[2] or str(float(value)) in answer[2]


@pytest.mark.parametrize("name", FLAGS)
def test_a_wrong_flag_is_reported(called, name):
    fields, code, words = FLAGS[name]
    arguments = ["nowhere.yaml"] if fields is None else [*RIGHT, *fields]
    check_answer(*called(*arguments), code, words)


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) for name in READ])
def test_a_wrong_file_or_folder_is_reported(commands, tiny_run, tmp_path, name):
    make, code, words = READ[name]
    for other in ("broken.yaml", "few.yaml", "word.yaml"):
        (tmp_path / other).write_bytes(OTHER_FILES[other])
    ended = commands.run(*make(tiny_run, tmp_path), cwd=tmp_path, timeout=60)
    check_answer(ended.code, ended.stdout, ended.stderr, code, words)
    assert ended.peak < 1_500_000_000
    out = tmp_path / "out"
    if name not in HELD and out.is_dir():
        assert not [path for path in out.iterdir() if path.name != ".training.lock"]


def test_every_number_has_a_range():
    """A field that transformers adds is noticed."""
    kinds = ("int", "float", "int | None", "float | None")
    fields = ScalarTrainingArguments.__dataclass_fields__.values()
    numbers = {field.name for field in fields if str(getattr(field.type, "__name__", field.type)) in kinds}
    assert numbers - set(RANGES) == {"local_rank"}


def test_a_learned_weight_that_is_not_finite_is_never_saved(tmp_path):
    import torch

    from tests.trainer.test_scalar_trainer import make_trainer

    trainer = make_trainer(tmp_path)
    head = next(p for name, p in trainer.model.named_parameters() if "text_projection" in name and p.requires_grad)
    with torch.no_grad():
        head[0, 0] = float("inf")
    with pytest.raises(ValueError, match=r"weights after step 0 are not finite, .*text_projection"):
        trainer.save_model()
    assert not any(tmp_path.rglob("*.safetensors"))
