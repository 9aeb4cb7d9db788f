"""The commands that make the paper's tables and figures of result files."""

import typer
from typer.testing import CliRunner

from evidence.reports.commands import register
from tests.eval.reports.made_runs import make_run, save, three_labels
from tests.evidence.test_latent import make_classes


def run(*arguments):
    app = typer.Typer()
    register(app)
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_the_tables_are_printed_and_written(tmp_path):
    folder = save(tmp_path / "runs", *three_labels())
    done = run("tables", folder, "--output", tmp_path / "tables", "--paper-mean")
    assert done.exit_code == 0, done.output
    assert done.stdout == (tmp_path / "tables" / "tables.md").read_text() + "\n"
    assert "paper, mean of 5: SCALAR" in done.stdout and (tmp_path / "tables" / "missing.csv").is_file()


def test_the_latent_space_of_class_labels_is_that_of_the_embeddings_beside_a_result(tmp_path):
    folder = save(tmp_path / "runs", make_run("scalar", benchmark="vggsound", task="classification"))
    make_classes((4, 5, 3)).save(folder / "0" / "results" / "embeddings")
    done = run("tables", folder, "--output", tmp_path / "tables")
    assert "Latent space (Figure S1)" in done.stdout and "paper: GRAM" in done.stdout
    done = run("figures", folder, "--output", tmp_path / "figures")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "figures" / "latent_vggsound.png").read_bytes().startswith(b"\x89PNG")
