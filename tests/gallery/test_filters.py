import fnmatch
import random
from datetime import UTC, date, datetime, timedelta, timezone

import pytest

from scalar_retrieval.gallery.filters import Filter
from scalar_retrieval.gallery.gallery import Gallery, GalleryWriter, MediaFile
from scalar_retrieval.gallery.searcher import Selection
from tests.gallery.conftest import MADE_BY, make_clips

DAY = 86_400 * 10**9
PATHS = (
    "/a/holiday/beach.mp4",
    "/a/holiday/2024/sea.mp4",
    "/a/work/holiday.mp4",
    "/a/work/talk [1].mkv",
    "/a/work/tälk?.mkv",
    "/b/holidays/beach.mp4",
    "/b/odd\nname.mp4",
)


def make_gallery(folder, names, files=()):
    _, embeds, mask = make_clips(len(names))
    with GalleryWriter(folder, "float32") as writer:
        writer.metadata = MADE_BY
        writer.put_clips(names, embeds, mask)
        writer.put_files(files)
        writer.commit()
    return Gallery.open(folder)


@pytest.fixture(scope="module")
def gallery(tmp_path_factory):
    return make_gallery(tmp_path_factory.mktemp("paths"), PATHS)


def named(gallery, wanted):
    """The clips that fulfil a filter, and how many are left out because something is unknown."""
    allowed = gallery.searcher.allowed(Selection(wanted))
    return [name for name, fits in zip(gallery.clip_ids, allowed.mask.tolist(), strict=True) if fits], allowed.unknown


@pytest.mark.parametrize(
    ("globs", "places"),
    [
        ("holiday/**", [0, 1]),
        ("holiday/*", [0, 1]),  # what fits a folder fits all that is in it
        ("holiday/*.mp4", [0]),
        ("holiday", [0, 1]),
        ("./holiday", [0, 1]),
        ("holiday/**/**/sea.mp4", [1]),
        ("/holiday", []),
        ("/a/holiday", [0, 1]),
        ("/a/**/*.mp4", [0, 1, 2]),
        ("/a", [0, 1, 2, 3, 4]),
        ("**/beach.mp4", [0, 5]),
        ("beach.mp4", [0, 5]),
        ("each.mp4", []),
        ("beach", []),
        ("*.mkv", [3, 4]),
        ("talk [[]1].mkv", [3]),
        ("t[äö]lk[?].mkv", [4]),
        ("odd\nname.mp4", [6]),
        ("odd.name.mp4", []),
        (("*.mkv", "sea.*"), [1, 3, 4]),
        ("[z-a]*", []),
        ("\0*", []),
        ("\ud800*", []),
        ("**", list(range(7))),
    ],
)
def test_patterns_of_paths_fit_from_any_folder_on(gallery, globs, places):
    assert named(gallery, Filter(paths=globs)) == ([PATHS[place] for place in places], {})


def test_patterns_without_folders_fit_as_those_of_the_shell_do(tmp_path):
    random.seed(0)
    letters = "ab]^-!.+ä$(&~"
    names = sorted({"".join(random.choices(letters, k=random.randint(1, 3))) for _ in range(400)})
    gallery, count = make_gallery(tmp_path, [f"/x/{name}" for name in names]), 0
    for _ in range(300):
        glob = "".join(random.choices([*letters, "*", "?", "[ab]", "[!a-z]", "[]a]", "[a^]", "[!^]", "[&&]"], k=3))
        if "**" in glob:
            continue
        fits = [bool(fit) for fit in gallery.searcher.allowed(Selection(Filter(paths=glob))).mask]
        expected = [fnmatch.fnmatchcase(name, glob) for name in names]
        assert fits == expected, glob
        count += sum(expected)
    assert count > 500


def test_a_home_folder_is_understood_in_quotes(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/a")
    assert named(make_gallery(tmp_path, PATHS), Filter(paths="~/work"))[0] == list(PATHS[2:5])


def test_a_pattern_takes_no_longer_than_it_has_letters(tmp_path):
    """It would not end if places were tried one after the other."""
    names = ["/a/é" + "a" * 200, "/a/" + "a" * 200]
    gallery = make_gallery(tmp_path, names)
    assert named(gallery, Filter(paths="*a" * 30 + "*b")) == ([], {})
    assert named(gallery, Filter(paths="**a" * 30)) == (names, {})
    assert named(gallery, Filter(paths="?" * 4096)) == ([], {})


def test_dates_are_moments_in_utc():
    moment = datetime(2026, 1, 31, tzinfo=UTC)
    zone = timezone(timedelta(hours=2))
    for given in ("2026-01-31", " 2026-01-31T00:00 ", "2026-01-31T02:00+02:00", "2026-01-31T00:00Z", date(2026, 1, 31),
                 datetime(2026, 1, 31), datetime(2026, 1, 31, 2, tzinfo=zone)):  # fmt: skip
        assert Filter(after=given) == Filter(after=moment) and Filter(after=given).after.tzinfo is UTC


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"paths": "?" * 5000}, "1 to 4096 characters"),
        ({"paths": "/"}, "1 to 4096 characters, .* got '/'"),
        ({"max_duration": float("nan")}, "`max_duration` must be a number"),
        ({"min_duration": "5"}, "`min_duration` must be a number"),
        ({"min_duration": 10**400}, "`min_duration` must be a number"),
        ({"min_duration": 5, "max_duration": 4}, "at least 5 and at most 4 seconds"),
        ({"before": "2026-02-30"}, "`before` must be a date"),
        ({"before": 5}, "`before` must be a date .*got 5"),
        ({"after": "0001-01-01T00:00+14:00"}, "`after` must be a date .*that exists in UTC"),
        ({"after": "2026-01-02", "before": "2026-01-02"}, "No time is after"),
    ],
)
def test_a_filter_that_makes_no_sense_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Filter(**options)


def test_a_year_that_nanoseconds_cannot_hold_is_before_or_after_every_file(tmp_path):
    gallery = make_gallery(tmp_path, ["/a"], files=[MediaFile("/a", 1, DAY, "")])
    assert named(gallery, Filter(after="0001-01-01", before="9999-12-31")) == (["/a"], {})
    assert named(gallery, Filter(after="9999-12-31")) == named(gallery, Filter(before="0001-01-02")) == ([], {})
