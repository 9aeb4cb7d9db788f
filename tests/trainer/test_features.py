"""Training from cached features is training from the files: the same views, presence and results."""

import copy

import datasets
import pytest
import torch
from typer.testing import CliRunner

from evidence.miniature.generation import generate
from scalar_retrieval.eval.benchmarks.registry import load_benchmark
from scalar_retrieval.gallery.decoding import tolerant
from scalar_retrieval.modeling_scalar import MODALITIES, ScalarImageProcessor, ScalarModel, ScalarProcessor
from scalar_retrieval.trainer import cache_features as module
from scalar_retrieval.trainer.cache_features import FeatureCollator, FeatureDataset, app, cache_features, checksums
from scalar_retrieval.trainer.data import ClipDataset, ScalarDataCollator
from scalar_retrieval.trainer.lora import apply_adapters
from tests.conftest import make_tiny_config
from tests.trainer.test_scalar_trainer import assert_same_step, give_effect, make_trainer, step

SEED, VIEWS = 7, 2
QUIET = {"seed": SEED, "views": VIEWS, "batch_size": 4}
WITHOUT_VIDEO, WITHOUT_AUDIO = {8}, {1, 5, 6}  # of row 5 the file alone knows


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("miniature")
    generate(folder, num_train=10, num_validation=0, num_test=1, seed=3, num_proc=1)
    return folder


@pytest.fixture(scope="module")
def rows(root):
    def change(row, index):
        if index in WITHOUT_VIDEO:
            row["video_path"] = None
        if index == 1:
            row["audio_path"] = None
        if index == 5:
            assert row["audio_path"] is None
            row["audio_path"] = row["video_path"]
        return row

    return load_benchmark("miniature", root, "train").map(change, with_indices=True)


@pytest.fixture
def model():
    """A model of which the paper's recipe trains a part; the seed makes it the same every time."""
    return make_model()


def make_model(seed=0, recipe="paper", **config):
    torch.manual_seed(seed)
    return apply_adapters(ScalarModel(make_tiny_config(**config)), recipe)


@pytest.fixture(scope="module")
def folders(tmp_path_factory, rows, tiny_processor):
    """The features in both precisions."""
    base = tmp_path_factory.mktemp("features")
    for dtype in ("float32", "float16"):
        cache_features(base / dtype, rows, make_model().get_base_model(), tiny_processor, dtype=dtype, **QUIET)
    return base


@pytest.mark.parametrize(("dtype", "tolerance", "epoch"), [("float32", 1e-4, 3), ("float16", 3e-2, 0)])
def test_a_step_from_features_is_the_step_from_files(rows, tiny_processor, folders, tmp_path, dtype, tolerance, epoch):
    """Tokens of a subtitle are the text tower's, which is trained: they are encoded in each step."""
    steps = []
    for stored in (False, True):
        model = make_model(condition_on=MODALITIES)
        give_effect(model)
        dataset, collator = ClipDataset(rows, tiny_processor, SEED), ScalarDataCollator(tiny_processor)
        dataset.set_epoch(epoch % VIEWS)
        if stored:
            dataset = FeatureDataset(folders / dtype, rows, model, tiny_processor)
            dataset.set_epoch(epoch)
            collator = FeatureCollator(tiny_processor)
        batch = collator([dataset[i] for i in range(10)])
        assert ("video_pooled" in batch) == stored
        for index, absent in enumerate((WITHOUT_VIDEO, WITHOUT_AUDIO)):
            assert set((~batch["modality_mask"][:, index]).nonzero().flatten().tolist()) == absent
        steps.append(step(make_trainer(tmp_path, model=model), batch))
    assert any("subtitle_condition" in name for name in steps[0]["gradients"])
    assert_same_step(*steps, tolerance)


# Interruption -----------------------------------------------------------------------------------------------------


def test_an_interrupted_run_computes_only_unfinished_shards(
    tmp_path, monkeypatch, model, rows, tiny_processor, folders
):
    """In a folder that is named relatively."""
    compute, computed = module._tower_features, []

    def count(*arguments):
        computed.append(arguments)
        if len(computed) == 4:
            raise KeyboardInterrupt
        return compute(*arguments)

    def batch_of(folder):
        dataset = FeatureDataset(folder, rows, model, tiny_processor)
        dataset.set_epoch(1)
        return FeatureCollator(tiny_processor)([dataset[i] for i in range(10)])

    arguments = "features", rows, model.get_base_model(), tiny_processor
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "_PER_SHARD", 4)
    monkeypatch.setattr(module, "_tower_features", count)
    with pytest.raises(KeyboardInterrupt):
        cache_features(*arguments, dtype="float16", **QUIET)
    with pytest.raises(FileNotFoundError, match="no finished features"):
        batch_of("features")
    for _ in range(2):  # the second time, nothing is computed
        cache_features(*arguments, dtype="float16", **QUIET)
    assert len(computed) == 3 * VIEWS + 1
    torch.testing.assert_close(batch_of("features"), batch_of(folders / "float16"), atol=0, rtol=0)


# Refusals ---------------------------------------------------------------------------------------------------------


FOUR_HEADS = make_tiny_config().vision_config.to_dict() | {"num_attention_heads": 4}


@pytest.mark.parametrize(
    ("recipe", "changes", "message"),
    [
        ("paper", {"seed": 1}, "These differ: the vision and audio towers"),
        ("paper", {"vision_pooling": "mean"}, "These differ: the vision and audio towers"),
        ("paper", {"vision_config": FOUR_HEADS}, "These differ: the vision and audio towers"),
        ("paper", {"train_flip": False}, "These differ: the settings of the image processor"),
        ("paper", {"subtitle": "hello"}, "These differ: the clips"),
        ("all_towers", {}, "vision_model must be frozen to train from features, but has trainable parameters"),
    ],
)
def test_features_of_something_else_are_refused(recipe, changes, message, rows, tiny_processor, folders):
    """Pooling and the number of heads leave no trace in the weights."""
    changes = dict(changes)
    processor = copy.copy(tiny_processor)
    if "train_flip" in changes:
        processor.image_processor = ScalarImageProcessor(image_size=32, train_flip=changes.pop("train_flip"))
    if "subtitle" in changes:
        subtitle = changes.pop("subtitle")
        rows = rows.map(lambda row: {"subtitle": subtitle})
    with pytest.raises(ValueError, match=message):
        FeatureDataset(folders / "float16", rows, make_model(recipe=recipe, **changes), processor)


def test_what_features_do_not_depend_on_may_change(tmp_path, model, rows, tiny_processor, folders):
    tiny_processor.save_pretrained(tmp_path)
    processor = ScalarProcessor.from_pretrained(tmp_path)
    processor.max_text_length, processor.num_frames = 12, 5
    torch.nn.init.normal_(model.get_base_model().text_projection.weight)
    elsewhere = rows.map(
        lambda row: {"caption": "another", "video_path": row["video_path"] and "/x/" + row["video_path"]}
    )
    dataset = FeatureDataset(folders / "float16", elsewhere, model, processor)
    assert dataset[0]["caption"] == "another"


def test_without_states_and_without_any_sound_clips_are_embedded(tmp_path, model, rows, tiny_processor):
    silent = rows.select([0, 2, 3]).map(lambda row: {"audio_path": None})
    cache_features(tmp_path, silent, model.get_base_model(), tiny_processor, with_states=False, **QUIET)
    dataset = FeatureDataset(tmp_path, silent, model, tiny_processor)
    batch = FeatureCollator(tiny_processor)([dataset[i] for i in range(3)])
    assert "video_pooled" in batch and not any("states" in name for name in batch)
    assert batch["modality_mask"][:, :2].tolist() == [[True, False]] * 3


def test_values_that_half_precision_cannot_hold_are_refused(tmp_path, model, rows, tiny_processor):
    base = model.get_base_model()
    torch.nn.init.constant_(base.vision_model.post_layernorm.bias, 1e5)
    with pytest.raises(ValueError, match="video_pooled.*float16"):
        cache_features(tmp_path, rows, base, tiny_processor, **QUIET)


def test_what_cannot_be_read_is_an_error_or_counts_as_absent(tmp_path, model, rows, tiny_processor):
    (tmp_path / "broken.mp4").write_bytes(b"no video")
    broken = rows.select([3]).map(lambda row: {"video_path": str(tmp_path / "broken.mp4")})
    base = model.get_base_model()
    with pytest.raises(ValueError, match="mini_train_000003"):
        cache_features(tmp_path / "raise", broken, base, tiny_processor, **QUIET)
    cache_features(tmp_path / "missing", broken, base, tolerant(tiny_processor), **QUIET)
    dataset = FeatureDataset(tmp_path / "missing", broken, model, tiny_processor)
    assert dataset.processor.reader.on_error == "missing" and "video_pooled" not in dataset[0]


# Command ----------------------------------------------------------------------------------------------------------


def test_the_command_writes_features_that_a_training_can_open(tmp_path, root, tiny_model_dir, tiny_processor):
    arguments = ["--model", tiny_model_dir, "--benchmark", "miniature", "--root", root, "--output", tmp_path / "out"]
    arguments = list(map(str, arguments))
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0 and "1 views" in result.output
    rows = load_benchmark("miniature", root, "train")
    model = apply_adapters(ScalarModel.from_pretrained(tiny_model_dir), "paper")
    assert len(FeatureDataset(tmp_path / "out", rows, model, tiny_processor)) == 10
    result = CliRunner().invoke(app, [*arguments, "--views", "2"])
    assert result.exit_code == 1 and "['views']" in result.output


@pytest.mark.parametrize("change", [{"vision_pooling": "mean"}, {"vision_config": {"num_attention_heads": 4}}])
def test_towers_of_the_same_weights_that_compute_something_else_are_distinguished(tiny_processor, change):
    """Pooling and the number of heads leave no trace in the weights."""
    plain = make_tiny_config()
    vision = plain.vision_config.to_dict() | change.get("vision_config", {})
    rows = datasets.Dataset.from_list([{"video_id": "a", "video_path": None, "audio_path": None, "subtitle": "hello"}])
    digests = []
    for config in (plain, make_tiny_config(**change | {"vision_config": vision})):
        torch.manual_seed(0)
        digests.append(checksums(ScalarModel(config), tiny_processor, rows))
    assert digests[0]["towers"] != digests[1]["towers"] and digests[0]["processor"] == digests[1]["processor"]
    torch.manual_seed(0)
    assert checksums(ScalarModel(make_tiny_config()), tiny_processor, rows) == digests[0]
