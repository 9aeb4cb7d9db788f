"""The sessions of pages, run as a user types them: outside the clone, by the installed command, without a Hub.

The README's is in `test_first_minute.py`; the Python of all pages runs in `test_pages.py`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import blocks_of, commands_of, pages
from tests.stage import set_up

pytestmark = pytest.mark.e2e

# No GPU is here, and one pass is enough.
ADDED = {"scalar train": ["--use_cpu", "true", "--num_train_epochs", "1", "--dataloader_num_workers", "1"]}
REPLACED = {"MODEL": "runs/miniature", "light": "google/embeddinggemma-2"}  # small ones
LEFT_OUT = ("scalar serve", "pip install")  # nothing ends the first, and the second needs a network
NUM_CLIPS = 30


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with what the pages name, and with a table of captioned clips."""
    folder = set_up(tmp_path_factory.mktemp("sessions"))
    rows = ["caption,path,text,file"]
    for number in range(NUM_CLIPS):
        name = f"clip{number}.mp4"
        (folder / name).symlink_to(folder / ("a.mp4", "b.mp4")[number % 2])
        caption = f"clip number {number}"
        rows.append(f"{caption},{name},{caption},{name}")
    (folder / "clips.csv").write_text("\n".join(rows) + "\n")
    return folder


def run_session(place, page, first):
    """Run the commands of the first block that begins with some words; return what each printed, by its name."""
    block = next(block for block in blocks_of(pages()[page], page) if block.text.startswith(first))
    hidden = ("PYTHONPATH", "HF_HOME", "HF_HUB_CACHE", "HF_TOKEN")
    names = {name: value for name, value in os.environ.items() if name not in hidden}
    programs = Path(sys.executable).parent
    names |= {"HOME": str(place), "HF_HUB_OFFLINE": "1", "PATH": f"{programs}{os.pathsep}{names['PATH']}"}
    printed = {}
    for words in commands_of(block.text):
        name = " ".join(words[:2])
        if name in LEFT_OUT:
            continue
        words = [REPLACED.get(word, word.replace("~", str(place))) for word in words] + ADDED.get(name, [])
        done = subprocess.run(words, capture_output=True, text=True, cwd=place, env=names, timeout=240)
        assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        printed[name] = done.stdout
    return printed


def test_a_folder_is_searched(place):
    printed = run_session(place, "docs/search.md", "scalar index ~/Videos")
    assert "4 clips" in printed["scalar index"]
    assert printed["scalar query"].startswith("query: ") and ".mkv" in printed["scalar query"]


def test_a_model_is_trained_on_captions_and_evaluated(place):
    printed = run_session(place, "docs/training.md", "scalar eval embed --model light")
    assert "SCALAR (own)" in printed["scalar train"]
    assert (place / "runs" / "joint_light" / "adapter_model.safetensors").is_file()


def test_a_table_of_clips_is_evaluated(place):
    printed = run_session(place, "docs/evaluation.md", "scalar eval run --model MODEL --benchmark own")
    assert "SCALAR (own)" in printed["scalar eval"]
    assert (place / "results" / "mine" / "results.json").is_file()
