"""`python -m evidence speed NAME`: one command for each measurement."""

from importlib import import_module

import typer

from evidence.speed.settings import (
    DecodingConfig,
    EvaluationConfig,
    FiltersConfig,
    IndexingConfig,
    JointEncoderConfig,
    PostgresqlConfig,
    ScenesConfig,
    ScoringConfig,
    SearchConfig,
    StartConfig,
    TrainingConfig,
)
from scalar_retrieval.commands.options import Commands, command_of

app = typer.Typer(
    cls=Commands,
    help="Measure time and memory.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_SETTINGS = {
    "decoding": DecodingConfig,
    "evaluation": EvaluationConfig,
    "filters": FiltersConfig,
    "indexing": IndexingConfig,
    "joint_encoder": JointEncoderConfig,
    "postgresql": PostgresqlConfig,
    "scenes": ScenesConfig,
    "scoring": ScoringConfig,
    "search": SearchConfig,
    "start": StartConfig,
    "training": TrainingConfig,
}
"""Modules of this folder, and the settings of their `main`."""


def _add(module: str, settings: type) -> None:
    def run(config: object) -> None:
        import_module(f"evidence.speed.{module}").main(config)

    run.__name__ = module
    run.__doc__ = settings.__doc__
    command_of(app, settings)(run)


for _name, _kind in _SETTINGS.items():
    _add(_name, _kind)
