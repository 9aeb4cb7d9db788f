"""Further texts of clips, by the names of modalities: from the columns of a data set to embeddings and to training."""

import pytest
import torch
from safetensors.torch import load_file
from torch.utils.data import default_collate

from evidence.miniature.generation import generate
from scalar_retrieval.eval.benchmarks.clip_rows import _warn_once, read_row, warn_unread
from scalar_retrieval.eval.benchmarks.registry import load_benchmark
from scalar_retrieval.eval.embedding.embed_benchmark import embed_benchmark
from scalar_retrieval.eval.embedding.embed_dataset import embed_dataset
from scalar_retrieval.gallery.gallery import Gallery
from scalar_retrieval.modeling_scalar import MODALITIES, load_model
from scalar_retrieval.modeling_scalar.model_identity import identify
from scalar_retrieval.trainer.cache_features import FeatureCollator, FeatureDataset, cache_features
from scalar_retrieval.trainer.embeddings import EmbeddingDataset
from scalar_retrieval.trainer.lora import apply_adapters
from scalar_retrieval.trainer.run import main
from tests.joint_encoders import write_joint_encoder
from tests.trainer.test_joint_training import QUIET, assert_same_step, from_files, trainer_of
from tests.trainer.test_scalar_trainer import step

FIVE = [*MODALITIES, "title", "screen"]
COLUMNS = {"video": "video_path", "audio": "audio_path"}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """An encoder of five modalities, which puts clips and captions alike; and six clips to train on, ten to test."""
    folder = tmp_path_factory.mktemp("five")
    write_joint_encoder(folder / "encoder")
    model, processor = load_model(folder / "encoder", modalities=FIVE)
    processor.num_frames = processor.num_train_frames = 2
    processor.document_prompt = processor.query_prompt
    model.save_pretrained(folder / "five")
    processor.save_pretrained(folder / "five")
    counts = {"num_train": 6, "num_validation": 0, "num_test": 10}
    generate(folder / "data", **counts, seed=4, evidence=["title", "screen"], num_proc=1)
    return folder


@pytest.fixture(scope="module")
def stored(place):
    source = place / "five", "miniature", place / "data", "train"
    return embed_benchmark(place / "gallery", *source, dtype="float32", progress=False).path


def train_rows(place):
    return load_benchmark("miniature", place / "data", "train")


def presence_of(rows):
    return [[row[COLUMNS.get(name, name)] is not None for name in FIVE] for row in rows]


def test_columns_of_the_miniature_reach_the_model_that_names_them(place, stored):
    rows, gallery = train_rows(place), Gallery.open(stored)
    assert rows.column_names[5:] == ["title", "screen", "kind"]
    assert gallery.modalities == tuple(FIVE) and gallery.clip_ids == rows["video_id"][:]
    assert gallery.modality_mask.tolist() == presence_of(rows)
    assert gallery.modality_mask.all(dim=0).tolist() == [True, False, False, False, False]
    model, processor = load_model(place / "five")
    clips = []
    for row in rows:
        texts = {name: row[name] for name in ("title", "screen")}
        clips.append(processor.read_clip(row["video_path"], row["audio_path"], row["subtitle"], texts=texts))
    with torch.no_grad():
        expected = model(**processor(text=rows["caption"], clips=clips)).modality_embeds
    torch.testing.assert_close(gallery.modality_embeds(), expected, atol=1e-5, rtol=0)
    assert gallery.metadata["benchmark_description"]["evidence"] == ["title", "screen"]
    assert set(gallery.metadata["kinds"].values()) & {"title", "screen", "mixed"}


def test_what_a_benchmark_lacks_is_absent_and_reported_once(place, caplog):
    rows = train_rows(place).remove_columns("screen").select(range(2))
    model, processor = load_model(place / "five")
    _warn_once.cache_clear()
    for _ in range(2):
        embeddings = embed_dataset(model, processor, rows, progress=False)
        warn_unread([*rows.column_names, "placard"], [*MODALITIES, "title"])
    assert not embeddings.modality_mask[:, FIVE.index("screen")].any()
    names = [record for record in caplog.records if record.name == "scalar_retrieval.eval.benchmarks.clip_rows"]
    lacking, unread = (record.getMessage() for record in names)
    assert lacking.startswith("The model embeds screen, but the benchmark has no such column")
    assert unread == "The model does not embed placard: it embeds video, audio, subtitle, title."


# Training ------------------------------------------------------------------------------------------------------------


def load(place, adapter):
    model, processor = load_model(place / "five", torch.float32, **({"has_heads": True} if adapter == "heads" else {}))
    torch.manual_seed(0)
    return apply_adapters(model, adapter, matching=False), processor


def test_a_step_from_a_gallery_is_the_step_from_rows_with_their_texts(place, stored, tmp_path):
    rows, results = train_rows(place), []
    for from_gallery in (False, True):
        model, processor = load(place, "heads")
        name = str(place / "five")
        dataset = EmbeddingDataset(stored, rows, model, processor, name, identify(name).fingerprint, progress=False)
        batch = default_collate([dataset[index] for index in range(6)])
        if not from_gallery:  # frames at test time, which nobody draws
            clips = [read_row(processor, row) for row in rows]
            batch = dict(processor(text=rows["caption"], clips=clips)) | {"clip_index": batch["clip_index"]}
        results.append(step(trainer_of(tmp_path, model, dataset, default_collate, adapter="heads"), batch))
    assert_same_step(*reversed(results))
    heads = {name.split("_head")[0].rpartition(".")[2] for name in results[0]["gradients"]}
    assert heads == {"text", *FIVE}


def test_texts_of_rows_stand_beside_stored_features_and_belong_to_the_data(place, tmp_path):
    rows = train_rows(place)
    model, processor = load(place, "trunk")
    cache_features(tmp_path / "features", rows, model.get_base_model(), processor, dtype="float32", **QUIET)
    dataset = FeatureDataset(tmp_path / "features", rows, model, processor)
    batch, expected = FeatureCollator(processor)([dataset[index] for index in range(6)]), from_files(rows, processor)
    assert batch["modality_mask"].tolist() == presence_of(rows)
    assert torch.equal(batch["title_input_ids"], expected["title_input_ids"])
    other = rows.map(lambda row: row | {"title": "another"})
    with pytest.raises(ValueError, match="These differ: the clips, their files or texts"):
        FeatureDataset(tmp_path / "features", other, model, processor)


def test_a_model_is_trained_by_the_score_of_any_of_its_modalities(place, tmp_path):
    source = {
        "model": place / "five",
        "plugin": "evidence.miniature",
        "benchmark": "miniature",
        "root": place / "data",
    }
    loss = {"aggregation": "title", "objective": "contrastive", "adapter": "heads", "matching_weight": 0}
    steps = {"per_device_train_batch_size": 6, "max_steps": 1, "warmup_steps": 0, "use_cpu": True}
    arguments = source | loss | steps | {"output_dir": tmp_path / "run"}
    assert main([f"--{name}={value}" for name, value in arguments.items()]) == 0
    assert load_model(tmp_path / "run")[0].config.aggregation == "title"
    # PEFT finds heads by the ends of their names, so the one of subtitles is saved too, as it was.
    weights = load_file(tmp_path / "run" / "adapter_model.safetensors")
    moved = {name.split(".")[2] for name, value in weights.items() if value.abs().max() > 0}
    assert moved == {"text_head", "title_head"}
