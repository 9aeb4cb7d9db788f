"""Options shared by several packages, plugins, and commands whose options are the fields of a dataclass.

`--help` lists an option under the heading named by its `rich_help_panel`.
"""

import inspect
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer
from typer.models import ParameterInfo

from .errors import user_errors

# Headings shared by several commands
MODEL = "Model"
READING = "Reading files"

Limit = Annotated[
    list[str] | None,
    typer.Option(
        "--limit",
        rich_help_panel=READING,
        help="Limit for reading one stream: memory=2GiB, time=120 (seconds), pixels=70e6 or duration=86400 "
        "(seconds). Repeatable.",
    ),
]

Column = Annotated[
    list[str] | None,
    typer.Option(
        help="Column of your own table, such as video_id=clip, or of another text, such as title=heading. Repeatable."
    ),
]

Holdout = Annotated[
    float | None,
    typer.Option(help="Fraction of your own table's clips in its test split; the others are in train."),
]

WordsOf = Annotated[
    Path | None,
    typer.Option(help="Gallery of the files in your own table; its transcripts are used."),
]


def columns_of(given: Sequence[str]) -> dict[str, str]:
    """Parse NAME=COLUMN arguments into a `dict` from our column names to the user's."""
    columns = {}
    for part in given:
        name, _, own = part.partition("=")
        if not (name and own):
            raise ValueError(f"A column is given as NAME=COLUMN, such as video_id=clip; got {given}.")
        if name in columns:
            raise ValueError(f"The column {name!r} is given twice: {columns[name]!r} and {own!r}. Give one.")
        columns[name] = own
    return columns


def load_plugins(names: Iterable[str]) -> None:
    """
    Import modules that register scores or benchmarks of their own.

    Args:
        names (iterable of `str`): importable module names; modules in the working folder are found too.

    Raises:
        ValueError: a module does not exist, or fails on import.
    """
    if os.getcwd() not in sys.path:  # `python -m` adds it, a script in another folder does not
        sys.path.append(os.getcwd())
    for name in names:
        try:
            import_module(name)
        except Exception as error:  # of anybody's code
            raise ValueError(f"The plugin {name!r} cannot be imported: {type(error).__name__}: {error}") from error


@dataclass(frozen=True)
class Given:
    """
    How a field is given on the command line, where that differs from the field's own type.

    Args:
        kind: the type that the argument parser reads.
        convert (`Callable`, *optional*): converts it to the field's value.
        can_be_bare (`bool`): it may be given without a value, which is `""` then.
    """

    kind: Any
    convert: Callable[[Any], Any] | None = None
    can_be_bare: bool = False


Plugins = Annotated[
    Sequence[str],
    typer.Option("--plugin", help="Module to import first, to register your own scores or benchmarks."),
    Given(list[str]),
]


class _Plain:
    """How an option is read: texts, paths, numbers and defaults here, the rest and errors by typer with pydantic."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """The value of an option or argument, of its type."""
        kind = param.type_descriptor.annotation
        is_several = param.multiple or param.nargs == -1
        if value is None:
            return () if is_several else None
        for plain in (str, Path):
            if kind is plain:
                return plain(value)
            if kind == list[plain] and is_several:
                return list(map(plain, value))
        if value == param.default:
            return value
        if kind in (int, float):
            with suppress(ValueError):
                number = kind(value)
                if (param.min is None or number >= param.min) and (param.max is None or number <= param.max):
                    return number
        param._runtime_param = None  # typer makes its own
        return param.get_runtime_param().coerce(value, param=param, ctx=ctx)


def _read_plainly(params: Iterable[Any]) -> None:
    """Have options of typer read without pydantic, whose import takes as long as all others of a command line."""
    for param in params:
        param._runtime_param = _Plain()


class Commands(typer.core.TyperGroup):
    """Commands whose errors [`user_errors`] reports: `typer.Typer(cls=Commands)`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read what comes before the name of the command."""
        _read_plainly(self.get_params(ctx))
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the named command."""
        with user_errors():
            return super().invoke(ctx)


class _Command(typer.core.TyperCommand):
    """
    A command whose help has headings: without Rich, typer prints only "Arguments" and "Options".

    The object of its context holds the options that may be given without a value, which typer does not know.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _read_plainly(self.get_params(ctx))
        # An option is bare if another option follows, or nothing.
        full = []
        for argument, following in pairwise([*args, "-"]):
            if argument in ctx.obj and following.startswith("-"):
                argument += "="
            full.append(argument)
        return super().parse_args(ctx, full)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        # Options under their headings, in the order of the fields
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            line = param.get_help_record(ctx)
            if line is not None:
                default = "Arguments" if param.param_type_name == "argument" else "Options"
                groups.setdefault(getattr(param, "rich_help_panel", None) or default, []).append(line)
        for heading, lines in groups.items():
            with formatter.section(heading):
                formatter.write_dl(lines)


def command_of(app: typer.Typer, settings: type) -> Callable[[Callable[[Any], None]], Callable[..., None]]:
    """
    Turn a function that takes settings into a command: `@command_of(app, RunConfig)`.

    Args:
        app (`typer.Typer`): gets the command, with the function's name, and its docstring as help.
        settings (`type`): a dataclass. Each field annotated with a `typer.Option` or `typer.Argument` becomes one,
            with the field's default. It is read as the field's type (a list for a `Sequence`) unless a [`Given`] next
            to it says otherwise. Other fields keep their defaults.
    """
    parameters = []
    conversions = {}
    bare = []
    hints = get_type_hints(settings, include_extras=True)
    for field in fields(settings):
        hint = hints[field.name]
        if get_origin(hint) is not Annotated:
            continue
        # What an annotation says of the command line: the option, and how it is read
        own, *marks = get_args(hint)
        option = None
        given = Given(own)
        if get_origin(own) is Sequence:
            given = Given(list[get_args(own)])
        for mark in marks:
            if isinstance(mark, ParameterInfo):
                option = mark
            elif isinstance(mark, Given):
                given = mark
        if option is None:
            continue
        conversions[field.name] = given.convert
        if given.can_be_bare:
            bare.append(f"--{field.name.replace('_', '-')}")
        default = inspect.Parameter.empty
        if field.default is not MISSING:
            default = field.default
        annotation = Annotated[given.kind, option]
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter(field.name, kind, default=default, annotation=annotation))

    def register(run: Callable[[Any], None]) -> Callable[..., None]:
        def command(**values: Any) -> None:
            # An option that was not given keeps the default, which needs no conversion.
            for name, convert in conversions.items():
                if convert is not None and values[name]:
                    values[name] = convert(values[name])
            run(settings(**values))

        # typer reads a command's name, help and options from the function.
        command.__name__ = run.__name__
        command.__doc__ = run.__doc__
        command.__signature__ = inspect.Signature(parameters)
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return app.command(cls=_Command, context_settings={"max_content_width": 100, "obj": bare})(command)

    return register


__all__ = ["MODEL", "READING", "Commands", "Given", "Limit", "Plugins", "columns_of", "command_of", "load_plugins"]
