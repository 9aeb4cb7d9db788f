"""Train a model with one or several processes: accelerate launch train.py RECIPE.yaml [--field value ...]"""

import runpy

if __name__ == "__main__":
    runpy.run_module("scalar_retrieval.trainer", run_name="__main__", alter_sys=True)
