"""What a report writes and a run prints."""

import csv
import re

import pyarrow as pa
from pyarrow.parquet import write_table
from typer.testing import CliRunner

from eval.__main__ import app
from eval.reports import report
from eval.reports.figures import plot_query_weights
from eval.reports.report import format_table, write_report
from eval.reports.result_files import load_results
from tests.eval.reports.made_runs import make_run, save, three_labels


def test_the_report_holds_every_table_in_three_forms_with_its_protocol(results, tmp_path):
    text = write_report(results, tmp_path / "report")
    assert (tmp_path / "report" / "tables.md").read_text() == text
    tables = [table for table in report._tables(results) if table.blocks]
    assert len(tables) >= 14
    tex = (tmp_path / "report" / "tables.tex").read_text()
    for table in tables:
        section = text[text.index(f"## {table.title}\n") :].split("\n## ")[0]
        assert "1000 queries, 900 clips, SHA-256 c0ffeec0ffee" in section
        assert "Ties: against the method" in section and "Mask seed 0" in section
        assert rf"\label{{tab:{table.name}}}" in tex
        rows = list(csv.reader((tmp_path / "report" / f"{table.name}.csv").open(newline="")))
        assert len(rows) == 1 + len(table.rows) and len({len(row) for row in rows}) == 1
    assert "Left out, as they are empty: Retrieval across benchmarks" in text
    assert "Latent space" in text.split("Left out, as they are empty:")[1]
    assert (tmp_path / "report" / "gain_vs_masking.png").stat().st_size > 10_000


def test_a_report_leaves_no_table_of_an_earlier_one(results, tmp_path):
    write_report(results, tmp_path)
    assert (tmp_path / "ablation.csv").is_file()
    write_report(load_results([save(tmp_path / "one", make_run("mine"))]), tmp_path)
    assert not (tmp_path / "ablation.csv").exists() and (tmp_path / "missing.csv").is_file()


def test_the_latex_is_balanced_and_its_rows_have_the_columns_they_declare(results, tmp_path):
    write_report(results, tmp_path)
    tex = (tmp_path / "tables.tex").read_text()
    for environment in ("table*", "tabular"):
        count = tex.count(rf"\begin{{{environment}}}")
        assert count == tex.count(rf"\end{{{environment}}}") > 10
    plain = re.sub(r"\\[&%$#_{}]", "", tex)
    assert plain.count("{") == plain.count("}") and plain.count("$") % 2 == 0
    tex.encode("ascii", errors="strict")
    for body in re.findall(r"\\begin\{tabular\}(.*?)\\end\{tabular\}", tex, re.DOTALL):
        columns = len(re.match(r"\{([lr]+)\}", body)[1])
        for line in re.findall(r"^(.*) \\\\$", body, re.MULTILINE):
            spanned = sum(int(n) - 1 for n in re.findall(r"\\multicolumn\{(\d+)\}", line))
            assert len(re.findall(r"(?<!\\)&", line)) + 1 + spanned == columns


def test_a_run_with_the_least_there_can_be_is_reported(tmp_path):
    run = make_run("mine", None, rates=(0.0,)) | {"two_stage": []}
    run["retrieval"].pop("ladder")
    run["retrieval"].pop("differences")
    text = write_report(load_results([save(tmp_path, run)]), tmp_path / "report")
    assert "20.0" in text and not list((tmp_path / "report").glob("*.png"))
    for title in ("Table S4", "Table S5", "Table 5", "Differences", "Sign tests"):
        assert title in text.split("Left out, as they are empty:")[1]


def test_weights_of_queries_are_drawn_where_a_run_wrote_them(tmp_path):
    folder = save(tmp_path, make_run("my model/2", None))
    queries = {
        "caption": ["a dog $barks$", "a cat", "a long caption " * 10],
        "weight_video": [0.7, 0.1, 0.2],
        "weight_audio": [0.2, 0.8, 0.7],
        "weight_subtitle": [0.1, 0.1, 0.1],
        "decided": ["video", "audio", "audio"],
    }
    write_table(pa.table(queries), folder / "0" / "results" / "queries.parquet")
    text = write_report(load_results([folder]), tmp_path / "report")
    figure = "weights_miniature_my_model_2.png"
    assert f"![{figure}]({figure})\n\nWeights of the queries of miniature: my model/2." in text
    assert (tmp_path / "report" / "weights_miniature_my_model_2.png").stat().st_size > 10_000
    plot_query_weights({name: column[:1] for name, column in queries.items()}, tmp_path / "one.png")


def test_weights_of_class_labels_which_have_many_relevant_clips_are_not_drawn(tmp_path):
    folder = save(tmp_path, make_run("mine", task="classification"))
    (folder / "0" / "results" / "queries.parquet").write_bytes(b"never read")
    write_report(load_results([folder]), tmp_path / "report")
    assert not list((tmp_path / "report").glob("*.png"))


def test_a_result_is_laid_out_for_a_screen():
    run = make_run("scalar", left_out=["clip9"], problems=["clip3: audio is broken"])
    lines = format_table(run).splitlines()
    assert lines[0] == "miniature test: SCALAR, seed 50"
    own = ["20.0", "21.0", "22.0", "23.0", "24.0", "7.0", "9.0", "+5.0", "10"]
    assert any(re.split(r" *\| *", line)[1:-1] == ["SCALAR (own)", *own] for line in lines)
    assert any(line.startswith("| audio *") for line in lines)
    assert "  clip9" in lines and "  clip3: audio is broken" in lines
    assert all(max(len(line) for line in lines if line.startswith("|")) < 160 for line in lines)
    assert "| benchmark" not in "\n".join(lines)


def test_the_command_prints_what_it_writes(tmp_path):
    folder = save(tmp_path / "runs", *three_labels())
    done = CliRunner().invoke(app, ["report", str(folder), "--output", str(tmp_path / "report"), "--paper-mean"])
    assert done.exit_code == 0, done.output
    assert done.output == (tmp_path / "report" / "tables.md").read_text() + "\n"
    assert "paper, mean of 5: SCALAR" in done.output
    done = CliRunner().invoke(app, ["report", str(folder), "--output", str(tmp_path / "o"), "--baseline", "clip"])
    assert done.exit_code == 1 and done.stderr.startswith("Error: The baseline 'clip' is not among the labels")
