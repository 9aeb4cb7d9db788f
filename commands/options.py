"""Options that commands of several rooms have, and commands whose options are the fields of a dataclass.

`--help` lists options under the heading that their `rich_help_panel` names.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer
from typer.models import ParameterInfo

MODEL, READING = "The model", "Reading files"
"""Headings of options that several commands have."""

Limit = Annotated[
    list[str] | None,
    typer.Option(
        rich_help_panel=READING,
        help="What reading one stream may take: memory=2GiB, time=120 (seconds), pixels=70e6, duration=86400 "
        "(seconds). Repeat for several.",
    ),
]

Device = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=MODEL,
        help="Where the model runs: cpu, cuda, ...; by default the accelerator if there is one.",
    ),
]

ModelDtype = Annotated[
    Literal["bfloat16", "float16", "float32"] | None,
    typer.Option(
        rich_help_panel=MODEL,
        help="Precision in which the model computes; by default bfloat16 for a joint encoder on a GPU, float32 for "
        "one on a CPU, and that of its checkpoint for any other model.",
    ),
]

Column = Annotated[
    list[str] | None,
    typer.Option(
        help="Column of your own table, as in video_id=clip; or of a further text, as in title=heading. Repeat."
    ),
]

Holdout = Annotated[
    float | None,
    typer.Option(help="Share of the clips of your own table that is its split test; train has the others."),
]

WordsOf = Annotated[
    Path | None,
    typer.Option(help="Gallery of the files of your own table: its transcripts and its languages of subtitles count."),
]


@dataclass(frozen=True)
class Given:
    """
    How a field of settings is given on the command line, where that differs from the field.

    Args:
        kind: the type that the parser of arguments reads.
        convert (`Callable`, *optional*): makes the field's value of it.
    """

    kind: Any
    convert: Callable[[Any], Any] | None = None


class _Command(typer.core.TyperCommand):
    """A command whose help has headings; without Rich, typer has those of arguments and options alone."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            if (line := param.get_help_record(ctx)) is not None:
                default = "Arguments" if param.param_type_name == "argument" else "Options"
                groups.setdefault(getattr(param, "rich_help_panel", None) or default, []).append(line)
        for heading, lines in groups.items():
            with formatter.section(heading):
                formatter.write_dl(lines)


def command_of(app: typer.Typer, settings: type) -> Callable[[Callable[[Any], None]], Callable[..., None]]:
    """
    Make a command of a function that takes settings: `@command_of(app, RunConfig)`.

    Args:
        app (`typer.Typer`): gets the command, named as the function and with its docstring as help.
        settings (`type`): a dataclass. Each field annotated with a `typer.Option` or `typer.Argument` becomes one,
            with its default; a [`Given`] beside it says how it is read, unless as the field is, or a list for a
            `Sequence`. Other fields keep their defaults.
    """
    parameters, conversions = [], {}
    hints = get_type_hints(settings, include_extras=True)
    for field in fields(settings):
        own, *marks = get_args(hints[field.name]) if get_origin(hints[field.name]) is Annotated else [None]
        option = next((mark for mark in marks if isinstance(mark, ParameterInfo)), None)
        if option is None:
            continue
        read = list[get_args(own)] if get_origin(own) is Sequence else own
        given = next((mark for mark in marks if isinstance(mark, Given)), Given(read))
        conversions[field.name] = given.convert
        parameters.append(
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if field.default is MISSING else field.default,
                annotation=Annotated[given.kind, option],
            )
        )

    def register(run: Callable[[Any], None]) -> Callable[..., None]:
        def command(**values: Any) -> None:
            for name, convert in conversions.items():
                if convert is not None and values[name]:
                    values[name] = convert(values[name])
            run(settings(**values))

        command.__name__, command.__doc__ = run.__name__, run.__doc__
        command.__signature__ = inspect.Signature(parameters)
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return app.command(cls=_Command)(command)

    return register


__all__ = ["MODEL", "READING", "Device", "Given", "Limit", "ModelDtype", "command_of"]
