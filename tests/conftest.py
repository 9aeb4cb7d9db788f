"""Fixtures: a tiny model of the paper's architecture, its processor, and the folder of reference material."""

import gc
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import BertTokenizer

from scalar_retrieval.modeling_scalar import (
    BeatsConfig,
    ScalarConfig,
    ScalarFeatureExtractor,
    ScalarImageProcessor,
    ScalarModel,
    ScalarProcessor,
)
from tests.commands import Commands

# What a shell starts in the background ignores Ctrl-C, and so would every command that a test interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parent.parent
# A worker that came to one of these last would keep the others waiting for it.
LONGEST = """
    trainer/test_trainer_session.py test_training.py test_broken_media.py hub_cards/test_round_trip.py test_cases.py
    test_elsewhere.py search/test_distributed.py trainer/test_scalar_trainer.py test_end_to_end.py test_types.py
    search/test_evidence.py gallery/decoding/test_reader.py trainer/test_continued.py trainer/test_joint_training.py
    modeling_scalar/test_definitions.py trainer/test_fields.py
""".split()


def pytest_ignore_collect(collection_path, config):
    """Where one mark is asked for, as by `-m "e2e and not slow"`, do not even import the files without it."""
    asked = re.fullmatch(r"(\w+)(?: and not \w+)*", config.option.markexpr)
    if asked and collection_path.match("test_*.py"):
        return asked[1] not in collection_path.read_text(encoding="utf-8") or None
    return None


def pytest_collection():
    """Collect no garbage while modules are imported, of which there is none: that takes two seconds of each worker."""
    gc.disable()


def pytest_collection_modifyitems(items):
    """Let the files that take minutes begin first; `make test` keeps this order (`--no-loadscope-reorder`)."""
    gc.freeze()  # collecting, which each training does, need not go through all that was imported
    gc.enable()
    places = {ROOT / "tests" / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


def pytest_configure(config):
    """Know the marks of transformers' own mixins too, which tests/transformers_suite runs."""
    for name in "accelerate_tests flash_attn_test flash_attn_3_test flash_attn_4_test torch_compile_test".split():
        config.addinivalue_line("markers", f"{name}: of transformers")


def pytest_addoption(parser):
    parser.addoption(
        "--fast", action="store_true", help="skip tests at the moment they start another Python or a whole training"
    )


@pytest.fixture(scope="session", autouse=True)
def other_pythons(pytestconfig):
    """With `--fast`, tests that start Python are skipped: importing torch and transformers anew takes five seconds."""
    start = subprocess.Popen.__init__

    def skip_python(self, args, *arguments, **options):
        if sys.executable in (args if isinstance(args, str) else " ".join(map(str, args))):
            pytest.skip("starts Python")
        start(self, args, *arguments, **options)

    with pytest.MonkeyPatch.context() as patched:
        if pytestconfig.getoption("fast"):
            patched.setattr(subprocess.Popen, "__init__", skip_python)
        yield


@pytest.fixture(scope="session")
def unless_fast(pytestconfig):
    """For fixtures that train or publish for long in this process: skip what needs them, with `--fast`."""
    if pytestconfig.getoption("fast"):
        pytest.skip("takes long")


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The reference material; tests that need it are skipped without it, but never in CI."""
    folder = (ROOT / os.environ.get("SCALAR_SHARED", "../shared")).resolve()
    if not folder.is_dir():
        message = f"no reference material at {folder}; set SCALAR_SHARED"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    return folder


def make_tiny_config(**changes) -> ScalarConfig:
    """Every tower at most two layers wide enough for its heads; the paper's structure."""
    fields = {
        "vision_config": {
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": 32,
            "patch_size": 16,
        },
        "audio_config": BeatsConfig(
            hidden_size=24,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            patch_embed_dim=16,
            num_conv_pos_embeddings=4,
            num_conv_pos_embedding_groups=2,
            num_buckets=8,
            max_bucket_distance=16,
        ),
        "text_config": {
            "vocab_size": 60,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "max_position_embeddings": 80,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
            # Wide enough that captions differ visibly in their embeddings.
            "initializer_range": 0.2,
        },
        "projection_dim": 16,
    }
    return ScalarConfig(**fields | changes)


@pytest.fixture
def tiny_model() -> ScalarModel:
    torch.manual_seed(0)
    return ScalarModel(make_tiny_config()).eval()


@pytest.fixture(scope="session")
def tiny_processor() -> ScalarProcessor:
    words = "a the red blue circle square dog cat barks meows and low high tone says about hello weather music".split()
    vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    return ScalarProcessor(
        ScalarImageProcessor(image_size=32),
        ScalarFeatureExtractor(segment_length=64),
        BertTokenizer(vocab={word: index for index, word in enumerate(vocab)}),
        num_frames=2,
    )


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory, tiny_processor) -> Path:
    """A saved tiny model with its processor, as `from_pretrained` expects it."""
    folder = tmp_path_factory.mktemp("tiny-model")
    torch.manual_seed(0)
    ScalarModel(make_tiny_config()).save_pretrained(folder)
    tiny_processor.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def media_corpus(tmp_path_factory) -> Path:
    """The folder of all files of `tests/media_corpus.py`, which nobody may change."""
    from tests.media_corpus import write_corpus

    folder = tmp_path_factory.mktemp("media")
    write_corpus(folder)
    return folder


def make_batch(batch_size: int = 4, seed: int = 0, frames: int = 2, segments: int = 1) -> dict[str, torch.Tensor]:
    """Random inputs of the tiny model, with every modality present and some padding."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(3, 9, (batch_size,), generator=generator)
    attention_mask = (torch.arange(8) < lengths[:, None]).long()
    subtitle_mask = (torch.arange(10) < (lengths + 1)[:, None]).long()
    return {
        "input_ids": torch.randint(5, 60, (batch_size, 8), generator=generator) * attention_mask,
        "attention_mask": attention_mask,
        "pixel_values_videos": torch.randn(batch_size, frames, 3, 32, 32, generator=generator),
        "input_features": torch.randn(batch_size, segments, 64, 64, generator=generator),
        "subtitle_input_ids": torch.randint(5, 60, (batch_size, 10), generator=generator) * subtitle_mask,
        "subtitle_attention_mask": subtitle_mask,
        "modality_mask": torch.ones(batch_size, 3, dtype=torch.bool),
    }


@pytest.fixture
def batch() -> dict[str, torch.Tensor]:
    return make_batch()


@pytest.fixture(scope="session")
def commands(tmp_path_factory, other_pythons):
    """Runs the project's commands quickly, each in a process of its own."""
    running = Commands(tmp_path_factory.mktemp("commands"))
    yield running
    running.close()
