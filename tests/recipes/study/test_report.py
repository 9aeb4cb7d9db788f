"""The study's report: the paper's tables, and those of tuning, of paired differences, and of sharing."""

import json
import math
import re

import pytest
import torch
from safetensors.torch import save_file

from recipes.study.__main__ import main
from recipes.study.report import (
    paired_table,
    plot_sharing,
    report,
    second_stage_table,
    sharing_table,
    temperatures_table,
    tuning_table,
)
from tests.eval.reports.made_runs import make_run
from tests.recipes.study.made_studies import save


@pytest.fixture
def study(tmp_path):
    first, second = [True] * 60 + [False] * 40, [True] * 50 + [False] * 50
    for seed in (50, 51):
        save(tmp_path / "runs" / f"scalar-{seed}", make_run("scalar", seed), first)
        save(tmp_path / "runs" / f"gram-{seed}", make_run("gram", seed, method="gram"), second)
    for level in ("0", "1"):
        for seed in (50, 51):
            run = make_run("scalar", seed, joint=10 + 20 * float(level) + seed - 50, slope=1.0)
            save(tmp_path / "sharing" / level / f"scalar-{seed}", run, first)
    return tmp_path


def test_variants_are_compared_over_the_same_queries(study):
    (row,) = paired_table(study / "runs").rows
    assert [str(cell) for cell in row[:2]] == ["GRAM", "+10.0"] and row[3] == "2, 2"
    low, high = map(float, re.findall(r"[-+][\d.]+", row[2]))
    assert 4 < low < 10 < high < 17  # ten queries of a hundred: 10 ± 1.96 * 3


def test_sharing_has_a_column_for_each_degree_and_its_seeds(study, tmp_path):
    text = report(study)
    table = text[text.index("## How much the modalities of a clip share") :]
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("|")]
    assert lines[0][2:] == ["0 shared", "0.6 shared", "1 shared"]
    # at the degree of the main runs these stand; the masked row is two steps of the slope lower
    assert lines[2] == ["SCALAR", "0 %", "10.5 ± 0.7", "20.0 ± 0.0", "30.5 ± 0.7"]
    assert lines[3] == ["", "50 %", "8.5 ± 0.7", "20.0 ± 0.0", "28.5 ± 0.7"]
    assert (study / "report" / "sharing.png").stat().st_size > 10_000 and "![sharing.png]" in table
    assert (study / "report" / "tables.md").read_text() == text and "| GRAM " in text
    assert {path.name for path in (study / "report").glob("*.csv")} >= {"sharing.csv", "paired.csv"}


def reranked(rule, depth, recall, rate=0.0):
    return {"rule": rule, "depth": depth, "rate": rate, "text_to_video_recall_at_1": recall}


def test_the_second_stage_is_shown_at_its_largest_depth_with_nothing_masked(tmp_path):
    entries = [
        reranked("match", 5, 11.0), reranked("match", 50, 12.0), reranked("match", 50, 1.0, rate=0.5),
        reranked("fused", 5, 13.0), reranked("fused", 50, 14.0),
    ]  # fmt: skip
    for seed, auc in ((50, 0.9), (51, 0.8)):
        run = make_run("scalar", seed, joint=10.0, two_stage_diagnostic={"auc": auc}) | {"two_stage": entries}
        save(tmp_path / "runs" / f"scalar-{seed}", run, [True])
    save(tmp_path / "runs" / "gram-50", make_run("gram", method="gram") | {"two_stage": []}, [True])
    (row,) = second_stage_table([tmp_path / "runs"]).rows
    assert [str(cell) for cell in row] == ["SCALAR", "10.0 ± 0.0", "12.0 ± 0.0", "14.0 ± 0.0", "0.850 ± 0.071"]


def test_a_learned_temperature_is_shown_from_its_start_to_its_end(tmp_path):
    for name, learned in (("gram-0.3-0.003-8", True), ("gram-51", True), ("scalar-50", False)):
        folder = tmp_path / name
        save(folder, make_run("gram" if learned else "scalar", 50))
        (folder / "recipe.json").write_text(json.dumps({"learnable_temperature": learned, "temperature": 0.3}))
        scale = {"base_model.model.logit_scale.log_scale": torch.tensor(math.log(4.0))} if learned else {}
        save_file(scale | {"head": torch.ones(1)}, folder / "adapter_model.safetensors")
    (row,) = temperatures_table([tmp_path]).rows
    assert [str(cell) for cell in row] == ["GRAM", "0.300", "0.250 ± 0.000"]


def test_a_variant_without_a_degree_has_a_dash_there(tmp_path):
    sharing = {"gram": {0.0: {0.0: [3.0], 0.5: [2.0]}}, "scalar": {1.0: {0.0: [5.0], 0.5: [4.0]}}}
    assert [str(cell) for cell in sharing_table(sharing).rows[0]] == ["GRAM", "0 %", "3.0", "–"]
    plot_sharing(sharing, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 5_000


def test_every_trial_is_shown_and_which_was_chosen():
    settings = {"temperature": 0.3, "learning_rate": 3e-3, "num_train_epochs": 8}
    trials = [
        {"settings": settings, "recall_at_1": 31.2},
        {"settings": settings | {"temperature": 0.07}, "recall_at_1": None},
    ]
    table = tuning_table({"methods": {"gram": {"chosen": settings, "trials": trials}}})
    assert [[str(cell) for cell in row] for row in table.rows] == [
        ["GRAM", "0.3", "0.003", "8", "31.2", "chosen"],
        ["GRAM", "0.07", "0.003", "8", "–", ""],
    ]


def test_the_report_alone_is_printed_without_training(study, capsys):
    assert main(["--report-only", "--output", str(study)]) == 0
    assert capsys.readouterr().out == (study / "report" / "tables.md").read_text() + "\n"


def test_a_report_of_nothing_is_one_clear_line(tmp_path):
    (tmp_path / "runs").mkdir()
    with pytest.raises(ValueError, match="There is no results.json in"):
        main(["--report-only", "--output", str(tmp_path)])


def test_a_study_without_its_backbone_says_so(tmp_path):
    overlay = tmp_path / "overlay.yaml"
    fields = {"model": "nowhere", "root": "data", "temperature": 0.3, "learning_rate": 0.1, "num_train_epochs": 8}
    overlay.write_text(json.dumps(fields | {"loss_warmup_steps": 17, "full_view_decay_steps": 69}))
    with pytest.raises(FileNotFoundError, match="backbone nowhere, which is not there"):
        main(["--overlay", str(overlay), "--output", str(tmp_path)])


@pytest.mark.parametrize("wrong", [["--jobs", "0"], ["--shared", "2"], ["--variants", "best"]])
def test_wrong_options_are_told(wrong, capsys):
    with pytest.raises(SystemExit) as ended:
        main(wrong)
    assert ended.value.code == 2 and wrong[0] in capsys.readouterr().err
