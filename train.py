"""Train a model, by one process or several: accelerate launch train.py RECIPE.yaml [--field value ...]"""

import runpy

if __name__ == "__main__":
    runpy.run_module("trainer", run_name="__main__", alter_sys=True)
