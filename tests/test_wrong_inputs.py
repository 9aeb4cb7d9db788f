"""Every wrong input of the table is answered by one sentence and the exit code of the table, and changes nothing."""

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model

from eval.embedding.embeddings import Embeddings
from eval.miniature import generate
from modeling_scalar import load_model
from tests.wrong_inputs import make

PEAK = 1.5e9


def _make_embeddings() -> Embeddings:
    generator = torch.Generator().manual_seed(0)
    clips = torch.nn.functional.normalize(torch.randn(12, 3, 16, generator=generator), dim=-1)
    texts = torch.nn.functional.normalize(clips[:, 0] + 0.4 * torch.randn(12, 16, generator=generator), dim=-1)
    names = [f"clip{number}" for number in range(12)]
    return Embeddings(
        text_embeds=texts,
        modality_embeds=clips,
        modality_mask=torch.ones(12, 3, dtype=torch.bool),
        pairs=torch.arange(12)[:, None].expand(-1, 2),
        clip_ids=names,
        query_ids=[f"{name}#0" for name in names],
        captions=[f"caption {name}" for name in names],
    )


@pytest.fixture(scope="module")
def valid(tmp_path_factory, tiny_model_dir, tiny_processor, commands) -> Path:
    """A folder with one of everything that a command takes."""
    folder = tmp_path_factory.mktemp("valid")
    shutil.copytree(tiny_model_dir, folder / "model")
    base, _ = load_model(folder / "model")
    lora = LoraConfig(
        task_type="FEATURE_EXTRACTION", r=2, target_modules=r"text_model\..*\.query",
        modules_to_save=["text_projection"],
    )  # fmt: skip
    get_peft_model(base, lora).save_pretrained(folder / "adapter")
    tiny_processor.save_pretrained(folder / "adapter")
    base.config.save_pretrained(folder / "adapter")
    make(folder / "adapter" / "adapter_config.json", _fields(base_model_name_or_path="model"))
    generate(folder / "data", num_train=2, num_test=3, num_proc=1)
    rows = json.loads((folder / "data" / "test.json").read_text()) if (folder / "data" / "test.json").exists() else []
    _make_embeddings().save(folder / "embeddings")
    for argv in (
        "-m search index data/test --model model --output gallery",
        "-m eval run --embeddings embeddings --output results --rate 0 --label ours",
    ):
        outcome = commands.run(*argv.split(), cwd=folder, timeout=60)
        assert outcome.code == 0, outcome.stderr
    return folder


def _fields(**changes):
    from tests.wrong_inputs import Fields

    return Fields(changes)


def digests(folder: Path) -> dict[str, str]:
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = os.readlink(path)
        elif path.is_file():
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found
