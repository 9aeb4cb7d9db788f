import pytest

from scalar_retrieval.gallery.store.files import read_json


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not JSON"),
        ("{", "is not JSON"),
        ('{"x": NaN}', "NaN is not JSON"),
        ('{"x": -Infinity}', "Infinity is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[1]", "must hold a JSON object, got list"),
        ('"\ud800"', "must hold a JSON object|is not JSON"),
    ],
)
def test_what_is_no_json_object_is_refused_with_the_file_and_what_to_do(tmp_path, text, message):
    path = tmp_path / "a.json"
    path.write_text(text, errors="surrogatepass")
    with pytest.raises(ValueError, match=f"a.json .*{message}.* Mend it.$"):
        read_json(path, "Mend it.")
