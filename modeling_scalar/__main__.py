"""`scalar convert-vast`: convert a checkpoint to a model folder. Imports nothing slow, so that `--help` is quick."""

import scalar_retrieval.commands.interrupts  # noqa: F401 # isort: skip (first, so that Ctrl-C is handled from here on)

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from scalar_retrieval.commands.errors import user_errors
from scalar_retrieval.commands.options import command_of
from scalar_retrieval.commands.texts import print_lines


@dataclass(frozen=True, kw_only=True)
class ConvertConfig:
    """Settings of the command, see [`~scalar_retrieval.modeling_scalar.convert_vast_to_hf.convert`]."""

    checkpoint: Annotated[Path, Option(help="State dict of VAST, GRAM or PMRL, written by torch.save.")]
    output: Annotated[Path, Option(help="Output folder.")]
    config: Annotated[
        Path | None, Option(help="JSON file of the model's configuration (ScalarConfig), if not the paper's.")
    ] = None
    tokenizer: Annotated[str | None, Option(help="BERT tokenizer; saves a processor too.")] = None
    concat_heads: Annotated[
        bool, Option("--concat-heads", help="Keep the heads of concatenated modalities (PMRL's released score).")
    ] = False


app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@command_of(app, ConvertConfig)
def convert_vast(config: ConvertConfig) -> None:
    """Convert a VAST, GRAM or PMRL checkpoint to a model folder; each of its keys is used or on the list of unused."""
    with user_errors():
        # What is missing is reported before the imports, which take seconds.
        for path in (config.checkpoint, config.config):
            if path is not None and not path.is_file():
                raise FileNotFoundError(f"There is no file {str(path)!r}.")
        from huggingface_hub.errors import StrictDataclassError

        from .configuration_scalar import ScalarConfig
        from .convert_vast_to_hf import convert
        from .model_identity import read_object

        network = None
        if config.config is not None:
            try:
                network = ScalarConfig(**read_object(config.config))
            except StrictDataclassError as error:
                raise ValueError(f"{config.config} is not the configuration of a model: {error}") from error
        unused = convert(config.checkpoint, config.output, network, config.tokenizer, config.concat_heads)
        print_lines(f"Not used of the checkpoint, {len(unused)} keys:", *unused, f"Saved to {config.output}.")
        if config.tokenizer is None:
            print_lines("No processor was saved: pass --tokenizer bert-base-uncased to add one.")


def main(arguments: Sequence[str] | None = None, prog: str = "python -m scalar_retrieval.modeling_scalar") -> None:
    """Run the command line, by default with the arguments of this process, and exit."""
    app(arguments, prog_name=prog)


if __name__ == "__main__":
    main()
