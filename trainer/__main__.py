"""`scalar train` for the launcher: accelerate launch -m trainer RECIPE.yaml [--field value ...]"""

import signal
import sys

if __name__ == "__main__":  # loading libraries takes seconds, in which Ctrl-C has nothing to tell
    signal.signal(signal.SIGINT, lambda *_: sys.exit(130))

from commands.errors import run_command

from .run import main

if __name__ == "__main__":
    run_command(main)
