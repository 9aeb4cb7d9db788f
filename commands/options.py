"""Options that commands of several rooms have."""

from typing import Annotated, Literal

import typer

Limit = Annotated[
    list[str] | None,
    typer.Option(
        help="What reading one stream may take: memory=2GiB, time=120 (seconds), pixels=70e6, duration=86400 "
        "(seconds). Repeat for several."
    ),
]

Device = Annotated[
    str | None, typer.Option(help="Where the model runs: cpu, cuda, ...; by default the accelerator if there is one.")
]

ModelDtype = Annotated[
    Literal["bfloat16", "float16", "float32"] | None,
    typer.Option(
        help="Precision in which the model computes; by default bfloat16 for a joint encoder on a GPU, float32 for "
        "one on a CPU, and that of its checkpoint for any other model."
    ),
]

__all__ = ["Device", "Limit", "ModelDtype"]
