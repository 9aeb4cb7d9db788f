import json
import math
import os

import pytest

from gallery.files import read_json, write_json


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not JSON"),
        ("{", "is not JSON"),
        ('{"x": NaN}', "NaN is not JSON"),
        ('{"x": -Infinity}', "Infinity is not JSON"),
        ('{"x": 1e999}', "the number 1e999 is out of range"),
        ('{"x": -1' + "0" * 308 + "}", "310 digits is out of range"),
        ('{"x": ' + "9" * 10_000 + "}", "10000 digits is out of range"),
        ('{"x": 1, "y": {"z": 1, "z": 2}}', "'z' is there twice"),
        ("[" * 100_000, "is not JSON"),
        ('{"x": ' + "[" * 101 + "]" * 101 + "}", "nested deeper than 100 levels"),
        ('{"x": ' + "[" * 2000 + "]" * 2000 + "}", "is not JSON"),
        ("[1]", "must hold a JSON object, got list"),
        ('"\ud800"', "must hold a JSON object|is not JSON"),
    ],
)
def test_what_is_no_json_object_is_refused_with_the_file_and_what_to_do(tmp_path, text, message):
    path = tmp_path / "a.json"
    path.write_text(text, errors="surrogatepass")
    with pytest.raises(ValueError, match=f"a.json .*{message}.* Mend it.$"):
        read_json(path, "Mend it.")


def test_numbers_and_depth_that_are_in_range_are_read(tmp_path):
    deep = [1]
    for _ in range(90):
        deep = [deep]
    content = {"large": 2**63, "float": 1.7e308, "deep": deep, "inf": math.inf}
    write_json(content, tmp_path / "a.json")
    assert read_json(tmp_path / "a.json") == content | {"inf": "inf"}


def test_what_is_no_regular_file_or_too_large_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "zeros").symlink_to("/dev/zero")
    (tmp_path / "large").touch()
    os.truncate(tmp_path / "large", 2**40)
    for name in ("fifo", "zeros", "large", "."):
        with pytest.raises(ValueError, match="must be a file of at most 268 MB"):
            read_json(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "nothing")


def test_what_is_nested_too_deeply_to_be_written_is_a_value_error_and_changes_nothing(tmp_path):
    deep = []
    for _ in range(100_000):
        deep = [deep]
    write_json({"old": True}, tmp_path / "a.json")
    with pytest.raises(ValueError, match="nested too deeply"):
        write_json({"x": deep}, tmp_path / "a.json")
    assert json.loads((tmp_path / "a.json").read_text()) == {"old": True} and os.listdir(tmp_path) == ["a.json"]
