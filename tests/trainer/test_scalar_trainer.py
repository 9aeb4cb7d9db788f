"""Training steps: who gets a gradient, what is computed, that it learns, resumes exactly, and does not care how many
processes share a batch."""

import json
import math
import socket
from pathlib import Path
from types import SimpleNamespace

import datasets
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from scalar_retrieval.modeling_scalar import MODALITIES, Clip, ScalarModel
from scalar_retrieval.modeling_scalar.scores_scalar import METHODS, register_method
from scalar_retrieval.trainer.data import ClipDataset, ScalarDataCollator
from scalar_retrieval.trainer.lora import apply_adapters
from scalar_retrieval.trainer.losses import info_nce
from scalar_retrieval.trainer.objectives import Objective
from scalar_retrieval.trainer.scalar_trainer import ScalarTrainer
from scalar_retrieval.trainer.training_args import ScalarTrainingArguments
from tests.conftest import make_batch, make_tiny_config
from tests.gallery.decoding.reading import write_media

ROOT = Path(__file__).resolve().parents[2]


class Batches(torch.utils.data.Dataset):
    """Ready-made examples: rows of a fixed random batch."""

    def __init__(self, size=8, mask=None, dtype=torch.float32):
        batch = make_batch(size, seed=3)
        self.batch = {name: value.to(dtype) if value.is_floating_point() else value for name, value in batch.items()}
        if mask is not None:
            self.batch["modality_mask"] = mask

    def __len__(self):
        return len(self.batch["input_ids"])

    def __getitem__(self, index):
        return {name: value[index] for name, value in self.batch.items()} | {"clip_index": index}


class Affinities:
    """Semantic targets of a data set of any size: known for neighbouring rows."""

    def affinities(self, rows, columns, semantic_temperature=0.5):
        distance = (rows[:, None] - columns).abs()
        return torch.where(distance < 3, 0.3 ** distance.float(), torch.zeros(()))


AFFINITIES = Affinities()
EVAL_ROWS = datasets.Dataset.from_dict({"video_id": ["a", "b"], "caption": ["a dog", "a cat"], "subtitle": ["x", "y"]})
ANY_PROCESSOR = SimpleNamespace(modalities=MODALITIES)


def make_trainer(
    folder,
    model=None,
    mask=None,
    size=8,
    aggregation="scalar",
    double=False,
    eval_dataset=None,
    given_objective=None,
    semantic_targets=AFFINITIES,
    condition_on=("video", "audio"),
    clips=None,
    **changes,
):
    torch.manual_seed(0)
    fields = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 4,
        "max_steps": 1,
        "learning_rate": 1e-3,
        "use_cpu": True,
        "save_strategy": "no",
        "disable_tqdm": True,
        "report_to": [],
        "seed": 0,
        "loss_warmup_steps": 0,
    }
    args = ScalarTrainingArguments(**fields | changes)
    if model is None:
        learnable = args.learnable_temperature
        config = {"aggregation": aggregation, "has_logit_scale": learnable, "condition_on": condition_on}
        model = ScalarModel(make_tiny_config(**config))
    dtype = torch.float64 if double else torch.float32
    model = model.to(dtype)
    data = {"train_dataset": Batches(size, mask, dtype), "eval_dataset": eval_dataset}
    data |= {"processing_class": ANY_PROCESSOR, "semantic_targets": semantic_targets}
    trainer = ScalarTrainer(model, args, objective=given_objective, **data)
    if clips is not None:
        trainer._clips = torch.tensor(clips)
    return trainer


def collate(trainer, rows=4):
    return trainer.data_collator([trainer.train_dataset[i] for i in range(rows)])


def give_effect(model):
    """Give what starts at zero, such as the B of LoRA, small values."""
    torch.manual_seed(5)
    for parameter in model.parameters():
        if parameter.requires_grad and parameter.abs().max() == 0:
            torch.nn.init.normal_(parameter, std=0.02)


def step(trainer, batch, accumulation=1):
    """Loss, gradients and logged terms of one step."""
    trainer.current_gradient_accumulation_steps = accumulation
    trainer.create_optimizer()
    loss = trainer.training_step(trainer.model, batch)
    named = {name: p.grad for name, p in trainer.model.named_parameters() if p.grad is not None}
    assert max(value.abs().max() for value in named.values()) > 1e-3
    return {"loss": loss, "gradients": named, "parts": dict(trainer.means.sums)}


TIMED = {"clips_per_second", "train_runtime", "train_samples_per_second", "train_steps_per_second", "total_flos"}


def untimed(history):
    """What was logged, without how long it took."""
    return [{name: value for name, value in entry.items() if name not in TIMED} for entry in history]


IN_DOUBLE = 1e-7


def assert_same_step(got, expected, tolerance=1e-4):
    """Gradients are sums over many tokens, in another order: compared to the largest number of each."""
    torch.testing.assert_close(got["loss"], expected["loss"], atol=0, rtol=tolerance)
    assert got["gradients"].keys() == expected["gradients"].keys()
    for name, value in expected["gradients"].items():
        scale = value.abs().max().clamp(min=1e-3)
        torch.testing.assert_close(got["gradients"][name] / scale, value / scale, atol=tolerance, rtol=0, msg=name)


def test_the_loss_is_the_weighted_sum_of_its_terms_and_a_weight_of_zero_skips_one(tmp_path):
    weights = {"cross_arity_weight": 0.7, "semantic_weight": 0.9, "uniformity_weight": 0.2, "matching_weight": 0.3}
    trainer = make_trainer(tmp_path, full_view_probability=0.0, full_view_decay_steps=0, **weights)
    loss = trainer.compute_loss(trainer.model, collate(trainer))
    expected = trainer.means.sums["loss_align"]
    for name, weight in zip(("mask", "sem", "unif", "dam"), weights.values(), strict=True):
        expected = expected + weight * trainer.means.sums[f"loss_{name}"]
    torch.testing.assert_close(loss, expected)
    trainer = make_trainer(tmp_path, **dict.fromkeys(weights, 0.0))
    trainer.compute_loss(trainer.model, collate(trainer))
    assert [name for name in trainer.means.sums if name.startswith("loss")] == ["loss_align"]


@pytest.mark.parametrize("condition_on", [("video", "audio"), MODALITIES])
def test_clips_without_anything_to_read_are_left_out_of_matching(tmp_path, condition_on):
    trainer = make_trainer(tmp_path, condition_on=condition_on)
    batch = collate(trainer)
    for rows, is_matched in ((slice(1, 3), True), (slice(4), "subtitle" in condition_on)):
        batch["modality_mask"][rows, :2] = False  # nothing but a subtitle
        assert trainer.compute_loss(trainer.model, batch).isfinite()
        assert (trainer.means.sums["loss_dam"] > 0) == is_matched
        trainer.means.take()


def test_lora_has_a_rate_of_its_own_and_keeps_its_weight_decay(tmp_path):
    def settings(**options):
        trainer = make_trainer(tmp_path, weight_decay=0.3, **options)
        names = {parameter: name for name, parameter in trainer.model.named_parameters()}
        found = {}
        for group in trainer.create_optimizer().param_groups:
            for parameter in group["params"]:
                found[names.pop(parameter)] = group["weight_decay"], group["lr"]  # each once
        return found

    expected = {name: (decay, 2e-5 if ".lora_" in name else 1e-3) for name, (decay, _) in settings().items()}
    assert settings(lora_learning_rate=2e-5) == expected
    assert set(expected.values()) == {(0.0, 1e-3), (0.3, 1e-3), (0.3, 2e-5)}


def log_of(trainer):
    trainer.train()
    return [entry for entry in trainer.state.log_history if "loss" in entry]


def test_both_rates_follow_the_schedule_and_are_logged(tmp_path):
    options = {"max_steps": 3, "logging_steps": 1, "warmup_steps": 0, "lora_learning_rate": 1e-4}
    entries = log_of(make_trainer(tmp_path, **options))
    rates = [entry["learning_rate"] for entry in entries]
    assert rates == pytest.approx([1e-3, 1e-3 * 2 / 3, 1e-3 / 3])
    assert [entry["lora_learning_rate"] for entry in entries] == pytest.approx([rate / 10 for rate in rates])


def test_the_loss_falls_on_eight_items_and_each_term_is_logged(unless_fast, tmp_path):
    steps = {"per_device_train_batch_size": 8, "max_steps": 12, "learning_rate": 5e-3, "warmup_steps": 0}
    options = {"adapter": "full", "logging_steps": 1, "contrastive_label_smoothing": 0.0, "loss_warmup_steps": 2}
    entries = log_of(make_trainer(tmp_path, **steps, **options))
    assert entries[-1]["loss_align"] < 0.5 * entries[0]["loss_align"]
    assert [{"loss_sem", "loss_unif"} <= set(entry) for entry in entries] == [False] * 2 + [True] * 10
    entry = entries[2]
    assert {"loss_mask", "loss_dam", "p_full", "grad_norm"} <= set(entry)
    assert 0 < entry["weight_entropy"] < 1.0987 and entry["clips_per_second"] > 0
    assert sum(entry[f"weight_{name}"] for name in MODALITIES) == pytest.approx(1, abs=1e-5)


def clips_in_memory(processor, empty):
    """Eight clips that are not read from files; nothing could be read of the one that is `empty`."""
    rows = {"video_id": [f"clip {number}" for number in range(8)], "caption": ["a dog"] * 8}
    rows |= dict.fromkeys(("video_path", "audio_path", "subtitle"), [None] * 8)
    dataset = ClipDataset(datasets.Dataset.from_dict(rows), processor, seed=1)
    frames = np.random.default_rng(0).integers(0, 255, (8, 9, 40, 40, 3), dtype=np.uint8)
    dataset._clips = [Clip(frames=each, subtitle="hello") for each in frames]
    dataset._clips[empty] = Clip(problems=["clip.mp4: not a readable video or audio file."])
    return dataset


@pytest.mark.parametrize("num_frames", [1, 40])
def test_clips_kept_in_memory_give_the_examples_of_clips_read_from_files(tmp_path, tiny_processor, num_frames):
    """Also where a clip has fewer frames than are asked for: the draws that follow are the same."""
    path = str(tmp_path / "clip.mp4")
    write_media(path, num_frames=num_frames, seconds_of_audio=2)
    row = {"video_id": "a", "caption": "a dog", "video_path": path, "audio_path": path, "subtitle": None}
    rows, frames = datasets.Dataset.from_list([row]), []
    read, kept = (ClipDataset(rows, tiny_processor, seed=5, keep_in_memory=keep) for keep in (False, True))
    for epoch in range(3):
        read.set_epoch(epoch)
        kept.set_epoch(epoch)
        one, other = (ScalarDataCollator(tiny_processor)([dataset[0]]) for dataset in (read, kept))
        torch.testing.assert_close(one, other, atol=0, rtol=0)
        assert {"pixel_values_videos", "input_features"} <= one.keys()
        frames.append(one["pixel_values_videos"])
    assert not torch.equal(frames[0], frames[1])


@pytest.fixture
def a_score_that_needs_sound():
    """Registered for one test, as a plugin registers it."""

    @register_method("sound", needs=("audio",))
    def sound(pairs):
        video, audio, subtitle = pairs.similarities
        return audio + 0.5 * torch.maximum(video, subtitle)

    yield
    del METHODS["sound"]


SCRIPT = """
import json, os, sys, torch
from types import SimpleNamespace
sys.path.insert(0, sys.argv[1])
from tests.trainer.test_scalar_trainer import give_effect, make_trainer

mask = torch.ones(9, 3, dtype=torch.bool)
mask[4:, 1] = False  # the clips of the second process all lack audio
mask[1, 2] = mask[6, 0] = False
mask[5] = torch.tensor([False, False, True])  # nothing for the cross-encoder to read
results = []
for options in json.loads(sys.argv[2]):
    size, left_out = options.pop("rows"), options.pop("left_out", None)
    trainer = make_trainer(sys.argv[3], mask=mask, size=9, double=True, full_view_probability=0.1,
                           full_view_decay_steps=0, dataloader_drop_last=left_out is not None, adapter="all_towers",
                           **options)
    world, rank = trainer.args.world_size, trainer.args.process_index
    give_effect(trainer.model)
    trainer.model_wrapped = model = trainer.accelerator.prepare(trainer.model)
    trainer.current_gradient_accumulation_steps = 1
    trainer.create_optimizer()
    rows = torch.arange(size).tensor_split(world)[rank].tolist()
    batch = trainer.data_collator([trainer.train_dataset[i] for i in rows if i != left_out])
    trainer.data_collator = SimpleNamespace(leaves_out=left_out is not None)
    loss = trainer.training_step(model, batch)
    mean = lambda value: trainer.accelerator.reduce(value.detach(), reduction="mean") if world > 1 else value.detach()
    results.append({
        "world": world,
        "loss": mean(loss),
        "parts": {name: mean(value) for name, value in trainer.means.sums.items() if name.startswith("loss")},
        "gradients": {name: p.grad for name, p in trainer.model.named_parameters() if p.grad is not None},
    })
    if options.get("optim") == "sgd":  # whose step is that of the gradient; AdamW's first has the size of the rate
        trainer.optimizer.step()
        results[-1]["weights"] = {name: p.detach() for name, p in trainer.model.named_parameters() if p.requires_grad}
if rank == 0:
    torch.save(results, sys.argv[4])
if world > 1:
    torch.distributed.destroy_process_group()
    os._exit(0)  # what threads do when the interpreter ends is not what is tested
"""


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


WHOLE = {"align", "mask", "sem", "unif", "dam"}
CAPTIONS = {"rows": 9, "clips": [0, 1, 0, 2, 3, 0, 4, 1, 5]}  # three of the first clip, two of the second
RATES = {"optim": "sgd", "learning_rate": 1.0, "lora_learning_rate": 0.1}
BASELINE = {"rows": 9, "objective": "contrastive", "learnable_temperature": True}
TRIANGLE = CAPTIONS | BASELINE | {"aggregation": "triangle"}  # which not every clip has
STEPS = {
    "even": ({"rows": 8}, WHOLE),
    "ragged": ({"rows": 9}, WHOLE),  # five and four
    "left out": ({"rows": 9, "left_out": 7}, WHOLE),  # of the second process, where all have equally many else
    "ragged in parts": ({"rows": 9, "mini_batch_size": 2}, WHOLE),
    "hypergram": (BASELINE | {"aggregation": "hypergram"}, {"align", "dam"}),
    "public code": ({"rows": 9, "min_view_modalities": 1, "negatives_from": "paired"} | RATES, WHOLE),
    "subtitle read": ({"rows": 9, "condition_on": ["video", "audio", "subtitle"]}, WHOLE),
    "subtitle read in parts": ({"rows": 9, "condition_on": list(MODALITIES), "mini_batch_size": 2}, WHOLE),
    "captions": (CAPTIONS, WHOLE),
    "captions in parts": (CAPTIONS | {"mini_batch_size": 2}, WHOLE),
    "captions of pathways": (CAPTIONS | {"objective": "pathways"}, {"pathways", "dam"}),
    "captions of pmrl": (CAPTIONS | {"objective": "pmrl", "aggregation": "pmrl"}, {"pmrl", "dam"}),
    "captions of triangle": (TRIANGLE, {"align", "dam"}),
    "captions of triangle in parts": (TRIANGLE | {"mini_batch_size": 2}, {"align", "dam"}),
}


def run_together(commands, processes, *argv, **options):
    """Run a command as one process, or as several as a launcher starts them; return how the first ended."""
    ranks = [{"ACCELERATE_USE_CPU": "true"}]
    if processes > 1:
        together = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(processes)}
        ranks = [ranks[0] | together | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(processes)]
    running = [commands.start(*argv, env=env, **options) for env in ranks]
    ended = [process.wait(120) for process in running]
    assert not any(outcome.code for outcome in ended), [outcome.stderr[-3000:] for outcome in ended]
    return ended[0]


@pytest.fixture(scope="module")
def steps_of_one_and_two_processes(commands, tmp_path_factory):
    """Loss, terms and gradients of one step of each kind of training, on one process and on two."""
    folder = tmp_path_factory.mktemp("steps")
    (folder / "steps.py").write_text(SCRIPT)
    arguments = ["-m", "steps", ROOT, json.dumps([options for options, _ in STEPS.values()]), folder / "out"]
    for processes in (1, 2):
        run_together(commands, processes, *arguments, folder / f"{processes}.pt", cwd=folder)
    return [dict(zip(STEPS, torch.load(folder / f"{n}.pt", weights_only=True), strict=True)) for n in (1, 2)]


@pytest.mark.distributed
@pytest.mark.parametrize("kind", STEPS)
@pytest.mark.e2e
def test_two_processes_have_the_loss_and_gradient_of_one(steps_of_one_and_two_processes, kind):
    """In parts they have those of the whole batch."""
    one, two = steps_of_one_and_two_processes
    whole, two = one[kind.removesuffix(" in parts")], two[kind]
    assert (whole["world"], two["world"]) == (1, 2)
    assert set(whole["parts"]) == {f"loss_{name}" for name in STEPS[kind][1]}
    assert all(value.abs() > 1e-4 for value in whole["parts"].values())
    torch.testing.assert_close(two["parts"], whole["parts"], atol=1e-6, rtol=1e-6)  # they are logged in float32
    assert_same_step(two, whole, IN_DOUBLE)
    torch.testing.assert_close(two.get("weights"), whole.get("weights"), atol=1e-9, rtol=1e-7)
    assert one["captions"]["loss"] < one["ragged"]["loss"]  # the same rows with fewer negatives


@pytest.mark.parametrize(("adapter", "size"), [("paper", 1), ("full", 16)])
def test_a_batch_in_parts_has_the_gradient_of_the_whole(tmp_path, adapter, size):
    def taken(**options):
        views = {"full_view_probability": 0.1, "full_view_decay_steps": 0}
        trainer = make_trainer(tmp_path, adapter=adapter, double=True, **views, **options)
        give_effect(trainer.model)
        batch = collate(trainer, 8)
        batch["modality_mask"][2:5, 1] = batch["modality_mask"][6, 0] = False
        return step(trainer, batch, accumulation=2)

    whole, parts = taken(), taken(mini_batch_size=size)
    assert_same_step(parts, whole, IN_DOUBLE)
    torch.testing.assert_close(parts["parts"], whole["parts"], atol=1e-6, rtol=1e-6)


def test_captions_of_one_clip_are_no_negatives(tmp_path):
    """Two rows, alone in a batch: as captions of one clip they have no negative, as two clips they have."""
    for clips, are_negatives in (([7, 7], False), ([7, 8], True)):
        trainer = make_trainer(tmp_path, clips=clips, semantic_weight=0.0, double=True)
        trainer.compute_loss(trainer.model, collate(trainer, 2))
        terms = trainer.means.sums
        assert (terms["loss_align"] > 1e-5) == (terms["loss_unif"].abs() > 1e-5) == are_negatives


def test_the_data_set_learns_its_epoch_also_after_resuming_and_without_a_clip_that_is_left_out(
    tmp_path, tiny_processor
):
    """Resumed in the middle of the second epoch, of which the frames are drawn as they were."""
    weights = []
    for folder, resume in (("straight", None), ("resumed", str(tmp_path / "straight" / "checkpoint-3"))):
        trainer = make_trainer(tmp_path / folder, max_steps=6, save_strategy="steps", save_steps=3)
        trainer.train_dataset = clips_in_memory(tiny_processor, empty=3)
        trainer.data_collator = ScalarDataCollator(tiny_processor, leaves_out=True)
        trainer.train(resume_from_checkpoint=resume)
        weights.append([p.detach() for p in trainer.model.parameters() if p.requires_grad])
        assert trainer.train_dataset.epoch == 2
    assert all(map(torch.equal, *weights))


def test_frozen_towers_stay_in_evaluation_mode_and_keep_no_graph(tiny_model, batch):
    """Dropout in a tower that is not trained would only make it give something else at every step."""
    base = apply_adapters(tiny_model, "paper").train().get_base_model()
    assert not base.get_video_features(batch["pixel_values_videos"]).last_hidden_state.requires_grad
    assert not base.get_audio_features(batch["input_features"]).last_hidden_state.requires_grad
    assert base.get_text_features(batch["input_ids"], batch["attention_mask"]).last_hidden_state.requires_grad
    assert base.text_model.training and base.text_projection.training
    assert not any(module.training for tower in (base.vision_model, base.audio_model) for module in tower.modules())


def test_accumulated_batches_have_the_mean_of_their_gradients(tmp_path):
    """And no more negatives than one batch has: the accumulated step is not a step on the larger batch."""
    options = {"double": True, "matching_weight": 0.0, "full_view_probability": 1.0, "uniformity_weight": 0.0}

    def gradients(*batches):
        trainer = make_trainer(tmp_path, gradient_accumulation_steps=len(batches), **options)
        for batch in batches:
            rows = trainer.data_collator([trainer.train_dataset[i] for i in batch])
            found = step(trainer, rows, len(batches))["gradients"]
        return found

    both, first, second = gradients(range(4), range(4, 8)), gradients(range(4)), gradients(range(4, 8))
    for name, gradient in both.items():
        torch.testing.assert_close(gradient, (first[name] + second[name]) / 2, msg=name)


@pytest.mark.parametrize(("what", "factor"), [("loss", math.nan), ("gradient", math.nan), ("gradient", 1e30)])
def test_what_is_not_finite_stops_the_run_before_it_is_applied(tmp_path, what, factor):
    """Of a gradient of 1e30 the norm alone overflows."""

    def spoil(value):
        return value * factor if trainer.state.global_step == 1 else value

    trainer = make_trainer(tmp_path, max_steps=3, save_strategy="steps", save_steps=1, warmup_steps=0)
    if what == "gradient":
        head = trainer.scalar_model.text_projection.modules_to_save.default.weight
        head.register_hook(spoil)
    else:
        trainer.loss_terms.register_forward_hook(lambda *call: {"align": (1.0, spoil(call[-1]["align"][1]))})
    with pytest.raises(ValueError, match=f"{what} of step 2 is not finite"):
        trainer.train()
    saved = load_file(tmp_path / "checkpoint-1" / "adapter_model.safetensors")
    assert all(value.isfinite().all() for value in saved.values()) and not (tmp_path / "checkpoint-2").exists()


def test_a_batch_that_a_score_does_not_cover_gives_a_loss_of_zero(tmp_path):
    options = {"objective": "contrastive", "aggregation": "triangle", "matching_weight": 0.0}
    trainer = make_trainer(tmp_path, **options)
    batch = collate(trainer)
    batch["modality_mask"][:, 1] = False
    loss = trainer.compute_loss(trainer.model, batch)
    assert loss == 0 and loss.requires_grad


@pytest.mark.parametrize(("aggregation", "size"), [("sound", None), ("triangle", 3), ("audio", None)])
def test_a_score_is_trained_on_the_clips_that_it_covers(tmp_path, a_score_that_needs_sound, aggregation, size):
    """Loss and gradient are those of the covered clips alone, whatever else is in the batch."""
    options = {"objective": "contrastive", "matching_weight": 0.0, "double": True, "mini_batch_size": size}
    results = []
    for rows in ([*range(8)], [0, 1, 5, 6, 7]):
        trainer = make_trainer(tmp_path, aggregation=aggregation, **options)
        give_effect(trainer.model)
        batch = collate(trainer, 8)
        batch["modality_mask"][2:5, 1] = batch["modality_mask"][6, 2] = False
        result = step(trainer, {name: value[rows] for name, value in batch.items()})
        assert result["loss"] > 0.1
        results.append((result["loss"], result["gradients"]))
    torch.testing.assert_close(*results, atol=1e-9, rtol=1e-7)


def test_an_objective_says_what_it_needs(tmp_path):
    class Reduced(Objective):
        uses_reduced_views = uses_semantics = True

        def forward(self, batch, step):
            assert batch.affinities.shape == (4, 4) and not batch.reduced_mask.all() and batch.mask.all()
            return {"nce": (1.0, info_nce(batch.text_to_clip, batch.rows.offset))}

    views = {"full_view_probability": 0.0, "full_view_decay_steps": 0}
    trainer = make_trainer(tmp_path, given_objective=Reduced(), **views)
    trainer.compute_loss(trainer.model, collate(trainer))
    assert set(trainer.means.sums) >= {"loss_nce", "loss_dam"}
    with pytest.raises(ValueError, match="needs `semantic_targets`"):
        make_trainer(tmp_path, given_objective=Reduced(), semantic_targets=None)
    learned = Reduced()
    learned.scale = torch.nn.Parameter(torch.ones(()))
    with pytest.raises(ValueError, match=r"trainable parameters, \['scale'\]"):
        make_trainer(tmp_path, given_objective=learned)


def test_dropout_is_replayed_in_the_parts_of_a_batch(tmp_path):
    """The embeddings of the pass with a graph are those of the pass without, though they are drawn anew."""
    config = make_tiny_config()
    config.text_config.hidden_dropout_prob = 0.3
    model = apply_adapters(ScalarModel(config), "paper")
    trainer = make_trainer(tmp_path, model=model, mini_batch_size=2)
    seen = []
    trainer.scalar_model.text_projection.register_forward_hook(lambda *call: seen.append(call[-1].detach()))
    batch = collate(trainer)
    batch["input_ids"][1], batch["attention_mask"][1] = batch["input_ids"][0], batch["attention_mask"][0]
    step(trainer, batch)
    assert len(seen) == 4 and all(map(torch.equal, seen[:2], seen[2:]))
    assert not torch.equal(seen[0][0], seen[0][1])  # of the same caption: there is dropout


def test_processes_draw_dropout_of_their_own(tmp_path, monkeypatch):
    trainer = make_trainer(tmp_path)
    seeds = []
    for number in (0, 1, 2):
        torch.manual_seed(trainer.args.seed)  # as on every process when the Trainer is built
        monkeypatch.setattr("scalar_retrieval.trainer.resuming.rank", lambda number=number: number)
        trainer.callback_handler.on_train_begin(trainer.args, trainer.state, trainer.control)
        seeds.append(torch.initial_seed())
    assert len(set(seeds)) == 3


def test_a_learned_temperature_is_the_one_of_every_contrastive_term(tmp_path):
    def terms(learned=None, **options):
        trainer = make_trainer(tmp_path, calibration_weight=0.0, matching_weight=0.0, **options)
        if learned is not None:
            scale = trainer.scalar_model.logit_scale.modules_to_save.default.log_scale
            torch.nn.init.constant_(scale, -math.log(learned))
        trainer.compute_loss(trainer.model, collate(trainer))
        return [trainer.means.sums[f"loss_{name}"].item() for name in ("align", "sem")]

    assert terms(0.2, learnable_temperature=True) == pytest.approx(terms(temperature=0.2), rel=1e-5)
    assert terms(temperature=0.07) != pytest.approx(terms(temperature=0.2), abs=0.1)
