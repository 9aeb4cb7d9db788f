"""The README.md of published repositories: front matter, the text of a template, and manual text between marked lines.

A card is generated again at each push. What no file records (the licence, the languages, the text between the marked
lines) is read from the earlier card and written again, byte for byte.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
import yaml
from huggingface_hub import CardData, RepoCard
from huggingface_hub.utils import yaml_dump

from scalar_retrieval.modeling_scalar.light_model import LIGHT_PACKAGES
from scalar_retrieval.modeling_scalar.model_identity import LIGHT

from .markdown import code, table, text

KEPT_BEGIN = "<!-- hub_cards: begin: what stands between these two lines is kept when the card is written again -->"
KEPT_END = "<!-- hub_cards: end of what is kept -->"

# Front matter that is generated from files, so never taken from an earlier card. (A Space's card has `datasets` too,
# but in a model's card a person added it.)
_FROM_FILES = frozenset(
    "model-index co2_eq_emissions base_model base_model_relation library_name pipeline_tag tags configs dataset_info "
    "pretty_name size_categories task_categories title emoji colorFrom colorTo sdk sdk_version python_version "
    "app_file app_port pinned description short_description models".split()
)
_TEMPLATES = Path(__file__).parent / "templates"
_MARK = re.compile(r"^[ \t]*<!-- hub_cards:.*$", re.MULTILINE)
_MARKED = re.compile(
    r"^[ \t]*<!-- hub_cards: (?P<kind>[a-z]+) -->[ \t]*\r?$.*?"
    rf"^[ \t]*{re.escape(KEPT_BEGIN)}[ \t]*(?P<end>\r?)\n(?P<kept>.*?)(?:(?P=end)\n)?[ \t]*{re.escape(KEPT_END)}",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Details:
    """
    What no file records. The publisher's current values take precedence over those of the card on the Hub.

    Args:
        data (`dict`): front matter that no file records: `license`, and manual additions such as `language`.
        kept (`str`): the Markdown between the marked lines of the earlier card.
    """

    data: Mapping[str, Any] = field(default_factory=dict)
    kept: str = ""

    def over(self, earlier: "Details") -> "Details":
        """Return these details, completed by those of an earlier card."""
        # A name and a link belong to one licence.
        older = dict(earlier.data)
        if "license" in self.data:
            older.pop("license_name", None)
            older.pop("license_link", None)
        return Details(older | self.data, self.kept or earlier.kept)


def read_card(card: str) -> tuple[str | None, Details]:
    """
    Read the parts of a card that the next one keeps: its kind, `None` if no push wrote it, and its [`Details`].

    Raises:
        ValueError: a marked line is missing, repeated, changed or in the wrong place, so that text could be lost; or
            the front matter is not a YAML mapping.
    """
    try:
        data = RepoCard(card).data.to_dict()
    except yaml.YAMLError as error:
        raise ValueError(f"The front matter of the card is not YAML: {' '.join(str(error).split())}.") from error
    front = {name: value for name, value in data.items() if name not in _FROM_FILES}
    # Text between the marked lines is kept; without any mark a person wrote the card.
    marks = _MARK.findall(card)
    parts = _MARKED.search(card)
    if not marks:
        return None, Details(front)
    if parts is None or len(marks) != 3:
        raise ValueError(
            f"The marked lines of the card are broken: expected one that names its kind, then\n{KEPT_BEGIN}\nand\n"
            f"{KEPT_END}\nonce each, got {[mark.strip() for mark in marks]}. Put them back around what is to be kept."
        )
    return parts["kind"], Details(front, parts["kept"])


def render_text(template: str, **variables: Any) -> str:
    """Fill a template of `templates/`; a variable without a value is an error."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    helpers = {"text": text, "code": code, "table": table}
    environment.filters |= helpers
    environment.globals |= helpers | {"LIGHT": LIGHT, "LIGHT_PACKAGES": LIGHT_PACKAGES}
    return environment.get_template(template).render(variables)


def render(kind: str, data: CardData | Mapping[str, Any], details: Details, **variables: Any) -> str:
    """
    Write the README.md of a kind with the template of its name, and the front matter of `data` and `details`.

    A template can use `details`, and `text`, `code` and `table` of [`scalar_retrieval.hub_cards.markdown`], also as
    filters. A variable without a value is an error. `{% include "_kept.md.jinja" %}` is the section for manual text;
    every template needs it, once.
    """
    variables |= {"details": details, "kept_begin": KEPT_BEGIN, "kept_end": KEPT_END}
    body = render_text(f"{kind}.md.jinja", **variables)
    # What files record takes precedence over an earlier card.
    if isinstance(data, CardData):
        data = data.to_dict()
    data = {**details.data, **data}
    front_matter = yaml_dump(data, sort_keys=False).strip()
    return f"---\n{front_matter}\n---\n\n<!-- hub_cards: {kind} -->\n\n{body}"


__all__ = ["KEPT_BEGIN", "KEPT_END", "Details", "read_card", "render", "render_text"]
