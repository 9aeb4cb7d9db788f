import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

from eval.__main__ import app
from eval.embed import Embeddings, gallery_manifest
from eval.files import write_json
from eval.report import format_table, plot_results
from eval.retrieval import evaluate_embeddings
from eval.run import run, source_state, versions


def make_embeddings():
    generator = torch.Generator().manual_seed(0)
    mask = torch.rand(12, 3, generator=generator) < 0.8
    mask[:, 0] = True
    modality_embeds = torch.nn.functional.normalize(torch.randn(12, 3, 8, generator=generator), dim=-1)
    text_embeds = modality_embeds[:, 0] + 0.4 * torch.randn(12, 8, generator=generator)
    return Embeddings(
        text_embeds=torch.nn.functional.normalize(text_embeds, dim=-1),
        modality_embeds=modality_embeds * mask[..., None],
        modality_mask=mask,
        targets=torch.arange(12),
        clip_ids=[f"clip{i}" for i in range(12)],
        query_ids=[f"clip{i}#0" for i in range(12)],
        problems=["clip3: audio is broken"],
    )


@pytest.fixture
def asked(monkeypatch):
    """Replace model, benchmark and embedding by known ones; what they were asked for ends up in the fixture."""
    asked = {"score_options": {"method": "scalar", "query_temperature": 0.3}}

    def embed_dataset(model, processor, dataset, **options):
        asked.update(model=model, dataset=dataset, options=options)
        return make_embeddings()

    monkeypatch.setattr("eval.run.load_benchmark", lambda *arguments: arguments)
    monkeypatch.setattr("eval.run.describe_benchmark", lambda name, root: {"seed": 7})
    config = SimpleNamespace(query_temperature=0.3)

    def load_model(path):
        return SimpleNamespace(config=config, path=path, score_options=lambda: asked["score_options"]), None

    monkeypatch.setattr("eval.run.load_model", load_model)
    monkeypatch.setattr("eval.run.embed_dataset", embed_dataset)
    return asked


def test_result_file_holds_the_figures_and_how_to_repeat_them(asked, tmp_path):
    results = run(
        tmp_path / "out",
        model_path="models/tiny",
        benchmark="miniature",
        root=tmp_path / "root",
        rates=(0.0, 0.75),
        mask_seed=5,
        batch_size=4,
        on_error="missing",
        device="cpu",
    )
    assert asked["model"].path == "models/tiny"
    assert asked["dataset"] == ("miniature", tmp_path / "root", "test")
    assert asked["options"] == {"batch_size": 4, "device": "cpu", "on_error": "missing"}
    assert json.loads((tmp_path / "out" / "results.json").read_text()) == results
    expected = evaluate_embeddings(make_embeddings(), rates=(0.0, 0.75), mask_seed=5, query_temperature=0.3)
    assert results["retrieval"] == expected
    assert results["gallery"] == gallery_manifest(make_embeddings())
    assert results["problems"] == ["clip3: audio is broken"]
    assert (results["model"], results["benchmark"], results["split"]) == ("models/tiny", "miniature", "test")
    assert results["embedded"]["query_temperature"] == 0.3
    assert results["embedded"]["benchmark_description"] == {"seed": 7} and results["embedded"]["training"] is None
    assert results["versions"] == versions()
    assert results["arguments"]["rates"] == [0.0, 0.75] and results["arguments"]["root"] == str(tmp_path / "root")
    assert {"source", "date"} < set(results)
    assert (tmp_path / "out" / "results.png").stat().st_size > 10_000


def test_the_models_own_score_is_measured_with_what_it_learned(asked, tmp_path):
    learned = {"hyperbolic_mix": torch.tensor(0.25), "curvature": torch.tensor(2.0)}
    asked["score_options"] = {"method": "hypergram", "query_temperature": 0.3} | learned
    run(tmp_path / "first", model_path="models/tiny", benchmark="miniature", root=tmp_path, rates=(0.0,))
    again = run(tmp_path / "again", embeddings_path=tmp_path / "first" / "embeddings", rates=(0.0,))
    figures = again["retrieval"]["rates"][0]["methods"]
    assert list(figures) == ["scalar", "uniform", "video", "audio", "subtitle", "hypergram"]
    options = {"methods": ("hypergram",), "rates": (0.0,)}
    expected = evaluate_embeddings(make_embeddings(), **options, hyperbolic_mix=0.25, curvature=2.0)
    assert figures["hypergram"] == expected["rates"][0]["methods"]["hypergram"]


def test_saved_embeddings_give_the_same_figures_without_model_or_benchmark(asked, tmp_path):
    first = run(tmp_path / "first", model_path="models/tiny", benchmark="miniature", root=tmp_path)
    asked.clear()
    again = run(tmp_path / "again", embeddings_path=tmp_path / "first" / "embeddings")
    assert "model" not in asked
    for name in ("model", "benchmark", "split", "retrieval", "gallery", "problems", "embedded"):
        assert again[name] == first[name]
    assert not (tmp_path / "again" / "embeddings").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"model_path": "m", "benchmark": "miniature"},
        {"model_path": "m", "embeddings_path": "e"},
        {"root": "r", "embeddings_path": "e"},
    ],
)
def test_model_and_embeddings_exclude_each_other_and_one_is_needed(asked, tmp_path, arguments):
    with pytest.raises(ValueError, match="embeddings"):
        run(tmp_path, **arguments)
    assert "model" not in asked and not list(tmp_path.iterdir())


def test_rate_in_percent_is_refused_before_anything_is_embedded(asked, tmp_path):
    with pytest.raises(ValueError, match="between 0 and 1"):
        run(tmp_path, model_path="m", benchmark="miniature", root=tmp_path, rates=(0, 50))
    assert "model" not in asked


def test_embeddings_of_unknown_origin_are_refused(tmp_path):
    make_embeddings().save(tmp_path / "embeddings")
    with pytest.raises(ValueError, match="'model', 'benchmark', 'split', 'query_temperature'"):
        run(tmp_path, embeddings_path=tmp_path / "embeddings")


def test_interrupted_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "results.json"
    write_json({"old": 1}, path)
    with pytest.raises(TypeError):
        write_json({"new": object()}, path)
    assert json.loads(path.read_text()) == {"old": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["results.json"]


def test_versions_name_everything_that_figures_depend_on():
    found = versions()
    assert set(found) == {"python", "torch", "transformers", "peft", "accelerate", "datasets", "numpy", "av"}
    assert found["torch"] == torch.__version__ and found["python"] == ".".join(map(str, sys.version_info[:3]))


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ({"ls-files": "run.py", "rev-parse": "abc", "status": ""}, {"commit": "abc", "dirty": False}),
        ({"ls-files": "run.py", "rev-parse": "abc", "status": " M eval/run.py"}, {"commit": "abc", "dirty": True}),
        ({"ls-files": None, "rev-parse": "of something else", "status": ""}, None),
        ({"ls-files": "run.py", "rev-parse": None, "status": "A  eval/run.py"}, None),
    ],
)
def test_source_state_is_that_of_the_repository_which_tracks_this_code(monkeypatch, answers, expected):
    monkeypatch.setattr("eval.run._git", lambda command, *_: answers[command])
    assert source_state() == expected


def test_git_that_is_not_there_means_an_unknown_source(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert source_state() is None


@pytest.fixture
def results(asked, tmp_path):
    return run(tmp_path / "out", model_path="models/tiny", benchmark="miniature", root=tmp_path)


def test_table_has_a_row_per_method_and_rate_and_marks_the_best_pathway(results):
    table = format_table(results)
    lines = table.splitlines()
    for name in ("SCALAR", "uniform centroid", "video *", "audio", "subtitle"):
        assert sum(line.startswith(name) for line in lines) == 2
    for entry in results["retrieval"]["rates"]:
        metrics, gain = entry["methods"]["scalar"], entry["aggregation_gain"]["scalar"]
        cells = [f"{value:.1f}" for value in metrics.values()] + [f"{gain:+.1f}"]
        assert any(line.split() == ["SCALAR", *cells] for line in lines)
    assert "masked 0 %" in table and "masked 50 %" in table
    assert lines[-1] == "  clip3: audio is broken"
    assert all(line == line.rstrip() for line in lines)


def test_columns_of_the_table_are_aligned(results):
    lines = format_table(results).splitlines()
    ends = {len(line) for line in lines if line.startswith(("SCALAR", "uniform", "method"))}
    assert len(ends) == 1


def test_figure_is_drawn_for_any_number_of_rates(results, tmp_path):
    results["retrieval"]["rates"] = results["retrieval"]["rates"][:1]
    plot_results(results, tmp_path / "one.png")
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")


def test_command_prints_the_table_and_repeats_rates(asked, tmp_path):
    command = ["run", "--model", "m", "--benchmark", "miniature", "--root", str(tmp_path), "--output", str(tmp_path)]
    done = CliRunner().invoke(app, [*command, "--rate", "0", "--rate", "0.25", "--rate", "0.9"])
    assert done.exit_code == 0, done.output
    results = json.loads((tmp_path / "results.json").read_text())
    assert [entry["rate"] for entry in results["retrieval"]["rates"]] == [0.0, 0.25, 0.9]
    assert format_table(results) in done.output


def test_default_rates_of_the_command_are_none_and_half(asked, tmp_path):
    command = ["run", "--model", "m", "--benchmark", "miniature", "--root", str(tmp_path), "--output", str(tmp_path)]
    assert CliRunner().invoke(app, command).exit_code == 0
    results = json.loads((tmp_path / "results.json").read_text())
    assert [entry["rate"] for entry in results["retrieval"]["rates"]] == [0.0, 0.5]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--embeddings", "nowhere"], "nowhere"),
        (["--model", "m"], "Expected a model, a benchmark and its root folder"),
        (["--model", "m", "--benchmark", "unknown", "--root", "r"], "unknown"),
    ],
)
def test_mistakes_of_users_end_in_one_line(tmp_path, arguments, message):
    done = CliRunner().invoke(app, ["run", "--output", str(tmp_path / "out"), *arguments])
    assert done.exit_code == 1
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith("Error: ") and message in done.stderr


def test_miniature_command_passes_its_options_on(monkeypatch, tmp_path):
    asked = {}
    monkeypatch.setattr("eval.miniature.generate", lambda output, **options: asked.update(options) or output)
    done = CliRunner().invoke(app, ["miniature", "--output", str(tmp_path), "--num-test", "7", "--seed", "3"])
    assert done.exit_code == 0 and str(tmp_path) in done.output
    assert asked == {"num_train": 1500, "num_test": 7, "seed": 3, "num_proc": None}


def test_help_does_not_wait_for_heavy_imports():
    code = "import sys, eval.__main__; print({'torch', 'transformers', 'datasets', 'matplotlib'} & set(sys.modules))"
    root = Path(sys.modules["eval.__main__"].__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_mistakes_of_the_program_keep_their_traceback(asked, monkeypatch, tmp_path):
    monkeypatch.setattr("eval.run.evaluate_embeddings", lambda *_, **__: 1 / 0)
    command = ["run", "--model", "m", "--benchmark", "b", "--root", str(tmp_path), "--output", str(tmp_path)]
    done = CliRunner().invoke(app, command)
    assert isinstance(done.exception, ZeroDivisionError)
