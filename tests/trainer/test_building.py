"""A new model and its vocabulary: the same from the same texts, able to spell what it has not seen."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import BertTokenizer

from trainer.building import build_new, learn_vocabulary

ROOT = Path(__file__).resolve().parents[2]
TEXTS = ["A red star, slowly.", "a RED circle", "Zo\u00eb says: hello", "star star"]


def test_frequent_words_are_tokens_and_new_words_are_spelt():
    tokenizer = BertTokenizer(vocab=learn_vocabulary(TEXTS, 100))
    assert tokenizer.tokenize("A red STAR!") == ["a", "red", "star", "[UNK]"]
    assert tokenizer.tokenize("rest") == ["r", "##e", "##s", "##t"]
    assert tokenizer.tokenize("zo\u00eb") == ["zoe"]
    assert [tokenizer.convert_ids_to_tokens(i) for i in range(5)] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def test_the_rarest_words_go_first_where_there_is_no_room():
    full = list(learn_vocabulary(TEXTS, 100))
    assert full[-1] == "zoe"
    assert list(learn_vocabulary(TEXTS, len(full) - 1)) == full[:-1]
    with pytest.raises(ValueError, match="vocab_size"):
        learn_vocabulary(TEXTS, 10)


def test_the_order_of_texts_changes_no_vocabulary():
    learnt = list(learn_vocabulary(TEXTS, 60))
    assert list(learn_vocabulary(reversed(TEXTS), 60)) == learnt and "star" in learnt


@pytest.mark.slow
def test_two_processes_learn_the_same_vocabulary():
    script = f"from trainer.building import learn_vocabulary; print(list(learn_vocabulary({TEXTS!r}, 60)))"
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"  # sets are ordered otherwise than here
    answer = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": seed},
    ).stdout
    assert answer == f"{list(learn_vocabulary(TEXTS, 60))}\n" and "star" in answer


@pytest.mark.parametrize(("text", "message"), [("model: {}\n", "sections"), (None, "nowhere")])
def test_a_bad_description_is_refused(tmp_path, text, message):
    path = tmp_path / "nowhere.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        build_new(path, TEXTS)


def test_fields_of_a_run_win_over_the_description():
    described, _ = build_new(ROOT / "recipes" / "miniature_model.yaml", TEXTS)
    changed, _ = build_new(ROOT / "recipes" / "miniature_model.yaml", TEXTS, condition_on=["video", "subtitle"])
    assert described.config.condition_on == ["video", "audio", "subtitle"]
    assert changed.config.condition_on == ["video", "subtitle"]
