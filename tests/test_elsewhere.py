"""The installed wheel in a folder that is somebody else's, with modules that have the names of our rooms.

What a user types and programs there, under a wheel and without this project or the Hub; also the sessions of pages.
The README's is in `test_first_minute.py`; the Python of all pages runs in `test_pages.py`."""

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.conftest import ROOT
from tests.pages import blocks_of, commands_of, pages
from tests.stage import set_up
from tests.wheels import ROOMS, build_wheel, install

pytestmark = pytest.mark.e2e

SESSIONS = sorted((Path(__file__).parent / "sessions").glob("*.py"))
NUM_CLIPS = 20
SCORE = """
from scalar_retrieval import register_method


@register_method("least")
def least(pairs):
    absent = ~pairs.clips.modality_mask.T[:, None]
    return pairs.similarities.masked_fill(absent, float("inf")).amin(0)
"""
SCALAR = """
from scalar_retrieval.commands.scalar import main
sys.exit(main())
"""
# On pages: no GPU is here, one pass is enough, and models are small ones.
ADDED = {"scalar train": ["--use_cpu", "true", "--num_train_epochs", "1", "--dataloader_num_workers", "1"]}
REPLACED = {"MODEL": "runs/miniature", "light": "google/embeddinggemma-2"}
LEFT_OUT = ("scalar serve", "pip install")  # nothing ends the first, and the second needs a network


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with what the pages name, a table of captioned clips, and modules of somebody else's."""
    folder = set_up(tmp_path_factory.mktemp("elsewhere"))
    for name in (*ROOMS, "recipes"):
        path = folder / f"{name}.py"
        if name == "eval":
            path = folder / name / "__init__.py"
            path.parent.mkdir()
        path.write_text(f"raise SystemExit('somebody else: {name}')")

    shutil.copytree(ROOT / "recipes" / "miniature_backbone", folder / "backbone")
    rows = ["caption,path,text,file"]
    for number in range(NUM_CLIPS):
        name, caption = f"clip{number}.mp4", f"clip number {number}"
        shutil.copy(folder / ("a.mp4", "b.mp4")[number % 2], folder / name)
        rows.append(f"{caption},{name},{caption},{name}")
    (folder / "clips.csv").write_text("\n".join(rows))
    (folder / "my_scores.py").write_text(SCORE)
    return folder


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """The folder of programs of an environment with the wheel."""
    folder = tmp_path_factory.mktemp("installed")
    return install(build_wheel(folder), folder / "environment")


@pytest.fixture(scope="module")
def run(programs, place, commands):
    """Run Python in the folder, with the installed wheel; it must end well. Return what it printed."""
    (packages,) = programs.parent.glob("lib/python*/site-packages")

    def run(code, *arguments, folder=place):
        (folder / "script.py").write_text(f"import sys\nsys.path.insert(1, {str(packages)!r})\n{code}")
        home = {"HOME": str(place)}
        done = commands.run(folder / "script.py", *arguments, cwd=place, env=home, is_elsewhere=True, timeout=240)
        assert done.code == 0, f"{arguments}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    return run


@pytest.fixture(scope="module")
def scalar(run, programs):
    """Run the command `scalar` in the folder."""
    return lambda *arguments: run(SCALAR, *arguments, folder=programs)


def test_the_package_is_that_of_the_wheel(run, programs):
    printed = run("import scalar_retrieval; print(scalar_retrieval.__file__)")
    assert printed.startswith(str(programs.parent))


@pytest.mark.parametrize("stop", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_gallery_is_served_until_it_is_stopped(programs, place, stop):
    names = {name: value for name, value in os.environ.items() if not re.match("PYTHONPATH|HF_|XDG_", name)}
    names |= {"HOME": str(place), "HF_HUB_OFFLINE": "1"}
    command = [programs / "scalar", "serve", "galleries/videos", "--port", "0"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=place, env=names, **pipes) as serving:
        try:
            address = re.search(r"http://\S+", serving.stdout.readline())[0]
            answer = httpx.post(f"{address}api/search", json={"query": "a dog barks", "k": 1}, timeout=60)
            assert len(answer.json()["hits"]) == 1
        finally:
            serving.send_signal(stop)
        _, reported = serving.communicate(timeout=60)
    assert serving.returncode == 0 and "Traceback" not in reported and "Interrupted" not in reported


def test_a_score_of_the_folder_is_evaluated(scalar):
    asked = ("--embeddings", "galleries/msrvtt", "--plugin", "my_scores", "--method", "least")
    assert "least" in scalar("eval", "run", *asked, "--output", "results/msrvtt")


@pytest.mark.parametrize("session", SESSIONS, ids=lambda path: path.stem)
def test_a_session_of_python_runs(session, run):
    assert run(session.read_text(encoding="utf-8"))


# Pages ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def session_of(scalar, place):
    """Runs the commands of the first block that begins with some words; returns what each printed, by its name."""

    def session_of(page, first):
        block = next(block for block in blocks_of(pages()[page], page) if block.text.startswith(first))
        printed = {}
        for words in commands_of(block.text):
            name = " ".join(words[:2])
            if name not in LEFT_OUT:
                words = [REPLACED.get(word, word.replace("~", str(place))) for word in words] + ADDED.get(name, [])
                assert words[0] == "scalar"
                printed[name] = scalar(*words[1:])
        return printed

    return session_of


def test_a_folder_is_searched(session_of):
    printed = session_of("docs/search.md", "scalar index ~/Videos")
    assert "4 clips" in printed["scalar index"]
    assert printed["scalar query"].startswith("query: ") and ".mkv" in printed["scalar query"]


def test_a_model_is_trained_on_captions_and_evaluated(session_of, place):
    printed = session_of("docs/training.md", "scalar eval embed --model light")
    assert "SCALAR (own)" in printed["scalar train"]
    assert (place / "runs" / "joint_light" / "adapter_model.safetensors").is_file()


def test_a_table_of_clips_is_evaluated(session_of, place):
    printed = session_of("docs/evaluation.md", "scalar eval run --model MODEL --benchmark own")
    assert "SCALAR (own)" in printed["scalar eval"]
    assert (place / "results" / "mine" / "results.json").is_file()
