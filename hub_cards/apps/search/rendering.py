"""The HTML of the page. Every text that comes from data is escaped here, and nowhere else."""

import math
import mimetypes
from collections.abc import Mapping, Sequence
from html import escape
from urllib.parse import quote

from searching import MODALITIES, Hit, Result

_SHOWN = 2  # of captions of a clip, and of clips that a caption describes; the others are folded away
_PLAYERS = {"video": "video", "audio": "audio", "image": "img"}

# Blue, orange and green of Okabe and Ito, told apart with every kind of colour vision; lighter ones on dark ground.
CSS = """
.gradio-container { --video: #0072b2; --audio: #e69f00; --subtitle: #009e73; --muted: #59606d;
  --block-info-text-color: #59606d; --body-text-color-subdued: #59606d;
  width: 100%; max-width: 1180px !important; margin: 0 auto !important; }
.dark .gradio-container, .dark.gradio-container { --video: #56b4e9; --audio: #f0b429; --subtitle: #2bc49a;
  --muted: #b4bac4; --block-info-text-color: #b4bac4; --body-text-color-subdued: #b4bac4; }
#head h1 { font-size: 1.6rem; line-height: 1.25; margin: 0.4rem 0; font-weight: 600; }
#head p { margin: 0; color: var(--body-text-color); max-width: 95ch; overflow-wrap: anywhere; }
#head a { color: var(--link-text-color); padding: 0; }
#search { align-self: flex-end; flex: 0 0 auto; height: 2.7rem; }
#settings .styler { background: var(--block-background-fill); }
#temperature input[type="number"], #temperature .min_value, #temperature .max_value { display: none; }
.stop { display: flex; justify-content: space-between; gap: 1rem; font-size: var(--text-sm); color: var(--muted); }
.stop b { color: var(--body-text-color); font-variant-numeric: tabular-nums; }
#masks p { margin: 0; color: var(--block-label-text-color); }
#masks .hint { font-size: var(--text-sm); color: var(--muted); }
.message { border-left: 4px solid var(--audio); background: var(--block-background-fill); padding: 0.7rem 1rem;
  margin: 0 0 0.8rem; border-radius: 4px; overflow-wrap: anywhere; }
.summary p { margin: 0 0 0.4rem; }
.hits { list-style: none; margin: 0.6rem 0 0; padding: 0; display: grid; gap: 0.7rem; }
.hit { display: flex; gap: 1rem; border: 1px solid var(--border-color-primary); border-radius: 8px; padding: 0.7rem;
  margin: 0; background: var(--block-background-fill); }
.hit.described { border-color: var(--body-text-color); box-shadow: 0 0 0 1px var(--body-text-color); }
.media { flex: 0 0 170px; }
.media video, .media img { width: 100%; max-height: 170px; border-radius: 4px; display: block; background: #000;
  object-fit: contain; }
.media audio { width: 100%; }
.about { flex: 1 1 0; min-width: 0; }
.title { display: flex; flex-wrap: wrap; gap: 0.2rem 0.7rem; align-items: baseline; margin: 0 0 0.5rem; }
.rank { font-size: 1.15rem; font-weight: 600; font-variant-numeric: tabular-nums; min-width: 1.3rem; }
.name { font-family: var(--font-mono); font-size: var(--text-sm); overflow-wrap: anywhere; }
.score { margin-left: auto; color: var(--muted); font-size: var(--text-sm); white-space: nowrap; }
.score b, .weights b, .summary b, .stop b { font-weight: 600; }
.score b { color: var(--body-text-color); font-variant-numeric: tabular-nums; }
.badge { font-size: var(--text-xs); border: 1px solid currentColor; border-radius: 999px; padding: 0 0.5rem; }
.bar { display: flex; gap: 2px; height: 14px; border-radius: 4px; overflow: hidden; }
.bar .video, .key.video { background: var(--video); }
.bar .audio, .key.audio { background: var(--audio); }
.bar .subtitle, .key.subtitle { background: var(--subtitle); }
.weights { list-style: none; margin: 0.4rem 0 0; padding: 0; display: flex; flex-wrap: wrap; gap: 0.2rem 1.1rem;
  font-size: var(--text-sm); }
.weights li { margin: 0; }
.weights b { font-variant-numeric: tabular-nums; }
.weights .masked, .weights .absent { color: var(--muted); }
.key { display: inline-block; width: 0.75em; height: 0.75em; border-radius: 2px; margin-right: 0.4em; }
.masked .key { background: repeating-linear-gradient(45deg, var(--muted) 0 2px, transparent 2px 4px); }
.absent .key { background: none; border: 1px dashed var(--muted); }
.caption { margin: 0.5rem 0 0; font-size: var(--text-sm); overflow-wrap: anywhere; }
.caption::before { content: "\\201c"; }
.caption::after { content: "\\201d"; }
details .caption { margin-top: 0.3rem; }
details summary { cursor: pointer; font-size: var(--text-sm); color: var(--muted); margin-top: 0.3rem; }
@media (max-width: 767px) {
  #ask { flex-direction: column; }
  #ask > * { width: 100%; flex: none; }
  #search { align-self: stretch; }
  #settings { order: 2; }
  #results { order: 1; }
  #head h1 { font-size: 1.3rem; }
  .hit { flex-direction: column; gap: 0.6rem; }
  .media { flex-basis: auto; }
}
"""


def is_playable(file: str) -> bool:
    """Return whether a browser may be given this file: a video, a sound or a picture, but no drawing with scripts."""
    kind = mimetypes.guess_type(file)[0] or ""
    return kind.partition("/")[0] in _PLAYERS and kind != "image/svg+xml"


def message(text: str) -> str:
    """A text that stands in place of hits, or above them."""
    return f'<div class="message" role="status">{escape(text)}</div>'


def header(
    num_clips: int,
    gallery: str,
    gallery_link: str | None,
    model: str,
    model_link: str | None,
    is_calibrated: bool = False,
) -> str:
    """The title of the page, and what is searched."""
    score = "its score is the cosine between the query and the weighted centroid."
    if is_calibrated:
        score = (
            "its score is the sum of weighted cosines over the length of the weighted centroid. The cosines of each "
            "modality were fitted to those of the others, so the score may leave the range from -1 to 1."
        )
    return (
        "<h1>Search clips by text, and see why each one matched</h1>"
        f"<p>{_count(num_clips, 'clip')} of {_link(gallery, gallery_link)}, embedded by {_link(model, model_link)}. "
        "For each query, SCALAR weighs what a clip shows, sounds like and says: the bar of a hit shows these weights, "
        f"and {score}</p>"
    )


def _link(name: str, address: str | None) -> str:
    return (
        f'<a href="{escape(address)}" target="_blank" rel="noopener">{escape(name)}</a>' if address else escape(name)
    )


def render_result(result: Result, paths: Mapping[str, str]) -> str:
    """
    Write what a query found.

    Args:
        result ([`~searching.Result`]): the hits.
        paths (`Mapping[str, str]`): where on this machine the media of hits lie, by their name in the gallery. A hit
            without an entry has no player.

    Returns:
        `str`: HTML.
    """
    notes = "".join(message(note) for note in result.notes)
    hits = "".join(_render_hit(hit, paths.get(hit.file)) for hit in result.hits)
    return f'<div class="summary" role="status">{_summary(result)}</div>{notes}<ol class="hits">{hits}</ol>'


def _summary(result: Result) -> str:
    """How much was searched, and where the clips are that the query describes, best first."""
    lost = result.num_clips - result.num_searched
    line = f"{result.num_searched:,} of {_count(result.num_clips, 'clip')} searched."
    counts = zip(MODALITIES, result.masked, result.available, strict=True)
    masked = [f"{name} in {number:,} of {there:,}" for name, number, there in counts if number]
    if masked:
        line += f" Masked: {', '.join(masked)} that have it."
    if lost:
        line += f" {_count(lost, 'clip')} cannot be found: nothing of {'it' if lost == 1 else 'them'} is left."
    if not result.num_searched:
        line += " Mask less to search again."
    places = []
    for clip_id, rank in sorted(result.described, key=lambda place: place[1] or math.inf):
        where = "cannot be found: nothing of it is left" if rank is None else f"is at rank <b>{rank:,}</b>"
        # Isolated: an identifier may hold letters or marks that are read from right to left.
        name = f'<bdi class="name">{escape(clip_id)}</bdi>'
        places.append(f"<p>The clip that this caption describes, {name}, {where}.</p>")
    return f"<p>{line}</p>{_folded(places, 'more clip')}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _render_hit(hit: Hit, path: str | None) -> str:
    media = f'<div class="media">{_player(path, hit)}</div>' if path else ""
    captions = [f'<p class="caption">{escape(caption)}</p>' for caption in hit.captions]
    badge = '<span class="badge">described by the query</span>' if hit.is_described else ""
    return (
        f'<li class="hit{" described" if hit.is_described else ""}">{media}<div class="about">'
        f'<div class="title"><span class="rank">{hit.rank}</span><span class="name">{escape(hit.clip_id)}</span>'
        f'{badge}<span class="score">score <b>{hit.score:.3f}</b></span></div>'
        f"{_bar(hit)}{_folded(captions, 'more caption')}</div></li>"
    )


def _player(path: str, hit: Hit) -> str:
    player = _PLAYERS[mimetypes.guess_type(path)[0].partition("/")[0]]
    # Relative, so that it holds behind a proxy too. Browsers of phones show a frame of a video only if told which; a
    # window is played from its first second to its last.
    begin = hit.window or "#t=0.001" * (player == "video")
    source, label = escape("gradio_api/file=" + quote(path)) + escape(begin), escape(hit.clip_id)
    if player == "img":
        return f'<img src="{source}" alt="{label}" loading="lazy">'
    extra = ' playsinline preload="metadata"' if player == "video" else ' preload="none"'
    return f'<{player} controls{extra} src="{source}" aria-label="{label}"></{player}>'


def _bar(hit: Hit) -> str:
    """The weights as lengths, for the eye, and as a list of numbers, for everybody."""
    lengths, rows = "", ""
    for name, weight, state in zip(MODALITIES, hit.weights, hit.states, strict=True):
        if weight >= 0.005:  # what is written as 0.00 has no length either
            lengths += f'<span class="{name}" style="width:{100 * weight:.2f}%"></span>'
        shown = f"<b>{weight:.2f}</b>" if state == "present" else state
        kind = f" {name}" if state == "present" else ""
        rows += f'<li class="{state}"><span class="key{kind}" aria-hidden="true"></span>{name} {shown}</li>'
    return (
        f'<div class="bar" aria-hidden="true">{lengths}</div>'
        f'<ul class="weights" aria-label="weights of the modalities">{rows}</ul>'
    )


def _folded(paragraphs: Sequence[str], noun: str) -> str:
    shown, more = "".join(paragraphs[:_SHOWN]), paragraphs[_SHOWN:]
    if more:
        shown += f"<details><summary>{_count(len(more), noun)}</summary>{''.join(more)}</details>"
    return shown


__all__ = ["CSS", "header", "is_playable", "message", "render_result"]
