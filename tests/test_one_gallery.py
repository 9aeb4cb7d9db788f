"""One folder of embedded clips, whoever wrote it: searched, evaluated, published, and opened by mteb."""

import json
import os

import pytest
import torch
from typer.testing import CliRunner

from evidence.miniature.generation import generate
from scalar_retrieval.eval.__main__ import app as eval_app
from scalar_retrieval.eval.benchmarks.registry import load_split
from scalar_retrieval.eval.embedding.embeddings import Embeddings
from scalar_retrieval.hub_cards.__main__ import app as hub_app
from scalar_retrieval.modeling_scalar.scores_scalar import retrieval_scores
from scalar_retrieval.search.__main__ import app as search_app

pytestmark = pytest.mark.e2e

NUM_CLIPS, CLOSE = 12, 1e-6


def run(app, *arguments):
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return generate(
        tmp_path_factory.mktemp("one") / "data", num_train=1, num_validation=0, num_test=NUM_CLIPS, num_proc=1
    )


def scores_of(embeddings):
    """What evaluation ranks by: of each caption, the score of each clip."""
    scores = retrieval_scores(
        embeddings.text_embeds,
        embeddings.modality_embeds.float(),
        embeddings.modality_mask,
        query_temperature=embeddings.metadata["query_temperature"],
    )
    return [dict(zip(embeddings.clip_ids, row, strict=True)) for row in scores.tolist()]


def hits_of(folder, captions, *options):
    """What the command answers, every clip of it."""
    printed = run(search_app, "query", folder, *captions, "-k", 1000, "--json", *options).stdout
    return [{hit["clip_id"]: hit["score"] for hit in query["hits"]} for query in json.loads(printed)]


def assert_close(found, expected):
    assert len(found) == len(expected) > 1
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, abs=CLOSE)
    assert len({round(score, 4) for one in found for score in one.values()}) > 10, "scores hardly differ"


def by_name(lists):
    """Lists of scores with the names of files in the place of their paths."""
    return [{os.path.basename(path): score for path, score in scores.items()} for scores in lists]


def test_what_search_indexes_is_evaluated_published_and_searched_as_it_was_published(data, tiny_model_dir, tmp_path):
    folder, output, published = (tmp_path / name for name in ("gallery", "results", "published"))
    model = ["--model", tiny_model_dir]
    run(search_app, "index", data / "test", *model, "--output", folder)
    source = [*model, "--benchmark", "miniature", "--root", data, "--depth", 0]
    run(eval_app, "run", "--embeddings", folder, *source, "--output", output)
    evaluated = Embeddings.load(output / "embeddings")
    assert evaluated.modality_embeds.dtype == torch.float16 and len(evaluated.clip_ids) == NUM_CLIPS
    rows = load_split("miniature", data).dataset
    names = {row["video_id"]: os.path.basename(row["video_path"] or row["audio_path"]) for row in rows}
    expected = [{names[clip]: score for clip, score in scores.items()} for scores in scores_of(evaluated)]
    assert_close(by_name(hits_of(folder, evaluated.captions)), expected)

    run(hub_app, "gallery", folder, "user/gallery", "--dry-run", published)
    assert_close(hits_of(published, evaluated.captions, *model), expected)


def test_what_evaluation_embeds_is_searched_and_published_with_its_captions_and_evaluated(
    data, tiny_model_dir, tmp_path
):
    source = ["--model", tiny_model_dir, "--benchmark", "miniature", "--root", data]
    run(eval_app, "embed", *source, "--output", tmp_path / "embedded")
    embeddings = Embeddings.load(tmp_path / "embedded")
    assert_close(hits_of(tmp_path / "embedded", embeddings.captions), scores_of(embeddings))
    run(hub_app, "gallery", tmp_path / "embedded", "user/gallery", "--dry-run", tmp_path / "published")
    metrics = []
    for name in ("embedded", "published"):
        run(eval_app, "run", "--embeddings", tmp_path / name, "--output", tmp_path / "results" / name)
        metrics.append(json.loads((tmp_path / "results" / name / "results.json").read_text())["retrieval"])
    assert metrics[0] == metrics[1]
