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
from tests.hub_cards.folders import CONFIG, make_adapter, make_model, write_card, write_json, write_result
from tests.hub_cards.records.test_evaluations import make_content
from tests.hub_cards.records.test_evaluations import write_result as write_evaluation
from tests.hub_cards.records.test_runs import RECIPE
from tests.hub_cards.test_markdown import HOSTILE

BASE = PublishedModel("user/base")


def test_results_can_be_chosen_and_are_of_these_weights(adapter_dir, staged, tmp_path):
    write_result(tmp_path / "elsewhere", adapter_dir, benchmark="msrvtt")
    stage_adapter(adapter_dir, staged, BASE, results=[tmp_path / "elsewhere" / "results.json"])
    assert [path.name for path in (staged / "results").iterdir()] == ["msrvtt-test-aaaaaaaa"]
    write_result(adapter_dir / "results" / "old", adapter_dir, weights={"adapter_model.safetensors": "0" * 64})
    (tmp_path / "again").mkdir()
    with pytest.raises(ValueError, match="measured with other weights"):
        stage_adapter(adapter_dir, tmp_path / "again", BASE)


def test_emissions_are_added_in_grams_and_their_coordinates_stay_here(adapter_dir, staged):
    columns = "timestamp,emissions,energy_consumed,duration,country_name,longitude,latitude,codecarbon_version"
    rows = "2026-01-01,0.1,0.2,3,Germany,11.5820,48.1351,3.0\n2026-01-02,0.3,0.2,3,Germany,11.5820,48.1351,3.0"
    (adapter_dir / "emissions.csv").write_text(f"{columns}\n{rows}\n")
    stage_adapter(adapter_dir, staged, BASE)
    assert not (staged / "emissions.csv").exists()
    reported = json.loads((staged / "emissions.json").read_text())
    assert reported == {"emissions": 400.0, "source": "CodeCarbon 3.0", "geographical_location": "Germany"}


@pytest.mark.parametrize(
    ("kind", "damage", "message"),
    [
        ("model", lambda folder: None, "holds an adapter: publish it with `scalar publish adapter`"),
        ("model", lambda folder: (folder / "adapter_config.json").unlink(), "holds no weights"),
        ("adapter", lambda folder: (folder / "config.json").unlink(), "has no config.json"),
        ("adapter", lambda folder: write_json({}, folder / "results" / "results.json"), "is not a result"),
    ],
)
def test_what_is_missing_or_broken_is_named(adapter_dir, tmp_path, kind, damage, message):
    damage(adapter_dir)
    with pytest.raises(ValueError, match=message):
        publish(adapter_dir, "user/name", kind=kind, dry_run=tmp_path / "out", base={"adapter": "user/base"}.get(kind))


# Cards --------------------------------------------------------------------------------------------------------------


def test_names_of_others_cannot_break_a_card(tmp_path):
    folder = make_model(tmp_path)
    write_evaluation(folder, make_content(benchmark=HOSTILE, problems=[HOSTILE], left_out=[HOSTILE]))
    write_json(RECIPE | {"benchmark": HOSTILE, "optim": HOSTILE, "objective": HOSTILE}, folder / "recipe.json")
    card = write_card(folder, model_card(folder, "user/model", Details()))
    assert card.data.eval_results[0].dataset_name == HOSTILE
    assert "<script>" not in re.sub(r"(`+)[^`\n](?:.*?[^`])?\1(?!`)", "", card.text)  # but in code
    headings = [line for line in card.text.splitlines() if line.startswith("#")]
    assert sum("script" in heading for heading in headings) == 1  # that of its evaluation


def card_of(folder, config):
    """The text of the card of a model with changes of its configuration."""
    make_model(folder)
    write_json(CONFIG | config, folder / "config.json")
    return write_card(folder, model_card(folder, "user/model", Details())).text


def test_limitations_are_those_of_the_model(tmp_path):
    text_config = {"model_type": "clip_text_model", "num_hidden_layers": 2}
    card = card_of(tmp_path, {"aggregation": "gram", "text_config": text_config})
    assert not re.search(r"\*\*(Direction|Second stage|Backbone)\.|compute_weights|\\tau_w|model\.match", card)
    assert "Clips are ranked by GRAM volume (`gram`" in card
    write_json(RECIPE | {"benchmark": "vast27m"}, tmp_path / "recipe.json")
    card = card_of(tmp_path, {"text_config": text_config})
    assert "This model has other towers" in card and "**Training scale.**" in card


def test_a_card_includes_the_calibration(tmp_path):
    card = card_of(tmp_path, {"modality_scale": [1.0, 1.0, 1.0], "modality_offset": None})
    assert "c_m" not in card and r"\exp(\langle t, z_m\rangle" in card
    card = card_of(tmp_path, {"modality_scale": [1, 2, 1], "modality_offset": [0.3, 0.0, 0.05]})
    assert r"\exp(c_m / \tau_w)" in card and r"\sum_m w_m c_m}" in card
    assert r"\\(a\\) = 1, 2, 1 and" in card and r"\\(b\\) = 0.3, 0.0, 0.05 for video" in card


@pytest.mark.parametrize(
    ("make", "write", "packages"),
    [(make_adapter, adapter_card, ("transformers", "peft")), (make_model, model_card, ("transformers",))],
)
def test_the_packages_of_a_card_are_new_enough(tmp_path, make, write, packages):
    """With an older transformers the remote code ends in an ImportError that does not say why."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    listed = [*project["dependencies"], *project["optional-dependencies"]["hub"]]
    oldest = dict(re.match(r"([\w-]+)>=([\d.]+)", package).groups() for package in listed)
    card = write(make(tmp_path), "user/name", Details())
    line = "pip install torch " + " ".join(f'"{name}>={oldest[name]}"' for name in packages)
    assert f"\n{line}\n" in card and card.count("```python") >= 4
