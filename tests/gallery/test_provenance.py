import json

import pytest

from scalar_retrieval.gallery.store.files import write_json
from scalar_retrieval.gallery.store.provenance import source_state
from scalar_retrieval.modeling_scalar.model_identity import identify


def test_interrupted_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "results.json"
    write_json({"old": 1}, path)
    for content, error in (({"new": object()}, TypeError), ({"new": float("nan")}, ValueError)):
        with pytest.raises(error):
            write_json(content, path)
    assert json.loads(path.read_text()) == {"old": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["results.json"]


def test_an_infinity_is_written_as_what_float_reads(tmp_path):
    write_json({"options": [{"query_temperature": float("inf")}, -float("inf"), 0.5]}, tmp_path / "a.json")
    text = (tmp_path / "a.json").read_text()
    content = json.loads(text, parse_constant=pytest.fail)["options"]
    assert float(content[0]["query_temperature"]) == float("inf") == -float(content[1]) and content[2] == 0.5


def test_git_that_is_not_there_means_an_unknown_source(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert source_state() is None


@pytest.mark.parametrize("model", ["/no/such/folder", "./typo", "a/b/c"])
def test_a_missing_model_folder_is_not_asked_of_the_hub(model):
    with pytest.raises(FileNotFoundError, match="There is no model folder"):
        identify(model).download()
