"""What a GPU computes is what the processor computes: embeddings, every score, a step of the trainer."""

import pytest
import torch

from scalar_retrieval.modeling_scalar import MODALITIES, ScalarModel
from scalar_retrieval.modeling_scalar.scores_scalar import query_weights, retrieval_scores
from tests.conftest import make_batch, make_tiny_config
from tests.modeling_scalar.test_scores_scalar import random_clips
from tests.scores import METHODS
from tests.trainer.test_scalar_trainer import collate, make_trainer

GENERAL = [name for name in METHODS if name not in {"triangle", "concat_head", *MODALITIES}]
"""The scores that read no modality by its name."""

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def full_float32():
    """Without the shorter products that convolutions take for those of float32."""
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_embeddings_are_those_of_the_processor(dtype):
    torch.manual_seed(0)
    model, batch = ScalarModel(make_tiny_config()).eval(), make_batch(6)
    batch["modality_mask"] = torch.tensor([[1, 1, 1], [1, 0, 1], [0, 1, 0], [0, 0, 1], [1, 0, 0], [1, 1, 0]]).bool()
    with torch.no_grad():
        expected = model(**batch)
        moved = {name: value.to("cuda", dtype if value.is_floating_point() else None) for name, value in batch.items()}
        found = model.to("cuda", dtype)(**moved)
    tolerance = 1e-4 if dtype == torch.float32 else 0.05
    for name in ("text_embeds", "modality_embeds", "logits_per_text"):
        one, other = getattr(found, name).float().cpu(), getattr(expected, name)
        torch.testing.assert_close(one, other, atol=tolerance * other.abs().max().item(), rtol=0, msg=name)
    absent = ~batch["modality_mask"]
    assert not found.modality_embeds.cpu()[absent].any() and found.modality_embeds.cpu()[~absent].any(-1).all()


@pytest.mark.parametrize("number", [1, 3, 5])
@pytest.mark.parametrize("method", GENERAL)
def test_scores_and_gradients_are_those_of_the_processor(method, number):
    given = random_clips(4, number=number, dtype=torch.float64)
    *vectors, mask = given
    found = [*(vector.float().cuda() for vector in vectors), mask.cuda()]
    results = []
    for texts, clips, mask in (given, found):
        is_trainable = METHODS[method].is_trainable
        scores = retrieval_scores(texts.requires_grad_(is_trainable), clips.requires_grad_(is_trainable), mask, method)
        gradients = torch.autograd.grad(scores.square().sum(), (texts, clips)) if is_trainable else ()
        weights = [query_weights(texts, clips, mask)] if method == "scalar" else []
        results.append([scores, *gradients, *weights])
    for expected, found in zip(*results, strict=True):
        assert found.device.type == "cuda"
        largest = max(1, expected.abs().max().item())
        torch.testing.assert_close(found.double().cpu(), expected, atol=1e-5 * largest, rtol=0)


@pytest.mark.parametrize("size", [None, 2])
@pytest.mark.parametrize("precision", ["float32", "bf16", "fp16"])
def test_a_step_has_the_loss_and_the_gradient_of_the_processor(tmp_path, precision, size):
    def step(**options):
        trainer = make_trainer(tmp_path, mini_batch_size=size, full_view_probability=1.0, **options)
        trainer.current_gradient_accumulation_steps = 1
        trainer.model_wrapped = model = trainer.accelerator.prepare(trainer.model)
        if trainer.accelerator.scaler is not None:  # the scale that steps come down to
            trainer.accelerator.scaler = torch.amp.GradScaler("cuda", init_scale=256.0)
        loss = trainer.training_step(model, collate(trainer, 8))
        name = "base_model.model.video_projection.modules_to_save.default.weight"
        gradient = dict(trainer.model.named_parameters())[name].grad
        if trainer.accelerator.scaler is not None:
            gradient = gradient / trainer.accelerator.scaler.get_scale()
        return loss.cpu(), gradient.cpu(), trainer.args.device.type

    loss, gradient, device = step(use_cpu=True)
    found, on_gpu, other = step(use_cpu=False, **({} if precision == "float32" else {precision: True}))
    assert (device, other) == ("cpu", "cuda") and on_gpu.dtype == torch.float32
    torch.testing.assert_close(found, loss, atol=0, rtol=1e-4 if precision == "float32" else 0.05)
    cosine = torch.nn.functional.cosine_similarity(gradient.flatten(), on_gpu.flatten(), dim=0)
    assert cosine > (0.9999 if precision == "float32" else 0.97)
    assert 0.9 < on_gpu.norm() / gradient.norm() < 1.1


@pytest.mark.parametrize("precision", ["float32", "bf16", "fp16"])
def test_a_training_learns_and_a_scale_that_is_too_large_only_comes_down(tmp_path, precision):
    """In float16 the first scales are too large for the gradients: those steps are left out, and the run goes on."""
    options = {} if precision == "float32" else {precision: True}
    trainer = make_trainer(
        tmp_path, use_cpu=False, max_steps=24, logging_steps=1, full_view_probability=1.0, **options
    )
    trained = [parameter for parameter in trainer.model.parameters() if parameter.requires_grad]
    before = [parameter.detach().clone() for parameter in trained]
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == 24 and sum(losses[-4:]) < sum(losses[:4])
    changes = [(new.detach().cpu() - old.cpu()).abs().max() for new, old in zip(trained, before, strict=True)]
    assert torch.stack(changes).isfinite().all() and max(changes) > 1e-4
    if precision == "fp16":
        assert trainer.accelerator.scaler.get_scale() < 2.0**16
