"""The larger encoder that the pages name, with its weights, on four real clips: what must hold, not numbers."""

import json

import pytest
from typer.testing import CliRunner

from scalar_retrieval.modeling_scalar.model_identity import identify
from scalar_retrieval.search.__main__ import app

pytestmark = pytest.mark.network

MODEL = "google/embeddinggemma-2"

DESCRIPTIONS = {
    "video1.mp4": "a muscular light brown dog stands on dry ground",
    "video2.mp4": "a husky with a pink collar howls on a sofa",
    "video3.mp4": "a ginger kitten walks over a rock by the water",
    "video4.mp4": "a black cat lies on a tiled floor",
}


@pytest.fixture(scope="module")
def gallery(shared_dir, tmp_path_factory):
    """The four clips, indexed as the README does it for more."""
    try:
        identify(MODEL).download()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    output = tmp_path_factory.mktemp("real") / "gallery"
    arguments = ["index", str(shared_dir / "data" / "videos"), "--output", str(output), "--model", MODEL]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return output


def test_the_description_of_each_clip_finds_it_first(gallery):
    result = CliRunner().invoke(app, ["query", str(gallery), *DESCRIPTIONS.values(), "--json"])
    assert result.exit_code == 0, result.output
    found = [entry["hits"][0]["path"].rsplit("/", 1)[-1] for entry in json.loads(result.stdout)]
    assert found == list(DESCRIPTIONS)
