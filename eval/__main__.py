"""`python -m eval`: make the miniature benchmark, evaluate a model."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import typer

# Heavy imports stay inside the commands, so that `--help` answers at once.
app = typer.Typer(
    help="Evaluate text-to-video retrieval.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@contextmanager
def _user_errors() -> Iterator[None]:
    """Turn what a user can mend into one line on stderr and exit code 1."""
    try:
        yield
    except (ValueError, FileNotFoundError) as error:
        typer.echo(f"Error: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(1) from error


@app.command()
def miniature(
    output: Annotated[Path, typer.Option(help="Folder to write the benchmark to.")],
    num_train: Annotated[int, typer.Option(help="Clips to train on.")] = 1500,
    num_test: Annotated[int, typer.Option(help="Clips to test on.")] = 300,
    seed: Annotated[int, typer.Option(help="Seed of the clips.")] = 0,
    num_proc: Annotated[int | None, typer.Option(help="Processes that write clips; by default one per CPU.")] = None,
) -> None:
    """Generate the miniature benchmark: short clips whose captions need picture, sound or speech."""
    from eval.miniature import generate

    with _user_errors():
        folder = generate(output, num_train=num_train, num_test=num_test, seed=seed, num_proc=num_proc)
    typer.echo(f"The miniature benchmark is in {folder}.")


@app.command()
def run(
    output: Annotated[Path, typer.Option(help="Folder for results.json, results.png and the embeddings.")],
    model: Annotated[str | None, typer.Option(help="Folder or Hub name of a model or adapter.")] = None,
    benchmark: Annotated[str | None, typer.Option(help="Name of the benchmark, such as miniature.")] = None,
    root: Annotated[Path | None, typer.Option(help="Folder of the benchmark.")] = None,
    split: Annotated[str, typer.Option(help="Split of the benchmark.")] = "test",
    embeddings: Annotated[
        Path | None, typer.Option(help="Embeddings of an earlier run, in place of model, benchmark and root.")
    ] = None,
    rate: Annotated[list[float], typer.Option(help="Fraction of clips that lose a modality. Repeat for several.")] = (
        0.0,
        0.5,
    ),
    mask_seed: Annotated[int, typer.Option(help="Seed of the missing-modality masks.")] = 0,
    batch_size: Annotated[int, typer.Option(help="Clips or captions per forward pass.")] = 32,
    on_error: Annotated[
        Literal["raise", "missing"], typer.Option(help="Stop at what cannot be read, or count it as absent.")
    ] = "raise",
    device: Annotated[str | None, typer.Option(help="Device; by default a GPU if there is one.")] = None,
) -> None:
    """Evaluate a model on a benchmark; print the table, write figures and everything needed to repeat them."""
    with _user_errors():
        from eval.report import format_table
        from eval.run import run as run_evaluation

        results = run_evaluation(
            output,
            model_path=model,
            benchmark=benchmark,
            root=root,
            split=split,
            embeddings_path=embeddings,
            rates=rate,
            mask_seed=mask_seed,
            batch_size=batch_size,
            on_error=on_error,
            device=device,
        )
        typer.echo(format_table(results))


if __name__ == "__main__":
    app(prog_name="python -m eval")
