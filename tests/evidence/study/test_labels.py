"""Class labels as queries: the label of every clip with sound, by the model's own score."""

import json
from dataclasses import replace

import pytest
import torch

from evidence.latent import latent_space
from evidence.miniature.generation import generate
from evidence.settings import LabelsConfig
from evidence.study.labels import accuracy, embed_classes, main
from evidence.study.towers import store_towers
from scalar_retrieval.eval.benchmarks.registry import load_benchmark
from scalar_retrieval.eval.embedding.embed_dataset import embed_dataset
from scalar_retrieval.modeling_scalar import load_model


@pytest.fixture(scope="module")
def root(tmp_path_factory, tiny_model_dir):
    folder = tmp_path_factory.mktemp("clips") / "clips"
    generate(folder, num_train=0, num_validation=0, num_test=24, num_proc=1)
    store_towers(tiny_model_dir, folder)
    return folder


def test_labels_and_clips_are_those_of_the_benchmark_of_classes(root, tiny_model_dir):
    model, processor = load_model(tiny_model_dir, dtype=torch.float32)
    loaded = load_benchmark("miniature_classes", root, "test")
    expected = embed_dataset(model, processor, loaded, task="classification", progress=False)
    found = embed_classes(tiny_model_dir, root)
    labels = {text: row for text, row in zip(found.captions, found.text_embeds, strict=True)}
    assert sorted(labels) == sorted(set(expected.captions)) and len(found.clip_ids) == 24
    clips = [clip_id for clip_id in found.clip_ids if clip_id in expected.clip_ids]
    assert len(clips) == len(expected.clip_ids) == len(found.pairs) < 24
    for caption, row in zip(expected.captions, expected.text_embeds, strict=True):
        torch.testing.assert_close(labels[caption], row, atol=1e-5, rtol=0)
    # Clips without sound belong to no class, so the geometry of classes is the same without them.
    of_found, of_expected = latent_space(found), latent_space(expected)
    assert of_found["text_centroid_cosine"] == pytest.approx(of_expected["text_centroid_cosine"], abs=1e-5)


def test_accuracy_counts_the_clips_that_their_label_fits_best(root, tiny_model_dir):
    embeddings = embed_classes(tiny_model_dir, root)
    # Texts of the tiny model are nearly equal; these differ.
    texts = torch.randn(embeddings.text_embeds.shape, generator=torch.Generator().manual_seed(0))
    embeddings = replace(embeddings, text_embeds=torch.nn.functional.normalize(texts, dim=1))
    hits = 0
    for label, clip in embeddings.pairs.tolist():
        present = embeddings.modality_mask[clip]
        own = embeddings.modality_embeds[clip][present].double()
        texts = embeddings.text_embeds.double()
        weights = (texts @ own.T / embeddings.metadata["query_temperature"]).softmax(1)
        centroids = torch.nn.functional.normalize(weights @ own, dim=1)
        hits += int((texts * centroids).sum(1).argmax()) == label
    assert 0 < hits < len(embeddings.pairs)
    assert accuracy(embeddings) == pytest.approx(100 * hits / len(embeddings.pairs))


def test_the_command_writes_what_a_training_changed(root, tiny_model_dir, tmp_path):
    model, processor = load_model(tiny_model_dir, dtype=torch.float32)
    with torch.no_grad():
        model.text_projection.weight.add_(0.5)
    for saved in (model, processor):
        saved.save_pretrained(tmp_path / "run")
    (tmp_path / "run" / "recipe.json").write_text(json.dumps({"model": str(tiny_model_dir)}))
    main(LabelsConfig(model=tmp_path / "run", root=root, output=tmp_path / "labels.json"))
    found = json.loads((tmp_path / "labels.json").read_text())
    assert found.keys() == {"accuracy", "text_centroid_cosine", "initial_text_centroid_cosine"}
    assert found["text_centroid_cosine"] != found["initial_text_centroid_cosine"]
    assert found["accuracy"] == pytest.approx(accuracy(embed_classes(tmp_path / "run", root)))
