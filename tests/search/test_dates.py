"""When and where files were recorded: by their tags, by their names, and what becomes of it in a gallery."""

import os
from datetime import UTC, datetime

import pytest
from PIL import Image
from PIL.ExifTags import GPS, IFD, Base

from scalar_retrieval.gallery.decoding import Facts, SandboxedReader, date_in_name
from scalar_retrieval.gallery.decoding.worker import date_in_tags, nanoseconds_of, place_in_tags
from tests.media_corpus import media
from tests.search.test_indexing import run

DAY = 86_400 * 10**9
NOON = "2019-06-15T12:00:00"


def at(text):
    return None if text is None else nanoseconds_of(datetime.fromisoformat(text).replace(tzinfo=UTC))


@pytest.mark.parametrize(
    ("name", "moment"),
    {
        "2019-06-15 12.00.00.mov": NOON,
        "Screen Recording 2019-06-15 at 12.00.00.mov": NOON,
        "VID20190615120000.mp4": NOON,
        "PXL_20190615_120000123.mp4": NOON,
        "IMG-20190615-WA0001.mp4": "2019-06-15",
        "2019.06.15 party.mp4": "2019-06-15",
        "20190615_996600.mp4": "2019-06-15",
        "1 20190631 and 2019-06-15.mp4": "2019-06-15",  # there is no 31st of June
        "1560594611000.mp4": None,
        "1234520190615.mp4": None,
        "2019061512.mp4": None,
        "VID_20991231_120000.mp4": None,
        "19700101_000000.mp4": None,
    }.items(),
)
def test_a_date_in_a_name_is_a_day_that_was_and_no_part_of_a_number(name, moment):
    assert date_in_name(f"/20010203/{name}") == at(moment)


@pytest.mark.parametrize(
    ("tags", "moment"),
    [
        ({"creation_time": "2019-06-15T10:00:00Z", "com.apple.quicktime.creationdate": f"{NOON}+0000"}, NOON),
        ({"com.apple.quicktime.creationdate": "2019-06-15T14:00:00+0200"}, NOON),
        ({"date_recorded": "UTC 2019-06-15 12:00:00"}, NOON),
        ({"creation_time": "1904-01-01T00:00:00.000000Z", "date": "2019-06-15"}, "2019-06-15"),
        ({"creation_time": "1970-01-01T00:00:00.000000Z"}, None),
        ({"creation_time": "2099-01-01T00:00:00.000000Z"}, None),
        ({"creation_time": "0001-01-01T00:00:00+14:00"}, None),
        ({"date": "2019-06"}, None),
        ({"date": "soon"}, None),
    ],
)
def test_of_tags_only_a_full_date_counts_that_can_be_one(tags, moment):
    assert date_in_tags(tags) == at(moment)


@pytest.mark.parametrize(
    ("text", "place"),
    {
        "+48.1374+011.5755+519.000/": [48.1374, 11.5755],
        "-33.8568+151.2153/": [-33.8568, 151.2153],
        "+48-011/": [48.0, -11.0],
        "+4808.24-01134.53/": None,  # minutes, which nobody writes
        "+00.0000+000.0000/": None,  # where there was no reception
        "+98.0000+011.5755/": None,
        "Munich": None,
    }.items(),
)
def test_a_place_is_read_in_degrees(text, place):
    assert place_in_tags({"location": text}) == place


def test_tags_are_read_from_the_containers_of_phones_cameras_and_recorders(tmp_path):
    reader = SandboxedReader()
    tags = (("creation_time", f"{NOON}Z"), ("location", "+48.1374+011.5755/"))
    for name, data, place in (
        ("a.mp4", media("mp4", "mpeg4", metadata=tags), [48.1374, 11.5755]),
        ("a.mkv", media("matroska", "mpeg4", metadata=tags[:1]), None),
        ("a.ogg", media("ogg", "", "flac", metadata=(("DATE", NOON[:10] + " 12:00:00"),)), None),
        ("a.mp3", media("mp3", "", "mp3", metadata=(("date", NOON),)), None),
    ):
        (tmp_path / name).write_bytes(data)
        facts = reader.read_facts(tmp_path / name)
        assert (facts.recorded_ns, facts.place) == (at(NOON), place), name


@pytest.mark.parametrize("kind", ["jpeg", "png", "webp", "avif"])
def test_a_picture_says_when_and_where_it_was_taken(tmp_path, kind):
    exif = Image.Exif()
    exif.get_ifd(IFD.Exif).update({Base.DateTimeOriginal: "2019:06:15 14:00:00", Base.OffsetTimeOriginal: "+02:00"})
    south, east = (33.0, 51.0, 24.48), (151.0, 12.0, 55.08)
    place = {GPS.GPSLatitudeRef: "S", GPS.GPSLatitude: south, GPS.GPSLongitudeRef: "E", GPS.GPSLongitude: east}
    exif.get_ifd(IFD.GPSInfo).update(place)
    # Damage in what it says is none in the picture.
    for data, expected in (
        (exif.tobytes(), (at(NOON), [-33.8568, 151.2153])),
        (exif.tobytes()[:40], (None, None)),
    ):
        Image.new("RGB", (32, 32)).save(tmp_path / f"a.{kind}", exif=data)
        facts = SandboxedReader().read_facts(tmp_path / f"a.{kind}")
        assert (facts.recorded_ns, facts.place) == expected


def test_a_tag_comes_before_a_name_and_a_name_before_the_last_change(tmp_path, monkeypatch):
    folder = tmp_path / "clips"
    folder.mkdir()
    for number, name in enumerate(("plain.mp4", "VID_20200102.mp4", "VID_20200103.mp4")):
        (folder / name).write_text(f"{number} video")
        os.utime(folder / name, ns=(DAY, DAY))
    read = SandboxedReader.read_facts
    facts = Facts("", [], True, False, at(NOON), [48.1374, 11.5755])
    monkeypatch.setattr(
        SandboxedReader, "read_facts", lambda self, path: facts if "20200103" in path else read(self, path)
    )

    def dates():
        files = run(folder)[1].files.items()
        return {os.path.basename(path): (str(file.date)[:10], file.place) for path, file in files}

    tagged = ("2019-06-15", [48.1374, 11.5755])
    assert dates() == {
        "plain.mp4": ("1970-01-02", None), "VID_20200102.mp4": ("2020-01-02", None), "VID_20200103.mp4": tagged,
    }  # fmt: skip
    # A moved file keeps its date and place; a date of a name is read from the new one, if that has one.
    os.rename(folder / "VID_20200102.mp4", folder / "VID_20210102.mp4")
    os.rename(folder / "VID_20200103.mp4", folder / "birthday.mp4")
    found = dates()
    assert found["VID_20210102.mp4"] == ("2021-01-02", None) and found["birthday.mp4"] == tagged
