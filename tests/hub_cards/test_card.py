"""What a person wrote into a card is kept; a template gets what it needs."""

import shutil

import pytest

from scalar_retrieval.hub_cards import card as cards
from scalar_retrieval.hub_cards.card import KEPT_BEGIN, KEPT_END, Details, read_card, render

# Round trip ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def template(tmp_path, monkeypatch):
    """A template of its own, beside the shared parts."""
    for part in cards._TEMPLATES.glob("_*.jinja"):
        shutil.copy(part, tmp_path)
    monkeypatch.setattr(cards, "_TEMPLATES", tmp_path)
    (tmp_path / "kind.md.jinja").write_text('# Title\n\n{% include "_kept.md.jinja" %}\n', encoding="utf-8")


@pytest.mark.parametrize(
    "details",
    [
        Details(),
        Details({"license": "apache-2.0", "language": ["en", "no"]}),  # YAML reads an unquoted `no` as false
        Details({"license": "other", "license_name": "my-license", "license_link": "https://example.org"}, "Text."),
        Details({"license": "mit"}, "\r\n"),
        Details({"license": "mit"}, " one\r\ntwo\r\n\n"),
        Details({"license": "mit"}, "ends with\r"),
        Details({"license": "mit"}, "---\nlicense: mit\n---\n"),
        Details({"license": "mit"}, "{{ name }} {% raw %} <b>bold</b> ünï – \u2028 \ufeff <!-- a comment -->"),
    ],
)
def test_what_a_person_wrote_is_read_back_byte_for_byte(template, details):
    assert read_card(render("kind", {"title": "Title"}, details)) == ("kind", details)


def test_a_card_that_a_web_editor_gave_other_line_breaks_is_read(template):
    card = render("kind", {}, Details({"license": "mit", "language": ["en"]}, "one\ntwo")).replace("\n", "\r\n")
    assert read_card(card) == ("kind", Details({"license": "mit", "language": ["en"]}, "one\r\ntwo"))


@pytest.mark.parametrize(
    "change",
    [
        lambda card: card.replace(KEPT_END, ""),
        lambda card: card + f"\n{KEPT_BEGIN}\n{KEPT_END}\n",
        lambda card: card.replace(KEPT_END, "x").replace(KEPT_BEGIN, KEPT_END).replace("x", KEPT_BEGIN),
        lambda card: card.replace("<!-- hub_cards: kind -->", ""),
    ],
)
def test_broken_marks_are_an_error(template, change):
    card = render("kind", {}, Details(kept="Kept."))
    with pytest.raises(ValueError, match="marked lines of the card are"):
        read_card(change(card))


@pytest.mark.parametrize("front_matter", ["- a list", "a: b: c"])
def test_a_front_matter_that_cannot_be_kept_is_an_error(front_matter):
    with pytest.raises(ValueError):
        read_card(f"---\n{front_matter}\n---\n# Title\n")


def test_what_is_given_now_wins_over_the_earlier_card():
    licence = {"license": "other", "license_name": "my-license", "license_link": "LICENSE"}
    earlier = Details(licence | {"language": ["de"], "extra_gated_prompt": "Who?"}, "Kept.")
    assert Details().over(earlier) == Details(licence).over(earlier) == earlier
    now = Details({"license": "mit", "language": ["en"]}).over(earlier)
    assert now == Details({"license": "mit", "language": ["en"], "extra_gated_prompt": "Who?"}, "Kept.")
