"""Words that a query has in quotation marks, and the clips in which they are said."""

import os
import unicodedata
from types import SimpleNamespace

import pytest
import torch

from scalar_retrieval.gallery.filters import Filter, split_query
from scalar_retrieval.gallery.gallery import Gallery, GalleryWriter, MediaFile
from scalar_retrieval.gallery.searcher import Selection
from scalar_retrieval.gallery.store.file_state import clip_stat
from scalar_retrieval.gallery.words.cues import ClipWords
from scalar_retrieval.gallery.words.folding import folded, spans_of
from scalar_retrieval.gallery.words.transcripts import Transcripts
from tests.gallery.conftest import MADE_BY

DIM = 4


@pytest.mark.parametrize(
    ("query", "text", "words"),
    [
        ('dog "Karin"', "dog Karin", ("Karin",)),
        ('"Karin"', "Karin", ("Karin",)),
        ('a "good   boy"  and "Karin" "Karin"', "a good boy and Karin Karin", ("good boy", "Karin")),
        ("“Karin” „Otto“ «Zoë»", "Karin Otto Zoë", ("Karin", "Otto", "Zoë")),  # as telephones write them
        ('"Karin\'s" dog', "Karin's dog", ("Karin's",)),
        ("no  marks 'here'", "no  marks 'here'", ()),
        ('a 15" screen', 'a 15" screen', ()),
        ('a "..." b', "a ... b", ()),
        ('""', "", ()),
    ],
)
def test_what_is_quoted_is_read_by_the_model_without_the_marks_and_must_be_said(query, text, words):
    assert split_query(query) == (text, words)


@pytest.mark.parametrize(
    ("words", "text", "marked"),
    [
        ("karin", "KARIN, come! Karin's here; Karina is not.", ["KARIN", "Karin"]),
        ("KARIN", "Karín and " + unicodedata.normalize("NFD", "Karín"), ["Karín", "Kari\u0301n"]),
        ("good  dog", "A good,\ndog. Goods dog, good hot dog", ["good,\ndog"]),
        ("don't", "I don’t; I DON'T; I dont", ["don’t", "DON'T"]),
        ("Straße", "die STRASSE, die Strasse", ["STRASSE", "Strasse"]),
        ("ﬁne", "FINE", ["FINE"]),
        ("my dog", "my_dog-2", ["my_dog"]),
        ("猫", "我的猫很好", ["猫"]),
        ("α", "Α ά beta", ["Α", "ά"]),
        ("x", "", []),
    ],
)
def test_case_accents_and_what_stands_between_words_do_not_count(words, text, marked):
    assert [text[start:stop] for start, stop in spans_of([words], text)] == marked
    assert (folded(words) in folded(text)) == bool(marked)


def srt(*cues):
    def clock(seconds):
        return f"00:00:{seconds:06.3f}".replace(".", ",")

    return "".join(f"{n}\n{clock(a)} --> {clock(b)}\n{text}\n\n" for n, (a, b, text) in enumerate(cues))


def record(path, sha256="0" * 64, **facts):
    """The record of a file as it is, if it is there."""
    size, mtime_ns = clip_stat(path) if os.path.exists(path) else (1, 0)
    return MediaFile(path, size, mtime_ns, sha256, **facts)


def make(folder, presence, files=(), segment=None, modalities=("video", "audio", "subtitle")):
    """A gallery of clips that have these modalities."""
    mask = torch.tensor([[name in has for name in modalities] for has in presence.values()])
    generator = torch.Generator().manual_seed(0)
    embeds = torch.randn(*mask.shape, DIM, generator=generator)
    with GalleryWriter(folder / "gallery", "float32") as writer:
        writer.metadata = (
            MADE_BY | {"modalities": list(modalities)} | ({} if segment is None else {"segment": segment})
        )
        writer.put_clips(list(presence), torch.nn.functional.normalize(embeds, dim=-1) * mask[..., None], mask)
        writer.put_files(list(files))
        writer.commit()
    return Gallery.open(folder / "gallery")


def keep(folder, name, *cues):
    """Put a text into the store of transcripts."""
    (folder / "gallery" / "transcripts").mkdir(exist_ok=True)
    text = srt(*cues).replace(",", ".")
    (folder / "gallery" / "transcripts" / f"{name}.vtt").write_text(f"WEBVTT\n\n{text}")


def said(gallery, *words, **options):
    """The clips that say words, by the end of their names, and how many are left out as it is not known."""
    allowed = gallery.searcher.allowed(Selection(Filter(words=words, **options)))
    names = [name.rpartition("/")[2] for name in gallery.clip_ids]
    return [name for name, fits in zip(names, allowed.mask.tolist(), strict=True) if fits], allowed.unknown


@pytest.fixture
def place(tmp_path):
    """Clips with a subtitle file, a transcript, words of a list, no words, no file, and none of them but a title."""
    names = ("spoken", "heard", "given", "silent", "gone", "titled")
    clips = {name: str(tmp_path / f"{name}.mp4") for name in names}
    for name in set(names) - {"gone"}:
        (tmp_path / f"{name}.mp4").write_bytes(b"x")
    (tmp_path / "spoken.srt").write_text(srt((0, 1, "Karin, sit!"), (1, 2, "Good"), (2, 3, "dog.")))
    hashes = {name: f"{number:064x}" for number, name in enumerate(names)}
    hashes["given"] += "+" + "f" * 64
    titles = {"titled": '{"title": "Karin at the sea"}', "gone": '{"title": "Karin\'s dog"}'}
    files = [record(clips[name], hashes[name], texts=titles.get(name)) for name in names]
    lacking = {"silent": ("video",), "titled": ("video", "title")}
    presence = {clips[name]: lacking.get(name, ("video", "subtitle")) for name in names}
    gallery = make(tmp_path, presence, files, modalities=("video", "subtitle", "title"))
    keep(tmp_path, f"{hashes['heard']}.speech", (0, 1, "Karín barks"))
    return SimpleNamespace(folder=tmp_path, gallery=gallery, hashes=hashes)


def test_clips_that_say_all_words_are_found_in_whatever_is_kept_of_them(place):
    left_out = {"words": 1}  # of a list
    assert said(place.gallery, "karin") == (["spoken.mp4", "heard.mp4", "gone.mp4", "titled.mp4"], left_out)
    assert said(place.gallery, "good dog") == (["spoken.mp4"], {"words": 2})  # over two cues; or said in what is gone
    assert said(place.gallery, "karin", "GOOD") == (["spoken.mp4"], {"words": 2})
    assert said(place.gallery, "karin", "sea", "bark") == ([], left_out | {"words": 2})
    assert said(place.gallery, "karin", has="title") == (["titled.mp4"], {})
    assert said(place.gallery, "dog karin")[0] == said(place.gallery, "kar")[0] == []
    assert said(place.gallery, "sea karin") == ([], {"words": 2})
    with pytest.raises(ValueError, match="must be words or phrases, got '...'"):
        Filter(words="...")


def test_a_transcript_outside_the_gallery_is_not_read(place):
    transcript = place.folder / "gallery" / "transcripts" / f"{place.hashes['heard']}.speech.vtt"
    assert said(place.gallery, "karin barks")[0] == ["heard.mp4"]
    transcript.rename(place.folder / "private.vtt")
    transcript.symlink_to(place.folder / "private.vtt")
    assert said(Gallery.open(place.folder / "gallery"), "karin barks")[0] == []
    transcripts = Transcripts(place.folder / "gallery")
    assert transcripts.with_words(place.hashes["heard"]) is None
    assert transcripts.count() == (1, 0)


def test_a_window_has_the_words_that_are_said_in_it(tmp_path):
    spoken = [(0.5, 1.5, "one two"), (1.5, 2.5, "three"), (2.5, 4.5, "four"), (6, 7, "five")]
    (tmp_path / "talk.mp4").write_bytes(b"x")
    (tmp_path / "talk.srt").write_text(srt(*spoken))
    names = [f"{tmp_path}/talk.mp4#t={span}" for span in ("0,2", "2,4", "4")]
    files = [record(str(tmp_path / "talk.mp4"))]
    gallery = make(tmp_path, dict.fromkeys(names, ("video", "subtitle")), files, segment=2)
    for words, expected in (
        ("one", [0]), ("two three", [0]), ("three four", [1]), ("three", [0, 1]), ("four", [1, 2]), ("four five", [2]),
        ("one four", []), ("five", [2]),
    ):  # fmt: skip
        assert said(gallery, words) == ([names[place].rpartition("/")[2] for place in expected], {}), words


def test_of_a_gallery_without_texts_it_is_not_known_whether_there_are_words_before_files_are_read(tmp_path):
    for name in ("spoken.mp4", "silent.mp4", "notes.srt"):
        (tmp_path / name).write_bytes(srt((0, 1, "secret")).encode())
    (tmp_path / "spoken.vtt").write_text("WEBVTT\n\n00:00.000 --> 00:01.000\nKarin\n")
    names = [str(tmp_path / name) for name in ("spoken.mp4", "silent.mp4", "gone.mp4", "notes.srt")]
    gallery = make(tmp_path, dict.fromkeys(names, ("video",)), map(record, names), modalities=("video",))
    assert said(gallery, "Karin") == (["spoken.mp4"], {"words": 2})
    assert said(gallery, "secret")[0] == []  # a gallery may name any file


def test_words_that_are_new_in_the_next_state_of_a_gallery_are_found_beside_those_read_before(place):
    assert said(place.gallery, "exit")[0] == []
    (place.folder / "silent.srt").write_text(srt((0, 1, "Karin")))
    with GalleryWriter(place.folder / "gallery", "float32") as writer:
        writer.put_files([record(str(place.folder / "silent.mp4"), "e" * 64)])
        writer.commit()
    keep(place.folder, f"{place.hashes['heard']}.screen", (0, 1, "EXIT"))
    later = Gallery.open(place.folder / "gallery")
    later.searcher.clip_words = ClipWords(later, place.gallery.searcher.clip_words)
    assert said(later, "exit")[0] == ["heard.mp4"] and said(later, "good dog")[0] == ["spoken.mp4"]
