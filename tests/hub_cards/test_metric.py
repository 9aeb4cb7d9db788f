import os
import re
import shutil
import subprocess
import sys

import pytest
import yaml

from scalar_retrieval.hub_cards.card import Details, read_card
from scalar_retrieval.hub_cards.metric import GRADIO_VERSION, metric_card, stage_metric
from tests.conftest import ROOT
from tests.hub_cards.folders import blocks

METRICS = ROOT / "eval" / "metrics"
NAMES = ("retrieval", "aggregation_gain")
DETAILS = Details({"license": "mit"}, "Mine.")


def staged(name, folder, source=None):
    """A metric as it is pushed; returns its card."""
    folder.mkdir(parents=True)
    stage_metric(source or METRICS / name, folder, f"user/{name}")
    card = metric_card(folder, f"user/{name}", DETAILS)
    (folder / "README.md").write_text(card, encoding="utf-8")
    return card


def test_a_metric_is_staged_without_what_is_no_part_of_it(tmp_path):
    with pytest.raises(ValueError, match="user/recall"):
        stage_metric(METRICS / "retrieval", tmp_path, "user/recall")
    with pytest.raises(FileNotFoundError, match="nothing.py"):
        stage_metric(tmp_path / "nothing", tmp_path, "user/nothing")
    source = shutil.copytree(METRICS / "retrieval", tmp_path / "retrieval")
    (source / "scores.npy").touch()
    staged("retrieval", tmp_path / "staged", source)
    expected = {"app.py", "retrieval.py", "ranking.py", "example.json", "requirements.txt", "README.md"}
    assert {path.name for path in (tmp_path / "staged").iterdir()} == expected


@pytest.mark.parametrize("name", NAMES)
def test_the_card_names_the_space_and_keeps_the_documentation(tmp_path, name):
    card = staged(name, tmp_path / name)
    assert read_card(card) == ("metric", DETAILS)
    original = (METRICS / name / "README.md").read_text(encoding="utf-8")
    added = {"license": "mit", "sdk_version": GRADIO_VERSION, "python_version": "3.11", "app_file": "app.py"}
    assert yaml.safe_load(card.split("---")[1]) == yaml.safe_load(original.split("---")[1]) | added
    assert f'evaluate.load("user/{name}")' in blocks(card)[0] and "eval/metrics" not in card
    definition = original.split("## Definition")[1].split("## How to use")[0]
    assert len(definition) > 200 and definition in card
    lines = (METRICS / name / "requirements.txt").read_text().splitlines()
    assert "pip install " + " ".join(f'"{line}"' for line in lines if line[0].isalpha()) + "\n" in card


# The page ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_page_of_the_space_answers(tmp_path):
    gradio_client = pytest.importorskip("gradio_client")
    staged("retrieval", tmp_path / "space")
    offline = {"HF_HUB_OFFLINE": "1", "GRADIO_ANALYTICS_ENABLED": "False", "HF_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-u", "app.py"]
    options = {"cwd": tmp_path / "space", "env": os.environ | offline, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **options) as process:
        try:
            lines = (re.findall(r"http://127.0.0.1:\d+", line) for line in process.stdout)
            client = gradio_client.Client(next(found[0] for found in lines if found), verbose=False)
            results = client.predict("[[0.9, 0.1], [0.2, 0.7]]", "[0, 1]", "[1]", api_name="/compute")
            with pytest.raises(gradio_client.exceptions.AppError, match="Inputs are JSON, such as"):
                client.predict("[[0.9, NaN], [0, 1]]", "[0, 1]", "[1]", api_name="/compute")
        finally:
            process.terminate()
    assert results["recall_at_1"] == 100
