"""What models and adapters share: what leaves the folder of a run, and what both cards say."""

import json
import re
import tomllib

import pytest

from scalar_retrieval.hub_cards.adapter import adapter_card, stage_adapter
from scalar_retrieval.hub_cards.card import Details
from scalar_retrieval.hub_cards.model import model_card
from scalar_retrieval.hub_cards.publish import publish
from scalar_retrieval.hub_cards.publishing import PublishedModel
from tests.conftest import ROOT
from tests.hub_cards.folders import CONFIG, blocks, make_adapter, make_model, write_card, write_json, write_result
from tests.hub_cards.records.test_evaluations import make_content
from tests.hub_cards.records.test_evaluations import write_result as write_evaluation
from tests.hub_cards.records.test_runs import RECIPE
from tests.hub_cards.test_markdown import HOSTILE

BASE = PublishedModel("user/base")


def test_results_of_other_weights_are_refused(adapter_dir, staged):
    write_result(
        adapter_dir / "results" / "old", adapter_dir, sha256="b" * 64, weights={"adapter_model.safetensors": "0" * 64}
    )
    with pytest.raises(ValueError, match="measured with other weights"):
        stage_adapter(adapter_dir, staged, BASE)


def test_coordinates_of_codecarbon_stay_here(adapter_dir, staged):
    columns = "timestamp,emissions,energy_consumed,duration,country_name,longitude,latitude,codecarbon_version"
    row = "2026-01-01,0.1,0.2,3,Germany,11.5820,48.1351,3.0"
    (adapter_dir / "emissions.csv").write_text(f"{columns}\n{row}\n")
    stage_adapter(adapter_dir, staged, BASE)
    assert not (staged / "emissions.csv").exists()
    reported = json.loads((staged / "emissions.json").read_text())
    assert reported == {"emissions": 100.0, "source": "CodeCarbon 3.0", "geographical_location": "Germany"}


def test_results_can_be_chosen(adapter_dir, staged, tmp_path):
    write_result(tmp_path / "elsewhere", adapter_dir, benchmark="msrvtt")
    stage_adapter(adapter_dir, staged, BASE, results=[tmp_path / "elsewhere" / "results.json"])
    assert [path.name for path in (staged / "results").iterdir()] == ["msrvtt-test-aaaaaaaa"]
    with pytest.raises(FileNotFoundError, match="no results.json at .*run/nowhere"):
        (staged / "adapter_model.safetensors").unlink()
        stage_adapter(adapter_dir, staged, BASE, results=[adapter_dir / "nowhere"])


@pytest.mark.parametrize(
    ("kind", "damage", "message"),
    [
        ("model", lambda folder: None, "holds an adapter: publish it with `scalar publish adapter`"),
        ("model", lambda folder: (folder / "adapter_config.json").unlink(), r"holds no weights \(model\*"),
        ("adapter", lambda folder: (folder / "config.json").unlink(), "has no config.json, the configuration"),
        ("adapter", lambda folder: write_json({}, folder / "results" / "results.json"), "is not a result"),
    ],
)
def test_what_is_missing_or_broken_is_named(adapter_dir, tmp_path, kind, damage, message):
    damage(adapter_dir)
    options = {"adapter": {"base": "user/base"}}.get(kind, {})
    with pytest.raises(ValueError, match=message):
        publish(adapter_dir, "user/name", kind=kind, dry_run=tmp_path / "out", **options)


# Cards --------------------------------------------------------------------------------------------------------------


def test_names_of_others_cannot_break_a_card(tmp_path):
    folder = make_model(tmp_path)
    write_evaluation(folder, make_content(benchmark=HOSTILE, problems=[HOSTILE], left_out=[HOSTILE]))
    write_json(RECIPE | {"benchmark": HOSTILE, "optim": HOSTILE, "objective": HOSTILE}, folder / "recipe.json")
    card = write_card(folder, model_card(folder, "user/model", Details()))
    assert card.data.eval_results[0].dataset_name == HOSTILE
    outside_of_code = re.sub(r"(`+)[^`\n](?:.*?[^`])?\1(?!`)", "", card.text)
    assert "<script>" not in outside_of_code
    headings = [line for line in card.text.splitlines() if line.startswith("#")]
    assert sum("script" in heading for heading in headings) == 1  # that of its evaluation
    assert "because they have no file: 1 clips" in card.text and "counted as absent: 1, such as" in card.text


def test_limitations_are_those_of_the_model(tmp_path):
    folder = make_model(tmp_path)
    text_config = {"model_type": "clip_text_model", "num_hidden_layers": 2}
    config = CONFIG | {"aggregation": "gram", "text_config": text_config}
    write_json(config, folder / "config.json")
    body = write_card(folder, model_card(folder, "user/model", Details())).text
    for part in ("**Direction.**", "**Second stage.**", "**Backbone.**", "compute_weights", r"\tau_w", "model.match"):
        assert part not in body
    assert "Clips are ranked by GRAM volume (`gram`" in body
    write_json(CONFIG | {"text_config": text_config}, folder / "config.json")
    write_json(RECIPE | {"benchmark": "vast27m"}, folder / "recipe.json")
    body = write_card(folder, model_card(folder, "user/model", Details())).text
    assert "This model has other towers" in body and "**Training scale.**" in body


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"modality_scale": [1.0, 1.0, 1.0], "modality_offset": None}, None),
        ({"modality_scale": [1, 2, 1], "modality_offset": [0.3, 0.0, 0.05]}, ("1, 2, 1", "0.3, 0.0, 0.05")),
    ],
)
def test_a_card_includes_the_calibration(tmp_path, fields, expected):
    folder = make_model(tmp_path)
    write_json(CONFIG | fields, folder / "config.json")
    card = write_card(folder, model_card(folder, "user/model", Details())).text
    assert ("c_m" in card) == (expected is not None) and (r"\exp(\langle t, z_m\rangle" in card) == (expected is None)
    if expected is not None:
        assert r"\exp(c_m / \tau_w)" in card and r"\sum_m w_m c_m}" in card
        assert rf"\\(a\\) = {expected[0]} and" in card and rf"\\(b\\) = {expected[1]} for video" in card


def test_the_blocks_of_a_card_are_python_and_its_packages_new_enough(tmp_path):
    """With an older transformers the remote code ends in an ImportError that does not say why."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    listed = [*project["dependencies"], *project["optional-dependencies"]["hub"]]
    oldest = dict(re.match(r"([\w-]+)>=([\d.]+)", package).groups() for package in listed)
    make_adapter(tmp_path / "adapter")
    make_model(tmp_path / "model")
    for folder, write, packages in (
        ("adapter", adapter_card, ("transformers", "peft")),
        ("model", model_card, ("transformers",)),
    ):
        card = write(tmp_path / folder, "user/name", Details())
        (line,) = re.findall("^pip install torch .*$", card, re.MULTILINE)
        assert line == "pip install torch " + " ".join(f'"{name}>={oldest[name]}"' for name in packages)
        assert len(blocks(card)) >= 4
        for block in blocks(card):
            compile(block, folder, "exec")
