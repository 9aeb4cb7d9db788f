"""Options that commands of several rooms have."""

from typing import Annotated

import typer

Limit = Annotated[
    list[str] | None,
    typer.Option(
        help="What reading one stream may take: memory=2GiB, time=120 (seconds), pixels=70e6, duration=86400 "
        "(seconds). Repeat for several."
    ),
]

__all__ = ["Limit"]
