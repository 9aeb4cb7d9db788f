"""Time and memory of training, as ratios: the objective, the closed form, cached features and frozen towers.

    python -m evidence speed training [--rounds 5] [--threads 1]
    python -m evidence speed training --gpu [--precision bf16]

The methods take turns within each round of one process; a ratio is the median over rounds of CPU time divided by that
of the reference in the same round. Memory is what the forward pass stores for the backward pass, without weights and
inputs. `--gpu` times the paper's recipe at full size with random weights instead.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from functools import partial
from itertools import product
from operator import truediv
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch.nn.functional import normalize
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertConfig, BertModel

from evidence.building import build_new
from evidence.speed.settings import TrainingConfig
from scalar_retrieval.modeling_scalar import ScalarConfig, ScalarModel
from scalar_retrieval.modeling_scalar.scores_scalar import query_weights, retrieval_scores
from scalar_retrieval.trainer.distributed import RowLayout
from scalar_retrieval.trainer.draws import reduced_views
from scalar_retrieval.trainer.lora import RECIPES
from scalar_retrieval.trainer.objectives import Batch, ScalarObjective
from scalar_retrieval.trainer.scalar_trainer import ScalarTrainer
from scalar_retrieval.trainer.semantic_targets import SemanticTargets
from scalar_retrieval.trainer.training_args import ScalarTrainingArguments

PRESENCE = torch.tensor([0.95, 0.85, 0.6])  # shares of clips with video, audio and subtitle
# A run of the paper; the hours are those of four A100.
CLIPS = 136_674
STEPS = 5_330
HOURS = 11

TOWERS = ("vision_model", "audio_model", "text_model")
LIMITS = {128: 0.001, 2048: 0.01}  # of the objective, as a share of BERT-base
TEXT_LENGTHS = (40, 70)  # tokens of captions and subtitles
MINIATURE_LENGTHS = (28, 16)


def measure(methods: dict[Any, Callable[[], object]], rounds: int) -> dict[Any, list[float]]:
    """Return the CPU seconds of each method in each round, in turns, after a warm-up round."""
    times = {}
    for number in range(rounds + 1):
        for name, method in methods.items():
            start = time.process_time()
            method()
            seconds = time.process_time() - start
            if number > 0:
                times.setdefault(name, []).append(seconds)
    return times


def median_ratio(times: list[float], reference: list[float]) -> float:
    return statistics.median(map(truediv, times, reference))


def saved_bytes(forward: Callable[[], object], given: Iterable[torch.Tensor]) -> int:
    """Return the bytes that `forward` stores for its backward pass, except its input tensors."""
    known = {tensor.untyped_storage().data_ptr() for tensor in given}
    kept = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()  # several of its views may be stored
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = forward()
    del result  # alive until here, so that no address is reused
    return sum(kept.values())


def make_mask(batch_size: int, presence: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    mask = torch.rand(batch_size, 3, generator=generator) < presence
    mask[:, 0] |= ~mask.any(1)
    return mask


def make_embeddings(batch_size: int, dim: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return random unit embeddings that require grad, and the modality mask."""
    generator = torch.Generator().manual_seed(batch_size)
    texts = normalize(torch.randn(batch_size, dim, generator=generator), dim=-1)
    modalities = normalize(torch.randn(batch_size, 3, dim, generator=generator), dim=-1)
    mask = make_mask(batch_size, PRESENCE, generator)
    return texts.requires_grad_(), (modalities * mask[..., None]).requires_grad_(), mask


def make_targets(folder: Path, num_clips: int = CLIPS, num_neighbors: int = 64) -> SemanticTargets:
    """Return the semantic targets of a corpus whose clips have one random caption each."""
    path = folder / "semantic_targets.safetensors"
    tensors = {
        "neighbors": torch.randint(num_clips, (num_clips, num_neighbors), dtype=torch.int32),
        "cosines": torch.rand(num_clips, num_neighbors),
        "clip_of_row": torch.arange(num_clips, dtype=torch.int32),
    }
    save_file(tensors, path, metadata={"rows_sha256": ""})
    return SemanticTargets(path)


# The objective against BERT-base ------------------------------------------------------------------------------------


def objective_step(batch_size: int, dim: int, targets: SemanticTargets) -> Callable[[], object]:
    """Return a step of all terms on embeddings, including the look-up of S*, forward and backward."""
    texts, modalities, mask = make_embeddings(batch_size, dim)
    generator = torch.Generator().manual_seed(0)
    reduced = reduced_views(mask, 0.5, torch.rand(batch_size, 2, generator=generator))
    index = torch.randint(len(targets.clip_of_row), (batch_size,), generator=generator)
    options = {"method": "scalar", "query_temperature": 0.1}
    objective = ScalarObjective(
        ScalarTrainingArguments(use_cpu=True, loss_warmup_steps=0, semantic_weight=1.0), ScalarConfig()
    )

    def step():
        affinities = targets.affinities(index, index)
        batch = Batch(RowLayout((batch_size,), 0), texts, modalities, mask, reduced, options, affinities)
        total = sum(weight * loss for weight, loss in objective(batch, 0).values())
        return torch.autograd.grad(total, (texts, modalities))

    return step


def bert_step(batch_size: int, config: BertConfig) -> Callable[[], object]:
    """Return a training step of BERT without optimizer, forward and backward."""
    model = BertModel(config, add_pooling_layer=False).train()
    ids = torch.randint(config.vocab_size, (batch_size, TEXT_LENGTHS[0]))

    def step():
        model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state.square().mean().backward()
        model.zero_grad(set_to_none=True)

    return step


def compare_objective(
    targets: SemanticTargets, batches: list[int], rounds: int, bert_batch: int, bert_config: BertConfig, dim: int
) -> dict[int, tuple[float, float]]:
    """Return the objective's seconds at each batch size, and its share of BERT's, which is scaled linearly to it."""
    repeats = {batch: max(batches) // batch for batch in batches}  # short steps would be lost in noise

    def repeat(step: Callable[[], object], times: int) -> None:
        for _ in range(times):
            step()

    # All batch sizes and BERT take turns.
    methods = {}
    for batch, times in repeats.items():
        methods[batch] = partial(repeat, objective_step(batch, dim, targets), times)
    methods["bert"] = bert_step(bert_batch, bert_config)
    measured = measure(methods, rounds)
    bert = measured.pop("bert")

    # Seconds of one step, and its share of BERT's at the same batch size.
    shares = {}
    for batch, times in measured.items():
        ratio = median_ratio(times, bert) / repeats[batch] * bert_batch / batch
        shares[batch] = (statistics.median(times) / repeats[batch], ratio)
    return shares


# The closed form against materialised centroids ---------------------------------------------------------------------


def materialised(texts: torch.Tensor, modalities: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The definition (Eq. 2 and 3): a centroid for every query and clip."""
    weights = query_weights(texts, modalities, mask)
    centroids = normalize(torch.einsum("qvm,vmd->qvd", weights, modalities), dim=-1)
    return torch.einsum("qd,qvd->qv", texts, centroids)


def compare_scores(batch_size: int, dim: int, rounds: int) -> dict[str, float]:
    """Return how much more time and memory materialised centroids take than the closed form, and how they differ."""
    inputs = texts, modalities, mask = make_embeddings(batch_size, dim)
    upstream = torch.randn(batch_size, batch_size)

    def step(scores: Callable) -> tuple[torch.Tensor, ...]:
        """The score with its gradients."""
        return torch.autograd.grad(scores(*inputs), (texts, modalities), upstream)

    # Time forward and backward, memory between them.
    times = measure({scores: partial(step, scores) for scores in (retrieval_scores, materialised)}, rounds)
    sizes = {scores: saved_bytes(partial(scores, *inputs), inputs) for scores in times}

    # The largest difference of gradients, relative to the largest gradient.
    differences = []
    for closed, direct in zip(step(retrieval_scores), step(materialised), strict=True):
        differences.append(((closed - direct).abs().max() / direct.abs().max()).item())
    return {
        "seconds": statistics.median(times[retrieval_scores]),
        "bytes": sizes[retrieval_scores],
        "time_ratio": median_ratio(times[materialised], times[retrieval_scores]),
        "memory_ratio": sizes[materialised] / sizes[retrieval_scores],
        "gradient_difference": max(differences),
    }


# A step of the trainer ----------------------------------------------------------------------------------------------


def make_batch(
    config: ScalarConfig,
    batch_size: int,
    num_frames: int,
    segment_length: int,
    text_lengths: tuple[int, int],
    presence: torch.Tensor,
    num_rows: int,
) -> dict[str, torch.Tensor]:
    """Return random inputs of a step, with texts of maximum length."""
    generator = torch.Generator().manual_seed(batch_size)
    size = config.vision_config.image_size
    texts = []
    for length in text_lengths:
        texts.append(torch.randint(5, config.text_config.vocab_size, (batch_size, length), generator=generator))
    captions, subtitles = texts
    return {
        "input_ids": captions,
        "attention_mask": torch.ones_like(captions),
        "pixel_values_videos": torch.randn(batch_size, num_frames, 3, size, size, generator=generator),
        "input_features": torch.randn(batch_size, 1, segment_length, 64, generator=generator),
        "subtitle_input_ids": subtitles,
        "subtitle_attention_mask": torch.ones_like(subtitles),
        "modality_mask": make_mask(batch_size, presence, generator),
        "clip_index": torch.randint(num_rows, (batch_size,), generator=generator),
    }


class TimedStep:
    """
    A training step of the Trainer without data loading, with the time of its parts.

    Called with a batch, it returns seconds: `total`; `vision_model`, `audio_model` and `text_model` for their forward
    passes; `rest` of the forward pass; `backward`; `optimizer`. CPU time on a CPU, otherwise GPU time.
    """

    def __init__(self, trainer: ScalarTrainer):
        self.trainer = trainer
        self.model, self.optimizer = trainer.accelerator.prepare(trainer.model.train(), trainer.create_optimizer())
        self._spans: list[tuple] = []
        self._entered: list = []  # towers do not overlap
        for name in TOWERS:
            tower = getattr(trainer.scalar_model, name)
            tower.register_forward_pre_hook(lambda *_: self._entered.append(self._mark()))
            tower.register_forward_hook(
                lambda *_, name=name: self._spans.append((name, self._entered.pop(), self._mark()))
            )

    def _mark(self):
        if self.trainer.args.device.type != "cuda":
            return time.process_time()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    @contextmanager
    def _span(self, name: str):
        start = self._mark()
        yield
        self._spans.append((name, start, self._mark()))

    def __call__(self, batch: dict[str, torch.Tensor]) -> dict[str, float]:
        trainer = self.trainer
        self._spans.clear()
        with self._span("total"):
            with self._span("rest"):
                loss = trainer.compute_loss(self.model, batch)
            with self._span("backward"):
                trainer.accelerator.backward(loss)
            with self._span("optimizer"):
                trainer.accelerator.clip_grad_norm_(self.model.parameters(), trainer.args.max_grad_norm)
                self.optimizer.step()
                self.optimizer.zero_grad(set_to_none=True)

        # GPU events have times once all work has ended.
        on_gpu = trainer.args.device.type == "cuda"
        if on_gpu:
            torch.cuda.synchronize()
        seconds: dict[str, float] = {}
        for name, start, end in self._spans:
            if on_gpu:
                taken = start.elapsed_time(end) / 1e3
            else:
                taken = end - start
            seconds[name] = seconds.get(name, 0.0) + taken
        seconds["rest"] -= sum(seconds.get(name, 0.0) for name in TOWERS)
        return seconds


def make_trainer(
    model: ScalarModel, recipe: str, targets: SemanticTargets, folder: Path, **options: Any
) -> ScalarTrainer:
    """Return a trainer at a step where all terms are active."""
    args = ScalarTrainingArguments(
        output_dir=str(folder),
        adapter=recipe,
        loss_warmup_steps=0,
        full_view_decay_steps=0,
        report_to=[],
        **options,
    )
    return ScalarTrainer(model, args, semantic_targets=targets)


def with_features(trainer: ScalarTrainer, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the same batch with the outputs of the frozen towers instead of their inputs."""
    others = dict(batch)
    frames = others.pop("pixel_values_videos")
    sounds = others.pop("input_features")
    with torch.no_grad():
        features = trainer.scalar_model.get_tower_features(
            pixel_values_videos=frames, input_features=sounds, modality_mask=batch["modality_mask"]
        )
    return others | features


def make_miniature() -> ScalarModel:
    """Return the small model that is trained on the miniature benchmark, with random weights."""
    # Random texts need a vocabulary: words of three letters.
    words = map("".join, product("bdfgklmnprst", "aeiou", "bdfgklmnprst"))
    return build_new(words)[0]


def make_miniature_step(
    recipe: str, targets: SemanticTargets, folder: Path, batch_size: int
) -> tuple[ScalarTrainer, dict[str, torch.Tensor]]:
    """Return a trainer of the miniature model, and a batch for it."""
    trainer = make_trainer(make_miniature(), recipe, targets, folder, use_cpu=True)
    num_rows = len(targets.clip_of_row)
    return trainer, make_batch(trainer.scalar_config, batch_size, 3, 128, MINIATURE_LENGTHS, PRESENCE, num_rows)


def compare_features(
    targets: SemanticTargets, folder: Path, batch_size: int, rounds: int
) -> dict[str, list[dict[str, float]]]:
    """Return the times of the miniature model's steps, from pixels and from cached features in turn."""
    trainer, pixels = make_miniature_step("paper", targets, folder, batch_size)
    step = TimedStep(trainer)
    batches = {"pixels": pixels, "features": with_features(trainer, pixels)}
    steps = {}
    for number in range(rounds + 1):
        for name, batch in batches.items():
            parts = step(batch)
            if number > 0:  # the first round warms up
                steps.setdefault(name, []).append(parts)
    return steps


def compare_frozen(targets: SemanticTargets, folder: Path, batch_size: int) -> dict[str, int]:
    """Return the bytes that a step of the miniature model stores for its backward pass, by adapter recipe."""
    sizes = {}
    for recipe in RECIPES:
        trainer, batch = make_miniature_step(recipe, targets, folder, batch_size)
        model = trainer.model.train()
        # Weights and inputs are there anyway.
        given = [*model.parameters(), *model.buffers(), *batch.values()]
        sizes[recipe] = saved_bytes(partial(trainer.compute_loss, model, batch), given)
    return sizes


# The whole recipe on a GPU ------------------------------------------------------------------------------------------


def product_rate(size: int, dtype: torch.dtype, device: torch.device) -> float:
    """Return the FLOP/s of square matrix products, the fastest of ten."""
    a, b = torch.randn(2, size, size, device=device, dtype=dtype)
    seconds = []
    for _ in range(12):
        start = time.perf_counter()
        a @ b
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return 2 * size**3 / min(seconds[2:])


def print_full_size(
    config: ScalarConfig,
    targets: SemanticTargets,
    folder: Path,
    precision: str,
    rounds: int,
    device: torch.device,
    batch_size: int = 128,
    segment_length: int = 1024,
    product_size: int = 8192,
) -> None:
    """Time steps of the paper's recipe with complete clips and print the time of each part."""
    on_gpu = device.type == "cuda"
    options: dict[str, Any] = {"use_cpu": True}
    dtype = torch.float32
    where = "CPU"
    if on_gpu:
        options = {precision: True}
        dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[precision]
        where = torch.cuda.get_device_name()
    with device:
        model = ScalarModel(config)
    trainer = make_trainer(model, "paper", targets, folder, per_device_train_batch_size=batch_size, **options)
    step = TimedStep(trainer)
    batch = make_batch(config, batch_size, 2, segment_length, TEXT_LENGTHS, torch.ones(3), len(targets.clip_of_row))
    batch = {name: value.to(device) for name, value in batch.items()}

    # The first step warms up, the second is counted, the others are timed.
    step(batch)
    with FlopCounterMode(display=False) as counter:
        step(batch)
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    steps = [step(batch) for _ in range(rounds)]
    parts = {}
    for name in steps[0]:
        parts[name] = statistics.median(one[name] for one in steps)
    total = parts.pop("total")
    print(f"the paper's recipe on {where}, {str(dtype).removeprefix('torch.')}, {batch_size} clips a step")
    memory = ""
    if on_gpu:
        memory = f", peak memory {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB"
    print(f"  {total * 1e3:.1f} ms a step, {batch_size / total:.1f} clips/s{memory}")
    for name, value in sorted(parts.items(), key=lambda item: -item[1]):
        if name in (*TOWERS, "rest"):
            name += " forward"
        print(f"  {name:21}{value / total:6.1%}")

    # The same steps from cached features, then the least that the step could take.
    features = with_features(trainer, batch)
    step(features)
    cached = statistics.median(step(features)["total"] for _ in range(rounds))
    print(f"  from cached features {cached * 1e3:.1f} ms a step: from pixels {total / cached:.1f} x that")
    flops = counter.get_total_flops()
    rate = product_rate(product_size, dtype, device)
    print(
        f"  its matrix products: {flops / 1e12:.3g} TFLOP, {flops / rate * 1e3:.1f} ms at the {rate / 1e12:.3g} "
        f"TFLOP/s of one large product: the step takes {total * rate / flops:.2f} x that"
    )
    print(
        f"  {STEPS:,} steps: {STEPS * total / 3600:.2f} h here, {STEPS * cached / 3600:.2f} h from features, reading "
        f"not counted (the paper: about {HOURS} h on four A100)"
    )


def print_ratios(targets: SemanticTargets, folder: Path, config: TrainingConfig) -> None:
    """Measure and print everything that needs no GPU."""
    print(f"{config.threads} thread(s), float32, median of {config.rounds} rounds")
    # The objective's share of a step of BERT.
    shares = compare_objective(targets, config.batches, config.rounds, config.bert_batch, BertConfig(), config.dim)
    print(f"objective, forward and backward, of BERT-base's (at {config.bert_batch} captions, scaled linearly)")
    for batch, (seconds, share) in shares.items():
        verdict = ""
        if batch in LIMITS:
            is_below = "yes" if share < LIMITS[batch] else "no"
            verdict = f"  below {LIMITS[batch]:.1%}: {is_below}"
        print(f"  {batch:5} clips {seconds * 1e3:9.1f} ms {share:9.3%}{verdict}")

    # Time and memory of the definition, relative to the closed form.
    print("materialised centroids to the closed form, forward and backward")
    for batch in config.score_batches:
        result = compare_scores(batch, config.dim, config.rounds)
        print(
            f"  {batch:5} clips {result['seconds'] * 1e3:9.1f} ms {result['time_ratio']:8.1f} x   "
            f"{result['bytes'] / 2**20:6.1f} MiB {result['memory_ratio']:6.1f} x   "
            f"gradients differ by {result['gradient_difference']:.0e} of the largest"
        )

    # What frozen towers save: time if their outputs are cached, and memory.
    print(f"a step of the miniature model, {config.step_batch} clips, recipe paper, files read before")
    steps = compare_features(targets, folder, config.step_batch, config.rounds)
    totals = {}
    for name, values in steps.items():
        totals[name] = [one["total"] for one in values]
    shares = []
    for one in steps["pixels"]:
        shares.append((one["vision_model"] + one["audio_model"]) / one["total"])
    for name, values in totals.items():
        ratio = median_ratio(values, totals["features"])
        print(f"  from {name:9}{statistics.median(values) * 1e3:8.1f} ms {ratio:8.2f} x")
    print(f"  the frozen towers take {statistics.median(shares):.0%} of a step from pixels")
    print("  kept for the backward pass")
    sizes = compare_frozen(targets, folder, config.step_batch)
    for recipe, size in sizes.items():
        print(f"    {recipe:12}{size / 2**20:8.1f} MiB {size / sizes['paper']:8.2f} x")


def main(config: TrainingConfig) -> None:
    if config.gpu and not torch.cuda.is_available():
        raise ValueError("--gpu needs a CUDA device, but torch finds none.")
    torch.set_num_threads(config.threads)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        targets = make_targets(folder)
        if config.gpu:
            device = torch.device("cuda")
            print_full_size(ScalarConfig(), targets, folder, config.precision, config.rounds, device)
        else:
            print_ratios(targets, folder, config)
