"""Pictures are clips of one frame, read in the processes that read films, within the same limits."""

import sys

import numpy as np
import pytest
from PIL import Image

from scalar_retrieval.gallery.decoding import LimitError, Limits, SandboxedReader
from scalar_retrieval.gallery.decoding.worker import opened_picture
from scalar_retrieval.modeling_scalar.media_scalar import MediaError
from tests.media_corpus import png

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


REFUSED = {
    "bomb.png": (png(16384, 16384), "pictures of 16384x16384 .*--limit pixels=268435456"),
    "cut.png": (png(16, 16)[:45], r"not a readable picture \(.*truncated"),
    "cut.heic": (b"\0\0\0\x18ftypheic" + bytes(99), "not a readable picture"),
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


@pytest.mark.parametrize(("is_progressive", "share"), [(False, 0.07), (True, 0.4)])
def test_a_large_jpeg_is_decoded_small_and_upright_within_the_limit(tmp_path, is_progressive, share):
    options = turned(6) | {"progressive": is_progressive}
    quarters().resize((4400, 4200)).save(tmp_path / "a.jpg", **options)
    pixels = read(tmp_path / "a.jpg", Limits(pixels=share * 4400 * 4200))
    assert pixels.shape == (1100, 1050, 3)
    np.testing.assert_allclose(corners(pixels), [BLUE, RED, YELLOW, GREEN], atol=8)
    with pytest.raises(LimitError, match=r"pictures of 4400x4200 = 18480000 pixels; the limit is"):
        read(tmp_path / "a.jpg", Limits(pixels=(share - 0.03) * 4400 * 4200))


def test_heic_is_turned_once_where_both_its_box_and_its_exif_say_so(tmp_path):
    pytest.importorskip("pillow_heif").register_heif_opener()
    picture, path = quarters(), tmp_path / "a.heic"
    picture.info["exif"] = turned(6)["exif"].tobytes()
    picture.save(path, quality=95)
    assert b"irot" in path.read_bytes() and b"Exif" in path.read_bytes()
    pixels = read(path)
    assert pixels.shape == (60, 40, 3)
    np.testing.assert_allclose(corners(pixels), [BLUE, RED, YELLOW, GREEN], atol=8)


@pytest.mark.parametrize(("name", "brand"), [("phone.heic", b"heic"), ("renamed.jpg", b"mif1")])
def test_without_its_package_heic_says_what_to_install(tmp_path, monkeypatch, name, brand):
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    monkeypatch.setattr(Image, "OPEN", {key: value for key, value in Image.OPEN.items() if key != "HEIF"})
    (tmp_path / name).write_bytes(b"\0\0\0\x18ftyp" + brand + bytes(99))
    with pytest.raises(MediaError, match="HEIC needs the package pillow-heif, `pip install"):
        with opened_picture(tmp_path / name):
            pass
