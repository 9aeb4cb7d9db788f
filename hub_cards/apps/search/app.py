"""Search a gallery of clips by text and see why each one matched: the page.

What to search is in `space.json`. What cannot be loaded is said on the page, in place of the search.
"""

import json
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # read while gradio is imported

import gradio as gr
from huggingface_hub import constants, hf_hub_download
from rendering import CSS, header, is_playable, message, render_result
from searching import MODALITIES, QueryError, Result, Searcher, Settings, format_temperature, load, temperatures

HERE = Path(__file__).resolve().parent
TITLE = "SCALAR: search clips by text"
NUM_HITS = 10
MOST_HITS = 50
HINT = (
    "Small: the modality closest to the query decides alone. Large: all modalities of a clip count the same. "
    "The model's own is {default}."
)
MASKS = (
    "<p>Mask modalities</p><p class='hint'>The search must do without the modality in this share of the clips: always "
    "the same ones, and more of them the further the slider is.</p>"
)
# Fonts that come with gradio, so that the page asks no other host. The semibold files there lack letters.
THEME = gr.themes.Default(
    primary_hue="indigo",
    font=(gr.themes.LocalFont("IBM Plex Sans", weights=(400, 700)), "system-ui", "sans-serif"),
    font_mono=(gr.themes.LocalFont("IBM Plex Mono", weights=(400, 700)), "monospace"),
)


class Media:
    """
    The published media of hits, as files of this machine that the page may play.

    Args:
        settings ([`~searching.Settings`]), searcher ([`~searching.Searcher`]): what is searched.
    """

    def __init__(self, settings: Settings, searcher: Searcher):
        self._gallery = searcher.gallery
        self._repo_id = settings.gallery
        # The cache of the Hub keeps files under names without an extension, which no browser would play.
        self._copies = None if self._gallery.commit is None else tempfile.TemporaryDirectory(prefix="gallery-")
        self.folder = self._gallery.folder if self._copies is None else Path(self._copies.name)

    def fetch(self, result: Result) -> tuple[dict[str, str], list[str]]:
        """Return the paths of the media of all hits by their name in the gallery, and which could not be had."""
        named = [hit.file for hit in result.hits if hit.file is not None and is_playable(hit.file)]
        files = list(dict.fromkeys(named))  # windows share theirs
        with ThreadPoolExecutor(8) as pool:
            paths = dict(zip(files, pool.map(self._fetch, files), strict=True))
        return {file: path for file, path in paths.items() if path}, [file for file in named if not paths[file]]

    def _fetch(self, file: str) -> str | None:
        path = self.folder / file
        if not path.is_file() and self._copies is not None:
            try:
                hf_hub_download(
                    self._repo_id, file, repo_type="dataset", revision=self._gallery.commit, local_dir=self.folder
                )
            except OSError:  # a hit is worth showing without its video, and the page says that it is missing
                return None
        return str(path) if path.is_file() else None


def _link(name: str, kind: str) -> str | None:
    """The page of a model or data set on the Hub; a folder has none."""
    return None if Path(name).is_dir() else f"{constants.ENDPOINT}/{kind}{name}"


def build_page(settings: Settings, searcher: Searcher) -> tuple[gr.Blocks, list[str]]:
    """Return the page, and the folders that it plays files from."""
    gallery, media = searcher.gallery, Media(settings, searcher)
    stops = temperatures(searcher.query_temperature)
    labels = [format_temperature(stop) for stop in stops]
    default = stops.index(searcher.query_temperature)
    examples = gallery.examples()
    most = max(2, min(MOST_HITS, len(gallery)))  # a slider needs two ends

    def search(query, stop, video, audio, subtitle, k):
        shares = [share / 100 for share in (video, audio, subtitle)]
        try:
            result = searcher.search(query, stops[int(stop)], shares, int(k))
        except QueryError as error:
            return message(str(error))
        paths, missing = media.fetch(result)
        if missing:
            result.notes.append(f"The media of {len(missing)} of the hits could not be fetched just now.")
        return render_result(result, paths)

    # The slider moves over the stops; what it stands on is written beside it, and told to screen readers.
    show_stop = f"""(stop) => {{
        const label = {json.dumps(labels)}[stop];
        document.querySelector('#temperature input[type="range"]')?.setAttribute('aria-valuetext', label);
        return '<div class="stop"><span>one modality</span><b>' + label + '</b><span>uniform</span></div>';
    }}"""
    with gr.Blocks(title=TITLE, analytics_enabled=False) as page:
        places = settings.gallery, _link(settings.gallery, "datasets/"), settings.model, _link(settings.model, "")
        gr.HTML(header(len(gallery), *places, searcher.is_calibrated), elem_id="head")
        with gr.Row(elem_id="ask"):
            query = gr.Textbox(examples[0] if examples else "", label="What are you looking for?", elem_id="query")
            button = gr.Button("Search", variant="primary", min_width=120, elem_id="search")
        if examples:
            shown = gr.Examples([[text] for text in examples], query, label="Captions of the gallery to try")
        with gr.Row():
            with gr.Column(scale=1, min_width=280, elem_id="settings"):
                with gr.Group():
                    temperature = gr.Slider(
                        0,
                        len(stops) - 1,
                        default,
                        step=1,
                        label="Query temperature",
                        info=HINT.format(default=labels[default]),
                        buttons=["reset"],
                        elem_id="temperature",
                    )
                    readout = gr.HTML(elem_id="stop")
                with gr.Group():
                    gr.HTML(MASKS, elem_id="masks")
                    masked = [
                        gr.Slider(0, 100, 0, step=5, label=f"{name}, % masked", elem_id=f"mask-{name}")
                        for name in MODALITIES
                    ]
                k = gr.Slider(1, most, min(NUM_HITS, len(gallery)), step=1, label="Number of hits", elem_id="hits")
            with gr.Column(scale=3, min_width=320, elem_id="results"):
                hits = gr.HTML(message("Type what you are looking for."), elem_id="found")
        arguments = {"fn": search, "inputs": [query, temperature, *masked, k], "outputs": hits}
        options = {"show_progress": "hidden", "trigger_mode": "always_last", "api_visibility": "private"}
        sliders = (temperature, *masked, k)
        gr.on([query.submit, button.click, *(slider.change for slider in sliders)], **arguments, **options)
        if examples:
            shown.load_input_event.then(**arguments, **options)
            page.load(**arguments, **options)
        for event in (temperature.change, page.load):
            event(None, temperature, readout, js=show_stop, **options)
    return page, [str(media.folder / "media")]


def build_error_page(error: Exception) -> gr.Blocks:
    """Return a page that says why there is nothing to search."""
    with gr.Blocks(title=TITLE, analytics_enabled=False) as page:
        gr.HTML("<h1>This search could not start</h1>", elem_id="head")
        gr.HTML(message(str(error)))
        gr.HTML("<p>Once this is mended, restart the Space.</p>")
    return page


def main() -> None:
    folders = []
    try:
        settings = Settings.read(HERE / "space.json")
        page, folders = build_page(settings, load(settings))
    except (OSError, ValueError) as error:
        page = build_error_page(error)
    page.launch(allowed_paths=folders, css=CSS, theme=THEME, footer_links=[], ssr_mode=False)


if __name__ == "__main__":
    main()
