"""Training steps: who gets a gradient, what is computed, that it learns, resumes exactly, and does not care how many
processes share a batch."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from modeling_scalar import Clip, ScalarModel
from modeling_scalar.aggregation_scalar import retrieval_scores
from tests.conftest import make_batch, make_tiny_config
from trainer.callbacks import EpochOfDataset
from trainer.data import derived_generator
from trainer.lora import apply_adapters
from trainer.losses import AlignmentLoss, CrossArityLoss
from trainer.scalar_trainer import ScalarTrainer
from trainer.training_args import ScalarTrainingArguments
from trainer.views import reduced_views

ROOT = Path(__file__).resolve().parents[2]


class Batches(torch.utils.data.Dataset):
    """Ready-made examples: rows of a fixed random batch."""

    def __init__(self, size=8, mask=None):
        self.batch = make_batch(size, seed=3)
        if mask is not None:
            self.batch["modality_mask"] = mask

    def __len__(self):
        return len(self.batch["input_ids"])

    def __getitem__(self, index):
        return {name: value[index] for name, value in self.batch.items()}


def make_trainer(folder, model=None, mask=None, size=8, **changes):
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
    }
    args = ScalarTrainingArguments(**fields | changes)
    if model is None:
        model = apply_adapters(ScalarModel(make_tiny_config()), args.adapter)
    return ScalarTrainer(model, args, train_dataset=Batches(size, mask))


def gradients_of_a_real_step(trainer):
    """Names with the largest gradient they received in the steps of a run; the Trainer clears gradients after each."""
    received = {}

    class Watch(torch.optim.AdamW):
        def step(self, closure=None):
            for name, parameter in trainer.model.named_parameters():
                if parameter.grad is not None:
                    received[name] = max(received.get(name, 0.0), parameter.grad.abs().max().item())
            return super().step(closure)

    trainable = [parameter for parameter in trainer.model.parameters() if parameter.requires_grad]
    trainer.optimizer = Watch(trainable, lr=1e-2)
    trainer.train()
    return received


@pytest.mark.parametrize("recipe", ["paper", "all_towers", "full"])
def test_after_a_step_every_trainable_parameter_has_a_gradient_and_no_other(tmp_path, recipe):
    trainer = make_trainer(tmp_path, adapter=recipe)
    received = gradients_of_a_real_step(trainer)
    trainable = {name for name, parameter in trainer.model.named_parameters() if parameter.requires_grad}
    assert set(received) == trainable and len(trainable) > 20
    if recipe == "full":  # no LoRA, whose A starts without effect
        # The key's bias cannot change a softmax; in float32 its gradient is a rounding error or zero.
        assert [name for name, largest in received.items() if largest == 0 and not name.endswith("key.bias")] == []


@pytest.mark.parametrize("recipe", ["paper", "all_towers"])
def test_after_two_steps_no_adapter_is_without_effect(tmp_path, recipe):
    """LoRA starts with B = 0, so A is reached from the second step on."""
    trainer = make_trainer(tmp_path, adapter=recipe, max_steps=2, warmup_steps=0, lr_scheduler_type="constant")
    received = gradients_of_a_real_step(trainer)
    assert [name for name, largest in received.items() if largest == 0] == []


def test_frozen_towers_keep_no_graph(tiny_model, batch):
    model = apply_adapters(tiny_model, "paper")
    base = model.get_base_model()
    assert not base.get_video_states(batch["pixel_values_videos"]).requires_grad
    assert not base.get_audio_states(batch["input_features"]).requires_grad
    assert base.get_text_states(batch["input_ids"], batch["attention_mask"]).requires_grad


def test_the_loss_is_the_sum_of_its_terms_on_the_drawn_views(tmp_path):
    trainer = make_trainer(tmp_path, full_view_probability=0.0, full_view_decay_steps=0, matching_weight=0.0)
    batch = make_batch(4)
    loss = trainer.compute_loss(trainer.model, batch)
    reduced = reduced_views(batch["modality_mask"], 0.0, derived_generator(0, 0, 0, 0))
    assert not reduced.all()
    output = trainer.model(**batch)
    scores = retrieval_scores(output.text_embeds, output.modality_embeds, reduced)
    expected = AlignmentLoss()(scores, scores.T)
    expected = expected + CrossArityLoss()(output.text_embeds, output.modality_embeds, batch["modality_mask"], reduced)
    torch.testing.assert_close(loss, expected)


def test_a_weight_of_zero_skips_its_term(tmp_path):
    trainer = make_trainer(tmp_path, cross_arity_weight=0.0, matching_weight=0.0)
    trainer.compute_loss(trainer.model, make_batch(4))
    assert [name for name in trainer._parts if name.startswith("loss")] == ["loss_align"]


def test_clips_without_anything_to_read_are_left_out_of_matching(tmp_path):
    trainer = make_trainer(tmp_path)
    batch = make_batch(4)
    batch["modality_mask"] = torch.tensor([[1, 1, 1], [0, 0, 1], [0, 0, 1], [1, 0, 1]]).bool()
    assert trainer.compute_loss(trainer.model, batch).isfinite()
    batch["modality_mask"] = torch.tensor([[0, 0, 1]] * 4).bool()
    assert trainer.compute_loss(trainer.model, batch).isfinite()
    assert trainer._parts["loss_dam"].isfinite()


@pytest.mark.parametrize("objective", ["scalar", "pathways"])
def test_the_loss_falls_on_eight_items(tmp_path, objective):
    trainer = make_trainer(
        tmp_path,
        objective=objective,
        adapter="full",
        per_device_train_batch_size=8,
        max_steps=40,
        logging_steps=1,
        contrastive_label_smoothing=0.0,
    )
    trainer.train()
    name = {"scalar": "loss_align", "pathways": "loss_pathways"}[objective]
    losses = [entry[name] for entry in trainer.state.log_history if name in entry]
    assert len(losses) == 40 and losses[-1] < 0.5 * losses[0]


def test_every_component_is_logged(tmp_path):
    trainer = make_trainer(tmp_path, max_steps=2, logging_steps=1)
    trainer.train()
    entry = next(entry for entry in trainer.state.log_history if "loss" in entry)
    names = {"loss_align", "loss_mask", "loss_dam", "weight_video", "weight_audio", "weight_subtitle", "p_full"}
    assert names <= set(entry)
    total = entry["loss_align"] + entry["loss_mask"] + 0.1 * entry["loss_dam"]
    assert entry["loss"] == pytest.approx(total, abs=1e-4)
    assert sum(entry[f"weight_{name}"] for name in ("video", "audio", "subtitle")) == pytest.approx(1, abs=1e-5)


def test_a_resumed_run_equals_an_unbroken_one_byte_for_byte(tmp_path):
    options = {"max_steps": 6, "save_strategy": "steps", "save_steps": 3, "size": 16, "full_view_decay_steps": 4}
    make_trainer(tmp_path / "straight", **options).train()
    broken = make_trainer(tmp_path / "resumed", **options)
    broken.train(resume_from_checkpoint=str(tmp_path / "straight" / "checkpoint-3"))
    paths = [tmp_path / "straight" / "checkpoint-6", Path(broken.args.output_dir) / "checkpoint-6"]
    adapters = [load_file(path / "adapter_model.safetensors") for path in paths]
    start = load_file(tmp_path / "straight" / "checkpoint-3" / "adapter_model.safetensors")
    assert adapters[0].keys() == adapters[1].keys() and len(start) > 20
    for name, value in adapters[0].items():
        assert torch.equal(value, adapters[1][name]), name
    assert any(not torch.equal(start[name], value) for name, value in adapters[0].items())


def test_examples_do_not_depend_on_workers_or_on_what_was_drawn_before(tiny_processor):
    import datasets
    import numpy as np

    from trainer.data import ClipDataset, ScalarDataCollator

    columns = ("video_id", "caption", "video_path", "audio_path", "subtitle")
    rows = datasets.Dataset.from_list([dict.fromkeys(columns, None) | {"caption": "a dog"} for _ in range(4)])
    dataset = ClipDataset(rows, tiny_processor, seed=1)
    generator = np.random.default_rng(0)
    dataset._clips = [
        Clip(frames=generator.integers(0, 255, (9, 40, 40, 3), dtype=np.uint8), subtitle="hello") for _ in range(4)
    ]
    collate = ScalarDataCollator(tiny_processor)
    together = collate([dataset[i] for i in range(4)])["pixel_values_videos"]
    alone = torch.cat([collate([dataset[i]])["pixel_values_videos"] for i in (3, 0)])
    assert torch.equal(alone, together[[3, 0]])
    dataset.set_epoch(1)
    assert not torch.equal(collate([dataset[i] for i in range(4)])["pixel_values_videos"], together)


@pytest.mark.parametrize("num_frames", [1, 2, 40])
def test_clips_kept_in_memory_give_the_examples_of_clips_read_from_files(tmp_path, tiny_processor, num_frames):
    """Also where a clip has just as many frames as are asked for, or fewer: the draws that follow are the same."""
    import datasets

    from tests.modeling_scalar.test_media_scalar import write_media
    from trainer.data import ClipDataset, ScalarDataCollator

    path = str(tmp_path / "clip.mp4")
    write_media(path, num_frames=num_frames, seconds_of_audio=2)
    row = {"video_id": "a", "caption": "a dog", "video_path": path, "audio_path": path, "subtitle": None}
    rows = datasets.Dataset.from_list([row])
    collate = ScalarDataCollator(tiny_processor)
    batches = []
    for keep_in_memory in (False, True):
        dataset = ClipDataset(rows, tiny_processor, seed=5, keep_in_memory=keep_in_memory)
        batches.append([collate([dataset[0]]) for epoch in range(4) if dataset.set_epoch(epoch) is None])
    for read, kept in zip(*batches, strict=True):
        assert read.keys() == kept.keys() and {"pixel_values_videos", "input_features"} <= read.keys()
        assert all(torch.equal(value, kept[name]) for name, value in read.items())
    assert not torch.equal(batches[0][0]["pixel_values_videos"], batches[0][1]["pixel_values_videos"])


SCRIPT = """
import json, sys, torch
sys.path.insert(0, sys.argv[1])
from tests.conftest import make_batch, make_tiny_config
from tests.trainer.test_scalar_trainer import make_trainer
import trainer.scalar_trainer as module
from trainer.losses import draw_negatives

# Draws that depend on the row alone, so that they are the same however the rows are spread over processes.
def best_wrong(scores, candidates, offset=0, temperature=0.07, generator=None):
    scores = scores.detach().clone().masked_fill(~candidates, -9)
    scores.diagonal(offset).fill_(-10)
    return scores.argmax(1)
def by_content(mask, probability, generator=None):
    reduced = mask.clone()
    reduced[mask.all(1), 1] = False
    return reduced
module.draw_negatives, module.reduced_views = best_wrong, by_content

mask = torch.ones(8, 3, dtype=torch.bool)
mask[4:, 1] = False  # the clips of the second process all lack audio
mask[1, 2] = mask[6, 0] = False
trainer = make_trainer(sys.argv[2], mask=mask, per_device_train_batch_size=int(sys.argv[3]), adapter="all_towers",
                       data_seed=0, max_grad_norm=1e9, ddp_find_unused_parameters=True)
world = trainer.args.world_size
rank = trainer.args.process_index
model = trainer.accelerator.prepare(trainer.model)
torch.manual_seed(1)
for parameter in trainer.model.parameters():
    if parameter.requires_grad and parameter.abs().max() == 0:
        torch.nn.init.normal_(parameter, std=0.02)
rows = slice(rank * 8 // world, (rank + 1) * 8 // world)
batch = {name: value[rows] for name, value in trainer.train_dataset.batch.items()}
loss = trainer.compute_loss(model, batch)
trainer.accelerator.backward(loss)
mean = trainer.accelerator.reduce(loss.detach(), reduction="mean") if world > 1 else loss.detach()
if rank == 0:
    gradients = {name: p.grad for name, p in trainer.model.named_parameters() if p.grad is not None}
    torch.save({"world": world, "loss": mean, "gradients": gradients, "parts": trainer._parts}, sys.argv[4])
"""


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.mark.distributed
def test_two_processes_have_the_loss_and_gradient_of_one(tmp_path):
    script = tmp_path / "step.py"
    script.write_text(SCRIPT)
    environment = os.environ | {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    results = []
    for processes, size in ((1, 8), (2, 4)):
        command = [sys.executable, "-m", "accelerate.commands.launch", "--num_processes", str(processes)]
        command += ["--multi_gpu", "--main_process_port", str(free_port())] if processes > 1 else ["--cpu"]
        arguments = [str(ROOT), str(tmp_path / f"out{processes}"), str(size), str(tmp_path / f"{processes}.pt")]
        run = subprocess.run([*command, str(script), *arguments], capture_output=True, text=True, env=environment)
        assert run.returncode == 0, run.stderr[-3000:]
        results.append(torch.load(tmp_path / f"{processes}.pt", weights_only=True))
    one, two = results
    assert (one["world"], two["world"]) == (1, 2)
    torch.testing.assert_close(two["loss"], one["loss"], atol=1e-6, rtol=1e-6)
    assert one["gradients"].keys() == two["gradients"].keys() and len(one["gradients"]) > 20
    assert max(gradient.abs().max() for gradient in one["gradients"].values()) > 1e-2
    for name, gradient in one["gradients"].items():
        torch.testing.assert_close(two["gradients"][name], gradient, atol=1e-6, rtol=1e-4, msg=name)


def test_the_data_set_learns_its_epoch_also_after_resuming(tmp_path, tiny_processor):
    import datasets
    import numpy as np

    from trainer.data import ClipDataset, ScalarDataCollator

    columns = ("video_id", "caption", "video_path", "audio_path", "subtitle")
    rows = datasets.Dataset.from_list([dict.fromkeys(columns, None) | {"caption": "a dog"} for _ in range(8)])
    generator = np.random.default_rng(0)
    clips = [
        Clip(frames=generator.integers(0, 255, (9, 32, 32, 3), dtype=np.uint8), subtitle="hello") for _ in range(8)
    ]

    def run(folder, resume=None):
        seen = []

        class Recording(ClipDataset):
            def __getitem__(self, index):
                seen.append((self.epoch, index))
                return super().__getitem__(index)

        trainer = make_trainer(folder, max_steps=6, save_strategy="steps", save_steps=3)
        trainer.train_dataset = Recording(rows, tiny_processor)
        trainer.train_dataset._clips = clips
        trainer.callback_handler.callbacks = [
            callback for callback in trainer.callback_handler.callbacks if not isinstance(callback, EpochOfDataset)
        ]
        trainer.add_callback(EpochOfDataset(trainer.train_dataset))
        trainer.data_collator = ScalarDataCollator(tiny_processor)
        trainer.train(resume_from_checkpoint=resume)
        weights = {name: p.detach().clone() for name, p in trainer.model.named_parameters() if p.requires_grad}
        return seen, weights

    straight, weights = run(tmp_path / "straight")
    assert [epoch for epoch, _ in straight] == [0] * 8 + [1] * 8 + [2] * 8
    resumed, again = run(tmp_path / "resumed", str(tmp_path / "straight" / "checkpoint-3"))  # in the middle of epoch 1
    assert set(resumed[-8:]) == set(straight[-8:]) and {epoch for epoch, _ in resumed} == {1, 2}
    for name, value in weights.items():
        assert torch.equal(value, again[name]), name


def test_evaluation_ranks_the_clips_of_the_set(tmp_path, monkeypatch):
    from eval.embed import Embeddings

    def embed(model, processor, rows, **options):
        assert isinstance(model, ScalarModel)
        eye = torch.eye(4)
        mask = torch.tensor([[True, False, False]]).repeat(4, 1)
        modalities = torch.zeros(4, 3, 4)
        modalities[:, 0] = eye[[0, 1, 2, 2]]
        ids = [str(i) for i in range(4)]
        return Embeddings(eye[[0, 1, 2, 2]], modalities, mask, torch.arange(4), ids, ids)

    monkeypatch.setattr("trainer.scalar_trainer.embed_dataset", embed)
    metrics = make_trainer(tmp_path).evaluate(eval_dataset=["any"])
    assert metrics["eval_text_to_video_recall_at_1"] == 50.0 and metrics["eval_text_to_video_mean_rank"] == 1.5
    assert json.dumps(metrics)
