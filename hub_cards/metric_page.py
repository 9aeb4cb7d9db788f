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
    # A module remembers the types of refused inputs, so each request has its own.
    metric = evaluate.load(str(FOLDER / SCRIPT), keep_in_memory=True)
    try:
        inputs = dict(zip(EXAMPLE, map(json.loads, texts), strict=True))
        return metric.compute(**inputs)
    except (IndexError, TypeError, ValueError) as error:
        raise gr.Error(f"{error} Inputs are JSON, such as {EXAMPLE}.", print_exception=False) from error


documentation = (FOLDER / "README.md").read_text(encoding="utf-8").split("---\n", 2)[2]

with gr.Blocks() as page:
    gr.Markdown("Inputs are JSON. `-Infinity` is the score of a candidate that cannot be scored.")
    with gr.Row():
        with gr.Column():
            boxes = [gr.Textbox(text, label=name, lines=2) for name, text in EXAMPLE.items()]
            button = gr.Button("Compute", variant="primary")
        results = gr.JSON(label="results")
    button.click(compute, boxes, results)
    gr.Markdown(documentation, latex_delimiters=FORMULAS)

if __name__ == "__main__":
    page.launch()
