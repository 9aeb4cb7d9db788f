"""A folder of two small clips, and `python -m scalar_retrieval.search` called in this process."""

from pathlib import Path

from typer.testing import CliRunner

from scalar_retrieval.search.__main__ import app
from tests.media_corpus import media, tone, wav


def write_clips(folder: Path) -> Path:
    """Write a clip of pictures, sound and a subtitle, and one of sound alone."""
    folder.mkdir()
    (folder / "both.mkv").write_bytes(media("matroska", "mjpeg", "pcm_s16le", sampling_rate=44_100))
    (folder / "both.srt").write_text("1\n00:00:00,000 --> 00:00:01,000\na dog barks\n")
    (folder / "sound.wav").write_bytes(wav(tone(16_000)))
    return folder


def run(*arguments: object) -> str:
    """Run a command that must succeed; return what it printed."""
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exit_code == 0, result.output
    return result.stdout
