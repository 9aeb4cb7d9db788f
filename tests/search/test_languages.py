"""Languages of texts, and which of them a model does not read."""

import pytest

from scalar_retrieval.gallery.store.described import unread_lines
from scalar_retrieval.modeling_scalar.model_identity import ModelIdentity, identify
from scalar_retrieval.search.languages import language_of, languages_read, name_of

NOT_READ = {
    "Lapset leikkivät pihalla lumessa ja mummo katsoo ikkunasta": "Finnish",
    "Το τρένο φεύγει": "Greek",
    "Copiii se joacă în zăpadă": "Romanian",
}
READ = [
    "The children play in the snow", "Die Kinder spielen im Schnee", "Дети играют в снегу перед домом",
    "Les enfants jouent dans la neige", "Vacaciones en la playa con los niños", "De kinderen spelen in de sneeuw",
    "孩子們在雪地裡玩耍", "おばあちゃんの家のクリスマス", "คริสต์มาสที่บ้านยาย", "أطفال يلعبون في الثلج",
]  # fmt: skip
NAMES = [
    "", "12:30", "Sauna", "DSC01234", "GOPR0042, DCIM", "Café del Mar Ibiza", "Björk live in Reykjavik",
    "Køge Bugt harbour tour", "IMG_0042 final cut v2", "Roma Termini", "Siberian husky, Videos", "Ski trip Åre 2019",
]  # fmt: skip


@pytest.mark.parametrize(("text", "name"), NOT_READ.items())
def test_texts_in_languages_that_light_does_not_read_are_recognised(text, name):
    code = language_of(text)
    assert name_of(code) == name and code not in languages_read("light", None)


@pytest.mark.parametrize("text", READ + NAMES)
def test_names_and_texts_in_languages_that_light_reads_are_not_taken_for_others(text):
    assert language_of(text) in (None, *languages_read("light", None))


@pytest.mark.parametrize(
    ("card", "expected"),
    [
        ("---\nlanguage: en\n---\n", ["en"]),
        ("---\nlanguage:\n- en\n- fi\n---\n", ["en", "fi"]),
        ("---\nlanguage:\n- multilingual\n- en\n---\n", None),
        ("---\nlicense: mit\n---\n", None),
        ("no metadata", None),
        (None, None),
    ],
)
def test_a_card_says_which_languages_its_encoder_reads(tmp_path, monkeypatch, card, expected):
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    if card is not None:
        (tmp_path / "README.md").write_text(card)
    monkeypatch.setattr(ModelIdentity, "reads_texts", True)
    assert languages_read(str(tmp_path), identify(tmp_path)) == expected


@pytest.mark.parametrize(
    ("unread", "expected"),
    [
        ({}, []),
        ({"Finnish": 1}, ["1 file is in Finnish, which `light` does not read."]),
        ({"Finnish": 3, "Greek": 2}, ["5 files are in Finnish or Greek, which `light` does not read."]),
        (
            dict.fromkeys("ABCDE", 1),
            ["5 files are in A, B, C or other languages, which `light` does not read."],
        ),
    ],
)
def test_files_in_other_languages_are_counted_in_one_line(unread, expected):
    assert unread_lines({"model": "light", "unread": unread}) == expected
