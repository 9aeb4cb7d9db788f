"""A Trainer like any other: rows in, a session of Python, evaluations, predictions and searches."""

import datasets
import pytest
import torch

from scalar_retrieval.modeling_scalar import load_model
from scalar_retrieval.trainer.data import check_rows
from scalar_retrieval.trainer.objectives import Objective
from scalar_retrieval.trainer.scalar_trainer import ScalarTrainer
from scalar_retrieval.trainer.semantic_targets import SemanticTargets, make_semantic_targets
from scalar_retrieval.trainer.training_args import METRICS, ScalarTrainingArguments
from tests.gallery.decoding.reading import write_media
from tests.joint_encoders import write_joint_encoder
from tests.media_corpus import picture

CAPTIONS = ["a red circle", "the blue square", "a dog barks", "a cat meows"]
QUICK = {
    "per_device_train_batch_size": 4, "max_steps": 2, "use_cpu": True, "disable_tqdm": True, "learning_rate": 1e-2,
    "warmup_steps": 0, "full_view_decay_steps": 0, "loss_warmup_steps": 0, "logging_steps": 1, "adapter": "heads",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_model_dir):
    """Four short films with sound, and a joint encoder as it is published."""
    folder = tmp_path_factory.mktemp("session")
    for number in range(4):
        pictures = lambda index, number=number: picture(index + 20 * number)  # noqa: E731
        write_media(folder / f"{number}.mp4", num_frames=4 + number, seconds_of_audio=0.5, pictures=pictures)
    write_joint_encoder(folder / "encoder")
    (folder / "towers").symlink_to(tiny_model_dir)
    return folder


@pytest.fixture
def rows(folder):
    paths = [str(folder / f"{number}.mp4") for number in range(4)]
    return datasets.Dataset.from_dict({"caption": CAPTIONS, "video_path": paths})


def trainer_of(place, output, rows, *, fields=(), **options):
    model, processor = load_model(place)
    args = ScalarTrainingArguments(str(output), **QUICK | dict(fields))
    return ScalarTrainer(model, args, train_dataset=rows, processing_class=processor, **options)


def scores_of(model, processor, rows):
    texts, clips = rows["caption"][:], rows["video_path"][:]
    with torch.no_grad():
        return model.eval()(**processor(text=texts, videos=clips)).scores


class Margin(Objective):
    """A loss of one's own: each text's clip should score higher than the others by a margin."""

    def forward(self, batch, step):
        scores, rows = batch.text_to_clip, batch.rows
        own = scores.diagonal(rows.offset)[:, None]
        return {"margin": (2.0, (scores - own + 0.2).relu().sum() / rows.mean / rows.total)}


# The session ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "objective"), [("towers", None), ("encoder", Margin())])
def test_the_session_of_the_readme(folder, rows, tmp_path, caplog, kind, objective):
    trainer = trainer_of(folder / kind, tmp_path, rows, eval_dataset={"val": rows}, objective=objective)
    processor = trainer.processor
    processor.num_frames = processor.num_train_frames = 2
    before = scores_of(load_model(folder / kind)[0], processor, rows)
    trainer.train()
    measured = trainer.evaluate()
    trainer.save_model()
    assert {f"eval_val_{name}" for name in METRICS} <= measured.keys()
    loaded, own_processor = load_model(tmp_path)
    after = scores_of(loaded, own_processor, rows)
    torch.testing.assert_close(after, scores_of(trainer.model, processor, rows), atol=1e-6, rtol=0)
    assert (after - before).abs().max() > 1e-4 and "first save the model" not in caplog.text
    logged = {name for entry in trainer.state.log_history for name in entry}
    assert ("loss_margin" in logged) == (objective is not None) and "loss_sem" not in logged
    assert ("training without L_sem" in caplog.text) == (objective is None)
    if objective is not None:  # and nothing else, by its weight, of the complete views
        entry = trainer.state.log_history[0]
        assert entry["loss"] == pytest.approx(2 * entry["loss_margin"], abs=1e-4)
        assert entry["p_full"] == 1 and not {"loss_align", "loss_dam"} & logged

    # An adapter is continued and never dropped.
    with pytest.raises(ValueError, match="has an adapter inside: load it with `load_model.*trainable=True"):
        ScalarTrainer(loaded, trainer.args)
    model, _ = load_model(tmp_path, trainable=True)
    again = ScalarTrainer(model, trainer.args, train_dataset=rows, processing_class=processor, objective=objective)
    assert again.model is model and torch.equal(scores_of(again.model, processor, rows), after)


# Rows ----------------------------------------------------------------------------------------------------------------


def batch_of(trainer):
    return trainer.data_collator([trainer.train_dataset[index] for index in range(4)])


SAME = {
    "videos": lambda rows: rows.cast_column("video_path", datasets.Video()),
    "undecoded videos": lambda rows: rows.rename_column("video_path", "video").cast_column(
        "video", datasets.Video(decode=False)
    ),
    "sound": lambda rows: rows.add_column("audio_path", rows["video_path"]),
    "nothing": lambda rows: rows.add_column("subtitle", [None] * 4).add_column("video_id", rows["video_path"]),
}


@pytest.mark.parametrize("name", SAME)
def test_columns_that_say_the_same_give_the_same_batch(folder, rows, tmp_path, name):
    expected = batch_of(trainer_of(folder / "towers", tmp_path, rows))
    batch = batch_of(trainer_of(folder / "towers", tmp_path, SAME[name](rows)))
    torch.testing.assert_close(batch, expected, atol=0, rtol=0)
    assert expected["modality_mask"].tolist() == [[True, True, False]] * 4


def test_sound_is_that_of_the_video_unless_its_column_says_otherwise(folder, rows, tmp_path):
    without = rows.add_column("audio_path", [None, None, *rows["video_path"][2:]])
    mask = batch_of(trainer_of(folder / "towers", tmp_path, without))["modality_mask"]
    assert mask[:, 1].tolist() == [False, False, True, True]


def test_rows_of_one_file_are_one_clip(folder, rows, tmp_path):
    twice = datasets.concatenate_datasets([rows, rows.map(lambda row: {"caption": row["caption"] + " dog"})])
    trainer = trainer_of(folder / "towers", tmp_path, twice)
    assert trainer._clips.tolist() == [0, 1, 2, 3] * 2
    assert trainer.predict(twice).predictions[0].shape[0] == 4


REFUSED = {
    "a stream": (lambda rows: rows.to_iterable_dataset(), "got IterableDataset"),
    "no row": (lambda rows: rows.select([]), "has no rows"),
    "no caption": (lambda rows: rows.remove_columns("caption"), r"has the columns \['video_path'\]. Each row needs"),
    "nothing of a clip": (lambda rows: rows.remove_columns("video_path"), "has the columns .*at least one of"),
    "two columns of videos": (lambda rows: rows.add_column("video", rows["video_path"]), "has the columns"),
    "an empty caption": (lambda rows: rows.map(lambda row: {"caption": " "}), "has no caption, got ' '"),
    "numbers": (
        lambda rows: rows.remove_columns("caption").add_column("caption", [1, 2, 3, 4]),
        "Row 0 of `train_dataset`: 'caption' must be a text, got 1",
    ),
    "bytes": (
        lambda rows: rows.map(lambda row: {"video_path": {"bytes": b"0", "path": None}}).cast_column(
            "video_path", datasets.Video(decode=False)
        ),
        "Row 0 of `train_dataset` holds the bytes of a video",
    ),
    "a clip without a file": (
        lambda rows: rows.map(lambda row: {"video_path": None}),
        "Row 0 of `train_dataset` names no file, so it needs a `video_id`",
    ),
    "a clip of nothing": (
        lambda rows: rows.map(lambda row: {"video_path": None, "video_id": "a"}),
        "The clip 'a' of `train_dataset` has neither a file nor a text",
    ),
    "missing files": (
        lambda rows: rows.map(lambda row: {"video_path": "no" + row["video_path"]}),
        r"4 files of `train_dataset` do not exist: .*3\.mp4",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_rows_that_cannot_be_trained_on_are_refused_at_the_start(folder, rows, tmp_path, name):
    change, message = REFUSED[name]
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        trainer_of(folder / "towers", tmp_path, change(rows))


def test_rows_to_evaluate_on_are_checked_at_the_start_too(folder, rows, tmp_path):
    wrong = rows.remove_columns("caption")
    with pytest.raises(ValueError, match=r"`eval_dataset\['val'\]` has the columns"):
        trainer_of(folder / "towers", tmp_path, rows, eval_dataset={"val": wrong})
    trainer = trainer_of(folder / "towers", tmp_path, rows)
    with pytest.raises(ValueError, match="`eval_dataset` has the columns"):
        trainer.evaluate(wrong)
    with pytest.raises(ValueError, match="needs an `eval_dataset`"):
        trainer.evaluate()
    with pytest.raises(ValueError, match="Rows need a `processing_class`"):
        ScalarTrainer(load_model(folder / "towers")[0], trainer.args, train_dataset=rows)


def test_columns_that_nothing_reads_are_named(folder, rows, tmp_path, caplog):
    trainer_of(folder / "towers", tmp_path, rows.add_column("mood", list("abcd")))
    assert "The model does not embed mood: it embeds video, audio, subtitle." in caplog.text


# Models --------------------------------------------------------------------------------------------------------------


def test_an_adapter_of_a_model_that_was_never_saved_is_said(tmp_path, caplog, tiny_model):
    ScalarTrainer(tiny_model, ScalarTrainingArguments(str(tmp_path), **QUICK))
    assert "first save the model, and load it" in caplog.text


def test_the_weights_of_a_new_adapter_follow_from_the_seed(folder, rows, tmp_path):
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(len(drawn))
        trainer = trainer_of(folder / "towers", tmp_path, rows, fields={"seed": seed, "adapter": "paper"})
        drawn.append(next(value for name, value in trainer.model.named_parameters() if ".lora_A" in name))
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])


def test_weights_in_half_precision_are_trained_in_single(folder, tmp_path, caplog):
    model, _ = load_model(folder / "encoder", dtype=torch.bfloat16)
    trainer = ScalarTrainer(model, ScalarTrainingArguments(str(tmp_path), **QUICK))
    assert {value.dtype for value in trainer.model.parameters()} == {torch.float32}
    assert "loaded in torch.bfloat16, are trained in float32" in caplog.text


def test_a_temperature_is_added_if_it_is_to_be_learned(folder, rows, tmp_path):
    fields = {"learnable_temperature": True, "calibration_weight": 0.0, "temperature": 0.3}
    trainer = trainer_of(folder / "encoder", tmp_path, rows, fields=fields)
    assert trainer.scalar_model.logit_scale().item() == pytest.approx(0.3)
    trainer.train()
    trainer.save_model()
    learned = trainer.scalar_model.logit_scale().item()
    assert learned != pytest.approx(0.3, abs=1e-4)
    assert load_model(tmp_path)[0].logit_scale().item() == pytest.approx(learned)


# Weights that were not given -----------------------------------------------------------------------------------------


def test_targets_decide_whether_their_term_is_trained_unless_its_weight_is_given(folder, rows, tmp_path):
    with pytest.raises(ValueError, match="needs `semantic_targets`: create them with"):
        trainer_of(folder / "towers", tmp_path, rows, fields={"semantic_weight": 1.0})
    complete = check_rows(rows, ("video",), "rows")
    make_semantic_targets(complete, tmp_path / "targets", "light", num_neighbors=2, progress=False)
    targets = SemanticTargets(tmp_path / "targets")
    assert trainer_of(folder / "towers", tmp_path, rows, semantic_targets=targets).args.semantic_weight == 1
    with pytest.raises(ValueError, match="order differ from the 4 rows"):
        trainer_of(folder / "towers", tmp_path, rows.select([1, 0, 2, 3]), semantic_targets=targets)


def test_a_joint_encoder_is_trained_without_matching(folder, rows, tmp_path):
    assert trainer_of(folder / "encoder", tmp_path, rows).args.matching_weight == 0
    assert trainer_of(folder / "towers", tmp_path, rows).args.matching_weight == 0.1


# Evaluations and predictions -----------------------------------------------------------------------------------------


def reciprocal(prediction):
    assert prediction.predictions.shape == (4, 4) and prediction.label_ids.tolist() == [[n, n] for n in range(4)]
    own = prediction.predictions.diagonal()
    found = (prediction.predictions > own[:, None]).sum(1) + 1
    assert prediction.ranks["text_to_video"].tolist() == found.tolist()
    return {"reciprocal_rank": float((1 / found).mean())}


def test_a_metric_of_ones_own_of_one_of_several_sets_chooses_the_best_checkpoint(folder, rows, tmp_path):
    every = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
    every |= {"load_best_model_at_end": True, "metric_for_best_model": "b_reciprocal_rank"}
    data = {"eval_dataset": {"a": rows, "b": rows}, "compute_metrics": reciprocal}
    trainer = trainer_of(folder / "towers", tmp_path, rows, fields=every, **data)
    trainer.train()
    name = "eval_b_reciprocal_rank"
    measured = [entry[name] for entry in trainer.state.log_history if name in entry]
    assert trainer.state.best_metric == max(measured) and len(measured) == 2
    trainer.compute_metrics = lambda prediction: {"mean_recall_at_1": 0.0}
    with pytest.raises(ValueError, match=r"\['mean_recall_at_1'\] are measured already"):
        trainer.evaluate()


def test_predictions_are_embeddings_and_with_captions_metrics(folder, rows, tmp_path):
    trainer = trainer_of(folder / "towers", tmp_path, rows, compute_metrics=reciprocal)
    (clips, mask, texts), pairs, metrics = trainer.predict(rows)
    assert clips.shape == (4, 3, 16) and mask.tolist() == [[True, True, False]] * 4 and texts.shape == (4, 16)
    assert pairs.tolist() == [[number, number] for number in range(4)]
    assert {f"test_{name}" for name in (*METRICS, "reciprocal_rank")} == metrics.keys()
    (alone, same_mask), *nothing = trainer.predict(rows.remove_columns("caption"))
    assert (alone == clips).all() and (same_mask == mask).all() and nothing == [None, None]


# A new model for each training ---------------------------------------------------------------------------------------


def test_a_function_gives_a_new_model_to_each_training(folder, rows, tmp_path):
    args = ScalarTrainingArguments(str(tmp_path), **QUICK)
    data = {"train_dataset": rows, "processing_class": load_model(folder / "towers")[1]}
    trainer = ScalarTrainer(None, args, model_init=lambda: load_model(folder / "towers")[0], **data)
    weights = []
    for _ in range(2):
        trainer.train()
        weights.append([value.detach() for value in trainer.model.parameters() if value.requires_grad])
    assert all(map(torch.equal, *weights)) and weights[0][0] is not weights[1][0]


def test_hyperparameters_are_searched(folder, rows, tmp_path):
    """Each trial trains a new model with the adapter and the weights of the trial."""
    optuna = pytest.importorskip("optuna")
    seen = []

    def space(trial):
        adapter = trial.suggest_categorical("adapter", ["heads", "paper"])
        return {"adapter": adapter, "temperature": {"heads": 0.1, "paper": 0.3}[adapter]}

    def objective(metrics):
        has_matrices = any(".lora_" in name for name, _ in trainer.model.named_parameters())
        seen.append((has_matrices, trainer.loss_terms.args.temperature))
        return metrics["eval_mean_recall_at_1"]

    args = ScalarTrainingArguments(str(tmp_path), **QUICK | {"eval_strategy": "steps", "eval_steps": 2})
    data = {"train_dataset": rows, "eval_dataset": rows, "processing_class": load_model(folder / "towers")[1]}
    trainer = ScalarTrainer(None, args, model_init=lambda: load_model(folder / "towers")[0], **data)
    both = optuna.samplers.GridSampler({"adapter": ["heads", "paper"]})
    trainer.hyperparameter_search(space, objective, n_trials=2, sampler=both, direction="maximize", backend="optuna")
    assert set(seen) == {(False, 0.1), (True, 0.3)}
