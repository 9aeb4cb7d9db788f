"""Pictures are clips of one frame, read in the processes that read films, within the same limits."""

import sys
import zlib

import numpy as np
import pytest
from PIL import Image

from scalar_retrieval.gallery.decoding import LimitError, SandboxedReader
from scalar_retrieval.gallery.decoding.worker import opened_picture, upright_pixels
from scalar_retrieval.modeling_scalar.media_scalar import MediaError

RED, GREEN, BLUE, YELLOW, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 0), (255, 255, 255)
CORNERS = [RED, GREEN, BLUE, YELLOW]


def corners(pixels):
    """The colours of the four quarters, in reading order."""
    height, width, _ = pixels.shape
    return [pixels[y, x] for y in (height // 4, height * 3 // 4) for x in (width // 4, width * 3 // 4)]


def read(path, limits=None):
    (pixels,) = SandboxedReader(limits).read_frames(path)
    return pixels


def quarters(mode="RGB"):
    pixels = np.repeat(np.repeat(np.array(CORNERS, np.uint8).reshape(2, 2, 3), 20, axis=0), 30, axis=1)
    return Image.fromarray(pixels).convert(mode)


def turned(number):
    exif = Image.Exif()
    exif[0x0112] = number
    return {"exif": exif}


@pytest.mark.parametrize(
    ("name", "mode", "options"),
    [
        ("a.jpg", "RGB", {}),
        ("a.jpeg", "CMYK", {}),
        ("a.png", "P", {}),
        ("a.webp", "RGB", {"save_all": True, "append_images": [Image.new("RGB", (60, 40))]}),  # an animation
        ("a.jpe", "RGB", {"format": "MPO", "save_all": True, "append_images": [Image.new("RGB", (60, 40))]}),
        ("a.avif", "RGB", {}),
        ("A.TIF", "RGB", {}),
        ("a.bmp", "RGB", {}),
        ("other_content.jpg", "RGB", {"format": "PNG"}),
    ],
)
def test_the_first_picture_of_a_file_is_read(tmp_path, name, mode, options):
    quarters(mode).save(tmp_path / name, **options)
    np.testing.assert_allclose(corners(read(tmp_path / name)), CORNERS, atol=8)


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.webp", "a.avif"])
def test_a_picture_is_upright_as_its_tags_say(tmp_path, name):
    quarters().save(tmp_path / name, **turned(6))
    pixels = read(tmp_path / name)
    assert pixels.shape == (60, 40, 3)
    np.testing.assert_allclose(corners(pixels), [BLUE, RED, YELLOW, GREEN], atol=8)


def test_what_is_transparent_is_white_and_sixteen_bits_keep_their_brightness(tmp_path):
    seen = np.dstack([np.array(quarters()), np.full((40, 60), 255, np.uint8)])
    seen[:20, :30, 3] = 0
    Image.fromarray(seen).save(tmp_path / "a.png")
    assert np.array_equal(corners(read(tmp_path / "a.png")), [WHITE, *CORNERS[1:]])
    Image.fromarray(np.full((4, 4), 0x6400, np.uint16)).save(tmp_path / "deep.png")
    assert np.array_equal(read(tmp_path / "deep.png")[0, 0], [100] * 3)


def test_a_picture_is_one_frame_without_length_sound_and_text(tmp_path):
    reader, path = SandboxedReader(), tmp_path / "a.png"
    quarters().save(path)
    assert len(reader.read_frames(path, lambda count: [0] * 8 * count)) == 8  # chosen eight times, read once
    ((second, small),) = reader.read_pictures(path, 1.0, 30)
    assert second == 0.0 and small.shape == (20, 30, 3)
    facts = reader.read_facts(path)
    assert (facts.title, facts.has_pictures, facts.has_sound) == ("", True, False)
    assert reader.read_duration(path) is reader.read_audio(path) is reader.cues_of(path) is None


def black_png(width, height):
    """A picture that says its size, with the content of few bytes."""
    parts = [("IHDR", width.to_bytes(4) + height.to_bytes(4) + bytes([8, 0, 0, 0, 0])), ("IDAT", zlib.compress(b"0"))]
    data = b"\x89PNG\r\n\x1a\n"
    for name, content in parts:
        chunk = name.encode() + content
        data += len(content).to_bytes(4) + chunk + zlib.crc32(chunk).to_bytes(4)
    return data


REFUSED = {
    "bomb.png": (black_png(30000, 30000), "pictures of 30000x30000 .*--limit pixels=900000000"),
    "cut.png": (black_png(16, 16), r"not a readable picture \(.*truncated"),
    "phone.heic": (b"\0\0\0\x18ftypheic" + bytes(99), "HEIC needs the package pillow-heif, `pip install"),
    "renamed.jpg": (b"\0\0\0\x18ftypmif1" + bytes(99), "HEIC needs the package pillow-heif"),
    "program.jpg": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 1 1\nshowpage\n", "damaged, or of another type"),
    "words.webp": (b"words", "it is damaged, or of another type"),
    "empty.jpg": (b"", "it is empty"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_picture_that_cannot_be_read_is_refused_with_one_sentence(tmp_path, name):
    content, says = REFUSED[name]
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(MediaError, match=says) as caught:
        read(path)
    assert str(path) in str(caught.value) and isinstance(caught.value, LimitError) == name.startswith("bomb")


def test_a_picture_that_needs_more_memory_is_read_alone(tmp_path, monkeypatch):
    monkeypatch.setattr("scalar_retrieval.gallery.decoding.pool.LIGHT_MEMORY", 2**24)
    Image.new("RGB", (3000, 3000)).save(tmp_path / "a.png")
    assert read(tmp_path / "a.png").shape == (3000, 3000, 3)


def test_heic_is_read_where_its_package_is_installed(tmp_path, monkeypatch):
    (tmp_path / "pillow_heif.py").write_text(
        "from PIL import Image, PngImagePlugin\n"
        "def register_heif_opener():\n"
        "    Image.register_open('HEIF', PngImagePlugin.PngImageFile, lambda head: head.startswith(b'\\x89PNG'))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("scalar_retrieval.gallery.decoding.worker._PICTURE_FORMATS", [])
    quarters().save(tmp_path / "a.heic", "png")
    with opened_picture(tmp_path / "a.heic") as picture:
        assert np.array_equal(corners(upright_pixels(picture)), CORNERS)
    monkeypatch.delitem(sys.modules, "pillow_heif")
