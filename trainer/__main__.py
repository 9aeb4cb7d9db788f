"""`scalar train` under a launcher: accelerate launch -m scalar_retrieval.trainer RECIPE.yaml [--field value ...]"""

import signal
import sys
from collections.abc import Sequence

if __name__ == "__main__":  # imports take seconds; Ctrl-C then exits without a traceback
    signal.signal(signal.SIGINT, lambda *_: sys.exit(130))

from scalar_retrieval.commands.errors import run_command

from .recipe_files import check_recipes, print_help


def main(arguments: Sequence[str] | None = None, prog: str = "train.py") -> int:
    """
    Check what the command line names, then train; see [`~scalar_retrieval.trainer.run.main`].

    Args:
        arguments (`Sequence[str]`, *optional*): A recipe and flags; by default those of this program.
        prog (`str`): The program's name in the usage.

    Returns:
        The exit status.
    """
    if arguments is None:
        arguments = sys.argv[1:]
    if {"-h", "--help"} & set(arguments):
        print_help(prog)
        return 0
    check_recipes(arguments)
    from .run import main as run  # imports torch

    return run(arguments, prog)


if __name__ == "__main__":
    run_command(main)
