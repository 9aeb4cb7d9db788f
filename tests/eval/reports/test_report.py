"""What a report writes and a run prints."""

import pandas as pd
import pyarrow as pa
import pytest
from pyarrow.parquet import write_table
from typer.testing import CliRunner

from scalar_retrieval.eval.__main__ import app
from scalar_retrieval.eval.reports.report import write_report
from scalar_retrieval.eval.reports.result_files import load_results
from scalar_retrieval.eval.reports.tables import report_tables
from tests.eval.reports.made_runs import make_run, save, three_labels


@pytest.fixture
def results(tmp_path):
    return load_results([save(tmp_path / "runs", *three_labels())])


def test_the_report_holds_every_table_in_three_forms_with_its_protocol(results, tmp_path):
    text, tables = write_report(results, tmp_path), report_tables([*results.values()])
    tex = (tmp_path / "tables.tex").read_text()
    assert (tmp_path / "tables.md").read_text().startswith(text)
    for part in (text, tex):
        assert "miniature test 1000 queries, 900 clips, SHA-256 c0ffeec0ffee" in part
        assert "Ties: against the method" in part and "Mask seed 0" in part
    assert len(tables) == 5
    for table in tables:
        assert f"## {table.title}\n\n{table.markdown()}\n\n{table.note}" in text and table.latex() in tex
        written = pd.read_csv(tmp_path / f"{table.name}.csv", index_col=list(range(table.numbers.index.nlevels)))
        assert written.to_numpy() == pytest.approx(table.numbers.to_numpy(), nan_ok=True)
    assert (tmp_path / "gain_vs_masking.png").stat().st_size > 10_000


def test_a_run_with_the_least_there_can_be_is_reported(tmp_path):
    run = make_run("mine", None, rates=(0.0,)) | {"two_stage": []}
    run["retrieval"].pop("ladder")
    run["retrieval"].pop("differences")
    text = write_report(load_results([save(tmp_path, run)]), tmp_path / "report")
    assert text.startswith("# miniature test: mine\n") and "20.0" in text and text.count("## ") == 2
    assert not list((tmp_path / "report").glob("*.png"))


def test_weights_of_queries_are_drawn_where_a_run_wrote_them(tmp_path):
    folder = save(tmp_path, make_run("my model/2", None))
    queries = {"caption": ["a dog $barks$", "a long caption " * 10], "decided": ["video", "audio"]}
    queries |= {"weight_video": [0.7, 0.2], "weight_audio": [0.2, 0.7], "weight_subtitle": [0.1, 0.1]}
    write_table(pa.table(queries), folder / "0" / "results" / "queries.parquet")
    write_report(load_results([folder]), tmp_path / "report")
    figure = "weights_miniature_my_model_2.png"
    text = (tmp_path / "report" / "tables.md").read_text()
    assert f"![{figure}]({figure})\n\nWeights of the queries of miniature test: my model/2." in text
    assert (tmp_path / "report" / figure).stat().st_size > 10_000


def test_a_report_tells_what_a_reader_must_know_of_the_clips(tmp_path):
    run = make_run("scalar", left_out=["clip9"], problems=["clip3: audio is broken"], trained_on=1200)
    lines = write_report({tmp_path / "results.json": run}, tmp_path / "report").splitlines()
    assert lines[0] == "# miniature test: scalar, seed 50"
    assert {"- clip9", "- clip3: audio is broken"} < set(lines)
    assert any("The model was trained on 1,200 of the 900 clips: this is not a test." in line for line in lines)


def test_the_command_prints_what_it_writes(tmp_path):
    folder = save(tmp_path / "runs", *three_labels())
    done = CliRunner().invoke(app, ["report", str(folder), "--output", str(tmp_path / "report")])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "report" / "tables.md").read_text().startswith(done.output.rstrip())
