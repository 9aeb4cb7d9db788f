"""`scalar train` under a launcher: accelerate launch -m trainer RECIPE.yaml [--field value ...]"""

import signal
import sys

if __name__ == "__main__":  # imports take seconds; Ctrl-C then exits without a traceback
    signal.signal(signal.SIGINT, lambda *_: sys.exit(130))

from commands.errors import run_command

from .run import main

if __name__ == "__main__":
    run_command(main)
