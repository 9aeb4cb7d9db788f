"""Which subtitles a gallery has: those of the languages it was begun with; the others are counted."""

import torch
from typer.testing import CliRunner

from gallery.gallery import Gallery
from search.__main__ import app
from tests.gallery.test_subtitles import CUE, write_film

SUBTITLE = 2  # of the modalities


def index(folder, model, *options, code=0):
    arguments = ["index", folder / "clips", "--model", model, "--output", folder / "gallery", *options]
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exit_code == code, result.output
    return result


def vectors(folder):
    gallery = Gallery.open(folder / "gallery")
    assert [name.rsplit("/", 1)[-1] for name in gallery.clip_ids] == ["film.mkv", "talk.mkv"]
    return gallery.modality_embeds()[:, SUBTITLE]


def write(folder, tracks, **files):
    (folder / "clips").mkdir(parents=True)
    write_film(folder / "clips" / "film.mkv", tracks)
    write_film(folder / "clips" / "talk.mkv", [])
    for ending, words in files.items():
        (folder / "clips" / f"talk.{ending.replace('_', '.')}").write_text(CUE.format(words))


def test_a_gallery_reads_the_languages_that_it_was_begun_with(tiny_model_dir, tmp_path):
    several, german = tmp_path / "several", tmp_path / "german"
    write(several, [("eng", "a cat meows"), ("ger", "a dog barks")], srt="hello", de_srt="a low tone", sub="0")
    write(german, [("", "a dog barks")], srt="a low tone")
    reported = index(several, tiny_model_dir, "--language", "de,en").stdout
    assert "of each file is read, de,en first; unused: 1 in .sub, which is not read, 1 in en, 1 without a" in reported
    assert "; unused: " not in index(german, tiny_model_dir).stdout
    assert torch.equal(vectors(several), vectors(german)) and vectors(several).any(dim=1).all()

    assert "2 unchanged" in index(several, tiny_model_dir).stdout  # which remembers
    (several / "clips" / "talk.srt").write_text(CUE.format("the weather"))
    assert "2 unchanged" in index(several, tiny_model_dir).stdout
    (several / "clips" / "talk.de.srt").write_text(CUE.format("a high tone"))
    assert "1 changed, 1 unchanged" in index(several, tiny_model_dir).stdout
    assert not torch.equal(vectors(several), vectors(german))
    reported = index(several, tiny_model_dir, "--language", "en", code=1).stderr
    assert "chosen with --language de,en. Omit --language" in reported
    assert "got 'gibberish'" in index(several, tiny_model_dir, "--language", "gibberish", code=1).stderr
