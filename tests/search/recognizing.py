"""Recognisers for tests: one that hears what it is set to, and a tiny one of transformers with random weights."""

import json
from threading import Lock

import torch
from transformers import Wav2Vec2Config, Wav2Vec2CTCTokenizer, Wav2Vec2FeatureExtractor, Wav2Vec2ForCTC

from scalar_retrieval.search.recognizers import SpeechRecognizer


def save_ctc(folder):
    """Save a recogniser with random weights: the letters that it hears mean nothing."""
    vocab = {token: index for index, token in enumerate(["<pad>", "<s>", "</s>", "<unk>", "|", *"abcdefghij"])}
    (folder / "vocab.json").write_text(json.dumps(vocab))
    torch.manual_seed(0)
    config = Wav2Vec2Config(
        vocab_size=len(vocab), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        conv_dim=(16,) * 7, num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2, initializer_range=1.0,
    )  # fmt: skip
    model = Wav2Vec2ForCTC(config)
    model.lm_head.bias.data[:4] = torch.tensor([2.0, -100.0, -100.0, -100.0])  # letters, fewer than anybody says
    model.save_pretrained(folder)
    Wav2Vec2CTCTokenizer(str(folder / "vocab.json")).save_pretrained(folder)
    Wav2Vec2FeatureExtractor(return_attention_mask=False).save_pretrained(folder)
    return folder


def heard_by(kind, answer, is_doubtful=False):
    """A recogniser that hears `answer`, and may doubt it."""
    recognizer = SpeechRecognizer.__new__(SpeechRecognizer)
    recognizer.name, recognizer.kind, recognizer.calls = "fake/model", kind, []

    def hear(sound, **options):
        recognizer.calls.append((len(sound["raw"]), options))
        return answer(len(recognizer.calls)) if callable(answer) else answer

    recognizer.pipeline = hear
    recognizer._is_doubtful = lambda waveform, text: is_doubtful
    recognizer.most_tokens, recognizer._lock = 440, Lock()
    return recognizer
