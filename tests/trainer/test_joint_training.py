"""Training on a joint encoder: its parts, gradient caching, stored soft tokens, heads from a gallery."""

import json
import shutil
from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import normalize
from transformers import EmbeddingGemma2Config

from evidence.miniature.generation import generate
from evidence.rehead import rehead
from scalar_retrieval.eval.benchmarks.registry import load_benchmark
from scalar_retrieval.eval.embedding.embed_benchmark import embed_benchmark
from scalar_retrieval.eval.run import evaluate
from scalar_retrieval.gallery.gallery import Gallery, GalleryWriter
from scalar_retrieval.modeling_scalar import MODALITIES, ScalarJointConfig, ScalarJointModel, load_model
from scalar_retrieval.modeling_scalar.model_identity import identify
from scalar_retrieval.trainer.cache_features import FeatureCollator, FeatureDataset, cache_features
from scalar_retrieval.trainer.data import ClipDataset, ScalarDataCollator
from scalar_retrieval.trainer.embeddings import EmbeddingDataset
from scalar_retrieval.trainer.lora import apply_adapters, count_parameters
from scalar_retrieval.trainer.recipe import parse_arguments
from scalar_retrieval.trainer.run import train
from scalar_retrieval.trainer.semantic_targets import SemanticTargets
from scalar_retrieval.trainer.training_args import ScalarTrainingArguments
from tests.conftest import ROOT
from tests.joint_encoders import write_joint_encoder
from tests.trainer.test_scalar_trainer import AFFINITIES, assert_same_step, give_effect, make_trainer, step

EVERY = "trunk,video,audio,heads"
QUIET = {"seed": 0, "views": 2, "batch_size": 2}
# What the sums of another order and the padding of a batch may change.
CLOSE = {"atol": 1e-6, "rtol": 1e-5}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A tiny encoder as it is published, and six short clips."""
    folder = tmp_path_factory.mktemp("joint-training")
    write_joint_encoder(folder / "encoder")
    generate(folder / "data", num_train=6, num_validation=0, num_test=1, num_proc=1)
    return folder


@pytest.fixture(scope="module")
def rows(place):
    """Of the six clips one lacks frames, two sound and one both: it has a subtitle."""

    def change(row, index):
        if index in (2, 3):
            row["video_path"] = None
        if index in (3, 4):
            row["audio_path"] = None
        return row | {"subtitle": f"subtitle {index}" if index in (0, 1, 3) else None}

    return load_benchmark("miniature", place / "data", "train").map(change, with_indices=True)


def load(place, adapter="trunk", random=True, **changes):
    """A model with this adapter, and its processor; `random` gives what starts at zero an effect."""
    changes |= {"has_heads": True} if "heads" in adapter else {}
    model, processor = load_model(place / "encoder", dtype=torch.float32, **changes)
    processor.num_train_frames = 2
    torch.manual_seed(0)
    model = apply_adapters(model, adapter, matching=False)
    if random:
        give_effect(model)
    return model, processor


def trainer_of(folder, model, dataset, collator, semantic_targets=AFFINITIES, **changes):
    fields = {
        "per_device_train_batch_size": 6, "full_view_probability": 0.3, "full_view_decay_steps": 0,
        "min_view_modalities": 1, "matching_weight": 0, "warmup_steps": 0, "adapter": "trunk",
    }  # fmt: skip
    trainer = make_trainer(folder, model, semantic_targets=semantic_targets, **fields | changes)
    trainer.train_dataset, trainer.data_collator = dataset, collator
    return trainer


def from_files(rows, processor, epoch=0):
    dataset = ClipDataset(rows, processor, QUIET["seed"])
    dataset.set_epoch(epoch)
    return ScalarDataCollator(processor)([dataset[index] for index in range(len(rows))])


# What is trained ----------------------------------------------------------------------------------------------------


def test_each_part_of_the_real_encoder_has_its_trainable_parameters():
    towers = EmbeddingGemma2Config(vision_config={}, audio_config={})
    with torch.device("meta"):
        model = ScalarJointModel(ScalarJointConfig(backbone_config=towers, has_heads=True))
        assert sum(parameter.numel() for parameter in model.parameters()) == 746_730_784
        found = count_parameters(apply_adapters(model, EVERY, matching=False))
    heads = {f"{name}_head": 768 * 768 for name in ("text", *MODALITIES)}
    assert found == {"language_model": 524_288, "vision_tower": 393_216, "audio_tower": 393_216} | heads


def test_what_the_objective_does_not_read_is_not_trained(place):
    def counts(adapter, **options):
        model, _ = load_model(place / "encoder", has_heads=True)
        return count_parameters(apply_adapters(model, adapter, matching=False, **options))

    assert set(counts("video,audio")) == {"vision_tower", "audio_tower"}
    read = {"modalities": ("video", "subtitle")}
    assert set(counts("trunk,heads", **read)) == {"language_model", "text_head", "video_head", "subtitle_head"}
    with pytest.raises(ValueError, match=r"names \['audio'\], but the score reads only \['video', 'subtitle'\]"):
        counts(EVERY, **read)


def test_adapters_that_do_not_fit_are_refused(place):
    model, _ = load_model(place / "encoder")
    for adapter, message in (("paper", "Adapters for three towers do not fit"), ("trunk,towers", "towers")):
        with pytest.raises(ValueError, match=message):
            apply_adapters(model, adapter, matching=False)
    # Inside an encoder of another library nothing is trained.
    model = SimpleNamespace(config=ScalarJointConfig(has_heads=True))
    for recipe in ("full", "video,heads"):
        with pytest.raises(ValueError, match="uses its encoder as published, without gradients"):
            apply_adapters(model, recipe, matching=False)


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        ({}, {"matching_weight": 0.1}, "no cross-encoder to train for matching. Set `matching_weight: 0`"),
        ({"modality_scale": [1.0, 2.0, 1.0]}, {}, "needs plain cosines, but this model calibrates them with"),
        ({}, {"fp16": True}, "gives NaN in float16. Train with `bf16: true`"),
    ],
)
def test_what_a_joint_encoder_cannot_do_is_refused(place, tmp_path, monkeypatch, config, changes, message):
    monkeypatch.setattr(ScalarTrainingArguments, "device", torch.device("cuda" if "fp16" in changes else "cpu"))
    model, _ = load(place, **config)
    with pytest.raises(ValueError, match=message):
        trainer_of(tmp_path, model, None, None, **changes)


# One step -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("adapter", "size"), [("trunk", 1), (EVERY, 4)])
def test_a_batch_in_parts_has_the_gradient_of_the_whole(place, rows, tmp_path, adapter, size):
    """Of the trunk alone the towers run once; in every part they run twice. Some parts of one clip have no sound."""

    def result(**options):
        model, processor = load(place, adapter)
        collator = ScalarDataCollator(processor)
        trainer = trainer_of(tmp_path, model, ClipDataset(rows, processor), collator, adapter=adapter, **options)
        batch = from_files(rows, processor)
        assert batch["modality_mask"].sum(dim=0).tolist() == [4, 3, 3]
        return step(trainer, batch)

    assert_same_step(result(mini_batch_size=size), result())


@pytest.fixture(scope="module")
def features(place, rows):
    """Soft tokens of two views of each clip."""
    model, processor = load(place)
    for dtype in ("float32", "float16"):
        cache_features(place / dtype, rows, model.get_base_model(), processor, dtype=dtype, **QUIET)
    return place


@pytest.mark.parametrize(("dtype", "tolerance", "epoch"), [("float32", 1e-4, 3), ("float16", 3e-2, 0)])
def test_a_step_from_stored_soft_tokens_is_the_step_from_files(features, rows, tmp_path, dtype, tolerance, epoch):
    results = []
    for stored in (False, True):
        model, processor = load(features)
        dataset = FeatureDataset(features / dtype, rows, model, processor)
        dataset.set_epoch(epoch)
        collator = FeatureCollator(processor)
        batch = collator([dataset[index] for index in range(6)]) if stored else from_files(rows, processor, epoch % 2)
        assert ("pixel_values_videos" in batch) != stored == ("video_soft_tokens" in batch)
        results.append(step(trainer_of(tmp_path, model, dataset, collator), batch))
    assert_same_step(*reversed(results), tolerance)
    assert len(results[0]["gradients"]) == 8


# Heads --------------------------------------------------------------------------------------------------------------


def embeds_of(model, processor, rows):
    batch = {name: value for name, value in from_files(rows, processor).items() if name != "clip_index"}
    with torch.no_grad():
        return model(**batch)


def test_heads_change_nothing_before_they_are_trained_and_then_what_they_say(place, rows):
    plain, processor = load(place, random=False)
    expected = embeds_of(plain, processor, rows)
    got = embeds_of(load(place, "heads", random=False)[0], processor, rows)
    torch.testing.assert_close(got.modality_embeds, expected.modality_embeds, atol=1e-6, rtol=0)
    torch.testing.assert_close(got.text_embeds, expected.text_embeds, atol=1e-6, rtol=0)
    trained, _ = load(place, "heads")
    got = embeds_of(trained, processor, rows)
    for name in ("text", *MODALITIES):
        before, after = (output[f"{name}_embeds"] for output in (expected, got))
        weight = getattr(trained.get_base_model(), f"{name}_head").modules_to_save.default.weight.detach()
        # Zero where a clip lacks the modality.
        torch.testing.assert_close(after, normalize(before + before @ weight.T, dim=1), **CLOSE)
        assert ((after - before).abs().amax(1) > 1e-2).equal(before.any(1))


@pytest.fixture(scope="module")
def gallery(place):
    return embed_benchmark(
        place / "gallery", place / "encoder", "miniature", place / "data", "train", dtype="float32", progress=False
    ).path


def dataset_of(place, gallery, model, processor, rows=None):
    rows = load_benchmark("miniature", place / "data", "train") if rows is None else rows
    name = str(place / "encoder")
    return EmbeddingDataset(gallery, rows, model, processor, name, identify(name).fingerprint, progress=False)


def test_captions_that_a_gallery_lacks_are_embedded_without_heads_as_it_was(place, gallery):
    rows = load_benchmark("miniature", place / "data", "train")
    rows = rows.select([4]).map(lambda row: {"caption": "a new one"})
    model, processor = load(place, "heads", random=False)
    fresh = dataset_of(place, gallery, model, processor, rows)
    with torch.no_grad():
        expected = model.get_base_model().get_text_features(**processor(text=rows["caption"])).pooler_output
    torch.testing.assert_close(fresh[0]["text_pooled"], expected[0], **CLOSE)
    continued = dataset_of(place, gallery, *load(place, "heads"), rows)
    assert continued.identity() == fresh.identity() and "stored vectors" in fresh.identity()


def test_a_gallery_that_does_not_fit_is_refused(place, gallery):
    model, processor = load(place, "heads", random=False)
    rows = load_benchmark("miniature", place / "data", "test")
    with pytest.raises(ValueError, match="Embeddings of different models cannot be compared"):
        EmbeddingDataset(gallery, rows, model, processor, "another", "0" * 64)
    with pytest.raises(ValueError, match="1 of 1 clips are not in the gallery"):
        dataset_of(place, gallery, model, processor, rows)
    with pytest.raises(ValueError, match=r"this run trains \['language_model'\] of it. Set `features` to null or"):
        dataset_of(place, gallery, *load(place, "trunk,heads"))
    merged = load(place, "heads")[0].merge_and_unload()
    with pytest.raises(ValueError, match="The heads of this model are already trained"):
        dataset_of(place, gallery, apply_adapters(merged, "heads", matching=False), processor)


def test_heads_are_trained_from_a_gallery_of_an_encoder_without_gradients(tmp_path):
    """Of a SentenceTransformer, which is used as published: the heads alone are saved, and found with their base."""
    table = tmp_path / "own.csv"
    words = ("a low bell", "a red star", "dogs bark", "a man laughs", "rain falls", "high waves")
    lines = [f"clip{number},{text},we hear {text}," for number, text in enumerate(words)]
    table.write_text("\n".join(["video_id,caption,subtitle,video_path", *lines]))

    def embed(name, model):
        return embed_benchmark(tmp_path / name, model, "own", table, "train", dtype="float32", progress=False)

    gallery = embed("gallery", "light").path
    recipe = {
        "model": "light", "benchmark": "own", "root": str(table), "features": str(gallery), "adapter": "heads",
        "output_dir": str(tmp_path / "run"), "matching_weight": 0, "semantic_weight": 0, "max_steps": 2,
        "per_device_train_batch_size": 256, "learning_rate": 5e-2, "fp16": False, "loss_warmup_steps": 0,
        "full_view_decay_steps": 0, "dataloader_num_workers": 0, "use_cpu": True, "disable_tqdm": True,
        "mini_batch_size": 2, "eval_split": "train", "eval_strategy": "epoch", "resume_from_checkpoint": "auto",
    }  # fmt: skip
    recipe_file = str(tmp_path / "recipe.json")  # which is YAML
    (tmp_path / "recipe.json").write_text(json.dumps(recipe))
    for _ in range(2):  # the second time the run has ended, though its batch was lowered
        assert train(*parse_arguments([recipe_file]))
    trained = json.loads((tmp_path / "run" / "recipe.json").read_text())
    assert trained["per_device_train_batch_size"] == 6  # there are no more clips

    # A gallery behind the heads is what the model with heads embeds.
    with GalleryWriter(gallery) as writer:
        writer.metadata |= {"scales": "30 texts"}
        writer.commit()
    before, changed = Gallery.open(gallery), rehead(gallery, str(tmp_path / "run"), tmp_path / "changed")
    anew = embed("anew", tmp_path / "run")
    torch.testing.assert_close(changed.modality_embeds(), anew.modality_embeds(), atol=1e-5, rtol=0)
    assert (changed.modality_embeds() - before.modality_embeds()).abs().max() > 1e-2
    embeds = [torch.tensor(one.queries.column("embedding").to_pylist()) for one in (changed, anew)]
    torch.testing.assert_close(*embeds, atol=1e-5, rtol=0)
    assert changed.fingerprint == anew.fingerprint != before.fingerprint and changed.clip_ids == anew.clip_ids
    assert changed.metadata["weights"] == anew.metadata["weights"] and "scales" not in changed.metadata

    # The heads are continued on the same gallery, which is that of their base.
    again = ["--model", tmp_path / "run", "--output_dir", tmp_path / "again", "--learning_rate", "0"]
    train(*parse_arguments([recipe_file, *map(str, again)]))
    weights = [(tmp_path / name / "adapter_model.safetensors").read_bytes() for name in ("run", "again")]
    records = [json.loads((tmp_path / name / "training.json").read_text()) for name in ("run", "again")]
    assert weights[0] == weights[1] and records[0]["clips"] == records[1]["clips"] and not records[0]["resumed"]
    assert records[1]["continues"]["training"] == records[0]


# Runs ---------------------------------------------------------------------------------------------------------------


COLUMNS = {"video_id": "clip", "caption": "text"}
OWN = ["--column", "video_id=clip", "--column", "caption=text", "--holdout", "0.5"]


def own_clips(folder, place):
    """A working folder as the recipes name it: the encoder by its id, and a table of captioned clips."""
    shutil.copytree(place / "encoder", folder / "google" / "embeddinggemma-2")
    (folder / "data").mkdir(parents=True)
    rows = load_benchmark("miniature", place / "data", "train")
    renamed = rows.rename_columns({"video_id": "clip", "caption": "text", "video_path": "path"})
    renamed.select_columns(["clip", "text", "path", "subtitle"]).to_csv(folder / "data" / "own.csv", index=False)
    return folder


@pytest.mark.e2e
def test_one_command_makes_an_adapter_and_its_evaluation_of_a_table_of_ones_own(place, tmp_path, monkeypatch):
    monkeypatch.chdir(own_clips(tmp_path, place))
    fields = [*OWN, "--per_device_train_batch_size", "2", "--dataloader_num_workers", "0", "--max_steps", "2"]
    assert train(*parse_arguments([str(ROOT / "recipes" / "joint.yaml"), *fields, "--use_cpu", "true"]))
    folder, table = tmp_path / "runs" / "joint", tmp_path / "data" / "own.csv"
    record = json.loads((folder / "training.json").read_text())
    assert record["trainable_parameters"] == {"language_model": 1_088}
    assert record["precision"] == "float32, computed in bfloat16"
    model, _ = load_model(folder)
    trained = {name: value for name, value in model.named_parameters() if ".lora_B" in name}
    assert len(trained) == 4 and max(value.abs().max() for value in trained.values()) > 1e-6

    sides = {name: load_benchmark("own", table, name, columns=COLUMNS, holdout=0.5) for name in ("train", "test")}
    SemanticTargets(folder / "semantic_targets.safetensors").check(sides["train"])
    results = json.loads((folder / "results" / "results.json").read_text())
    assert (results["split"], results["trained_on"]) == ("test", 0)
    assert results["retrieval"]["num_clips"] == len(sides["test"])
    # Evaluated on the whole table, the clips that it was trained on are counted.
    results = evaluate(folder, "own", table, columns=COLUMNS, rates=(0.0,), progress=False)
    assert (results["split"], results["trained_on"]) == ("train", len(sides["train"]))
