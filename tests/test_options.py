"""Commands whose options are the fields of a dataclass."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import pytest
import typer
from typer.testing import CliRunner

from scalar_retrieval.commands.options import Given, command_of


@dataclass(frozen=True)
class Settings:
    names: Annotated[list[str], typer.Argument(help="Whose.")]
    pairs: Annotated[
        dict[str, str] | None,
        typer.Option("--pair", help="As a=b."),
        Given(list[str] | None, lambda given: dict(part.split("=") for part in given)),
    ] = None
    kind: Annotated[Literal["one", "other"], typer.Option(help="Which.")] = "one"
    rates: Annotated[Sequence[float], typer.Option("--rate", help="How much.")] = (0.5, 1.0)
    num_workers: Annotated[int, typer.Option(rich_help_panel="Reading", help="At a time.")] = 1
    progress: bool = True  # no option


def call(*arguments):
    app, called = typer.Typer(rich_markup_mode=None), []

    @command_of(app, Settings)
    def show(settings: Settings) -> None:
        """What it does."""
        called.append(settings)

    result = CliRunner().invoke(app, arguments)
    return result, called


def test_what_is_given_is_converted_and_what_is_not_has_the_default_of_its_field():
    _, (settings,) = call("a", "b")
    assert settings == Settings(["a", "b"], None, "one", [0.5, 1.0]) and settings.progress
    _, (settings,) = call("a", "--pair", "x=1", "--pair", "y=2", "--kind", "other", "--rate", "0.1")
    assert settings == Settings(["a"], {"x": "1", "y": "2"}, "other", [0.1])


@pytest.mark.parametrize("wrong", [["--progress"], ["--kind", "third"], ["--pairs", "x=1"], ["--rate", "much"]])
def test_what_is_no_option_or_no_value_of_one_is_refused(wrong):
    result, called = call("a", *wrong)
    assert result.exit_code == 2 and not called


def test_the_help_is_that_of_the_function_and_of_its_fields():
    """Options stand under the headings that their fields name."""
    result, _ = call("--help")
    for part in ("What it does.", "Whose.", "--pair", "As a=b.", "--kind", "one|other", "--rate"):
        assert part in result.output
    assert "progress" not in result.output
    assert "--num-workers" in result.output.partition("\nReading:")[2].partition("\n\n")[0]
