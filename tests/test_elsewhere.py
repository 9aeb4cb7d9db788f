"""The installed wheel in a folder that is somebody else's, with modules that have the names of our rooms.

What a user types and programs there, under a wheel and without this project.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.conftest import ROOT
from tests.stage import set_up
from tests.wheels import ROOMS, build_wheel, install

pytestmark = pytest.mark.e2e

SESSIONS = sorted((Path(__file__).parent / "sessions").glob("*.py"))
NUM_CLIPS = 24
RECIPE = """
model: backbone
benchmark: own
root: clips.csv
holdout: 0.3
report_split: test
semantic_weight: 0
per_device_train_batch_size: 4
global_batch_size: null
num_train_epochs: 1
fp16: false
use_cpu: true
dataloader_num_workers: 1
"""
SCORE = """
from scalar_retrieval import register_method


@register_method("least")
def least(pairs):
    absent = ~pairs.clips.modality_mask.T[:, None]
    return pairs.similarities.masked_fill(absent, float("inf")).amin(0)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with clips, a model, and modules of somebody else's."""
    stage = set_up(tmp_path_factory.mktemp("stage"))
    folder = tmp_path_factory.mktemp("elsewhere")
    for name in (*ROOMS, "recipes"):
        path = folder / f"{name}.py"
        if name == "eval":
            path = folder / name / "__init__.py"
            path.parent.mkdir()
        path.write_text(f"raise SystemExit('somebody else: {name}')")

    shutil.copytree(stage / "Videos", folder / "Videos")
    shutil.copytree(stage / "galleries" / "msrvtt", folder / "galleries" / "msrvtt")
    shutil.copytree(ROOT / "recipes" / "miniature_backbone", folder / "backbone")
    shutil.copytree(stage / "runs" / "miniature", folder / "runs" / "miniature")
    rows = ["caption,path"]
    for number in range(NUM_CLIPS):
        shutil.copy(stage / ("a.mp4", "b.mp4")[number % 2], folder / f"clip{number}.mp4")
        rows.append(f"clip number {number},clip{number}.mp4")
    (folder / "clips.csv").write_text("\n".join(rows) + "\n")
    (folder / "mine.yaml").write_text(RECIPE)
    (folder / "my_scores.py").write_text(SCORE)
    return folder


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """The folder of programs of an environment with the wheel."""
    folder = tmp_path_factory.mktemp("installed")
    return install(build_wheel(folder), folder / "environment")


@pytest.fixture(scope="module")
def options(place):
    """The options of a process of a user who has neither this project nor a network."""
    hidden = ("PYTHONPATH", "HF_HOME", "HF_HUB_CACHE", "HF_TOKEN", "XDG_CACHE_HOME")
    names = {name: value for name, value in os.environ.items() if name not in hidden}
    names |= {"HOME": str(place.parent / "home"), "HF_HUB_OFFLINE": "1"}
    return {"cwd": place, "env": names, "text": True}


@pytest.fixture(scope="module")
def run(programs, options):
    """Run a program of the environment in the folder, which must end well; return what it printed."""

    def run(program, *arguments):
        command = [str(programs / program), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, timeout=400, **options)
        assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    return run


@pytest.fixture(scope="module")
def gallery(run):
    run("scalar", "index", "Videos", "--output", "galleries/videos", "--model", "backbone")
    return "galleries/videos"


def test_the_package_is_that_of_the_wheel(run, programs):
    printed = run("python", "-c", "import scalar_retrieval; print(scalar_retrieval.__file__)")
    assert printed.startswith(str(programs.parent))


@pytest.mark.parametrize("program", [("scalar",), ("python", "-m", "scalar_retrieval.search")])
def test_a_gallery_is_queried(program, run, gallery):
    assert run(*program, "query", gallery, "a dog", "-k", "1").startswith("query: a dog\n  1 ")


def test_a_gallery_is_served(programs, options, gallery):
    command = [str(programs / "scalar"), "serve", gallery, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, **options) as serving:
        try:
            address = re.search(r"http://\S+", serving.stdout.readline())[0]
            with urlopen(address, timeout=60) as answer:
                assert "<title>" in answer.read().decode()
        finally:
            serving.terminate()


_LAUNCH = ("python", "-m", "accelerate.commands.launch", "--num_processes", "1", "-m", "scalar_retrieval.trainer")


@pytest.mark.parametrize(
    "program",
    [
        ("scalar", "train"),
        pytest.param(_LAUNCH, marks=pytest.mark.slow),
    ],
)
def test_a_model_is_trained_and_published(program, run, place):
    output = f"runs/{program[0]}"
    assert "SCALAR (own)" in run(*program, "mine.yaml", "--output_dir", output)
    run(
        "scalar", "publish", "adapter", output, "user/scalar", "--base", "user/backbone", "--dry-run", f"{output}-card"
    )
    assert (place / f"{output}-card" / "README.md").is_file()


def test_a_score_of_the_folder_is_evaluated(run):
    printed = run(
        *("scalar", "eval", "run", "--embeddings", "galleries/msrvtt", "--plugin", "my_scores"),
        *("--method", "least", "--output", "results/msrvtt"),
    )
    assert "least" in printed


def test_a_metric_is_loaded(run):
    code = """
from pathlib import Path
import evaluate, scalar_retrieval
metric = evaluate.load(str(Path(scalar_retrieval.__file__).parent / "eval" / "metrics" / "retrieval"))
print(metric.name)
"""
    assert run("python", "-c", code) == "retrieval\n"


@pytest.mark.parametrize("session", SESSIONS, ids=lambda path: path.stem)
def test_a_session_of_python_runs(session, run, place, gallery):
    shutil.copy(session, place / f"my_{session.name}")
    assert run("python", f"my_{session.name}")
