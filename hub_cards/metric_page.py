"""The page of a metric's Space: inputs as JSON, the results, and the documentation below."""

import json
from pathlib import Path

import evaluate
import gradio as gr

FOLDER = Path(__file__).parent
# The script that holds the metric, and example inputs.
((SCRIPT, INPUTS),) = json.loads((FOLDER / "example.json").read_text(encoding="utf-8")).items()
EXAMPLE = {name: json.dumps(value) for name, value in INPUTS.items()}
FORMULAS = [{"left": mark, "right": mark, "display": mark == "$$"} for mark in ("$$", "$")]


def compute(*texts: str) -> dict[str, object]:
    """Compute the metric for the inputs entered."""
    inputs = {}
    for (name, example), text in zip(EXAMPLE.items(), texts, strict=True):
        try:
            inputs[name] = json.loads(text)
        except ValueError as error:
            raise gr.Error(f"{name} must be JSON: {error}.", print_exception=False) from error
        if not inputs[name] or type(inputs[name]) is not type(INPUTS[name]):
            raise gr.Error(f"{name} must be like {example} and not empty.", print_exception=False)
    # A module remembers the types of refused inputs, so each request has its own.
    metric = evaluate.load(str(FOLDER / SCRIPT), keep_in_memory=True)
    try:
        return metric.compute(**inputs)
    except (TypeError, ValueError) as error:
        raise gr.Error(str(error), print_exception=False) from error


documentation = (FOLDER / "README.md").read_text(encoding="utf-8").split("---\n", 2)[2]
title, sections = documentation.split("\n## ", 1)
heading = next(line.removeprefix("# ") for line in title.splitlines() if line.startswith("# "))

with gr.Blocks(title=heading) as page:
    gr.Markdown(f"{title}\n\nInputs are JSON. `-Infinity` is the score of a candidate that cannot be scored.")
    with gr.Row():
        with gr.Column():
            boxes = [gr.Textbox(text, label=name, lines=2) for name, text in EXAMPLE.items()]
            button = gr.Button("Compute", variant="primary")
        results = gr.JSON(label="results")
    button.click(compute, boxes, results)
    gr.Markdown(f"## {sections}", latex_delimiters=FORMULAS)

if __name__ == "__main__":
    page.launch()
