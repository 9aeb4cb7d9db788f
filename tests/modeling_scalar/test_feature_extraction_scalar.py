import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from scalar_retrieval.modeling_scalar.feature_extraction_scalar import ScalarFeatureExtractor, kaldi_fbank
from scalar_retrieval.modeling_scalar.media_scalar import resample

MEAN, STD = 15.41663, 6.55582


def noise(num_samples, seed=0):
    return torch.randn(num_samples, generator=torch.Generator().manual_seed(seed)) * 0.1


def slow_fbank(samples, num_mel_bins):
    """Kaldi's recipe in float64, one window at a time, without an FFT."""

    def mel(frequency):
        return 1127.0 * np.log(1.0 + frequency / 700.0)

    places, frequencies = np.arange(400), np.arange(256)  # Kaldi leaves out the Nyquist frequency, without weight
    povey = (0.5 - 0.5 * np.cos(2 * np.pi * places / 399)) ** 0.85
    waves = np.exp(-2j * np.pi * frequencies[:, None] * places / 512)
    edges = np.linspace(mel(20.0), mel(8000.0), num_mel_bins + 2)[:, None]
    low, middle, high = edges[:-2], edges[1:-1], edges[2:]
    points = mel(frequencies * 31.25)
    filters = np.minimum((points - low) / (middle - low), (high - points) / (high - middle)).clip(min=0.0)
    rows = []
    for start in range(0, len(samples) - 399, 160):
        window = samples[start : start + 400].double().numpy() * 32768.0
        window = window - window.mean()
        window = window - 0.97 * window[np.maximum(places - 1, 0)]
        power = np.abs(waves @ (window * povey)) ** 2
        rows.append(np.log((filters @ power).clip(min=2.0**-23)))
    return torch.from_numpy(np.stack(rows))


@pytest.mark.filterwarnings("error")  # of the filter that is empty with 128 bins
@pytest.mark.parametrize("num_mel_bins", [64, 128])
def test_fbank_is_kaldis_recipe_computed_slowly(num_mel_bins):
    samples = noise(1000) + 0.3 * torch.sin(torch.arange(1000) * 0.4) + 0.05
    expected = slow_fbank(samples, num_mel_bins)
    assert expected.shape == (4, num_mel_bins)
    fbank = kaldi_fbank(samples, num_mel_bins)
    assert fbank.dtype == torch.float32
    torch.testing.assert_close(fbank.double(), expected, atol=1e-5, rtol=0)  # rounded once, to float32


@pytest.mark.parametrize("num_mel_bins", [64, 128])
@pytest.mark.parametrize("clip", ["clip1", "clip3"])
def test_fbank_agrees_with_kaldi_on_real_sound(shared_dir, clip, num_mel_bins):
    reference = load_file(shared_dir / "reference" / "kaldi_fbank.safetensors")
    expected = reference[f"{clip}.fbank{num_mel_bins}"]
    assert expected.std() > 1
    fbank = kaldi_fbank(reference[f"{clip}.waveform_int16"].float() / 2**15, num_mel_bins)
    # The reference was computed in float32: in filters that hear almost nothing it is up to 0.0015 from the recipe in
    # float64.
    torch.testing.assert_close(fbank, expected, atol=2e-3, rtol=0)
    assert (fbank - expected).abs().amax(dim=1).kthvalue(len(fbank) - 8).values < 1e-3


def all_segments(waveform, length, minimum=1):
    """The whole filter bank, normalised, padded and cut."""
    features = (kaldi_fbank(waveform) - MEAN) / (2 * STD)
    count = max(math.ceil(len(features) / length), minimum)
    padded = torch.zeros(count * length, features.shape[1])
    padded[: len(features)] = features
    return padded.view(count, length, -1)


@pytest.mark.parametrize(
    ("windows", "num_segments", "expected"),
    [(1, 1, [0]), (9, 2, [0, 1]), (11, 1, [0]), (35, 1, [1]), (35, 2, [0, 2])],
)
def test_segments_are_cut_from_the_normalised_and_padded_filter_bank(windows, num_segments, expected):
    """The middle one of each of as many equal parts as there are segments."""
    waveform = noise(400 + 160 * (windows - 1))
    segments = all_segments(waveform, 10, num_segments)
    features = ScalarFeatureExtractor(segment_length=10, num_segments=num_segments).process_waveform(waveform)
    assert features.dtype == torch.float32
    torch.testing.assert_close(features, segments[expected], atol=1e-5, rtol=0)  # FFT batching


def test_training_draws_segments_from_the_generator():
    extractor, waveform = ScalarFeatureExtractor(segment_length=10), noise(400 + 160 * 59)
    segments = all_segments(waveform, 10)
    generator, seen = torch.Generator().manual_seed(0), set()
    for _ in range(60):
        distances = (extractor.process_waveform(waveform, True, generator) - segments).abs().amax(dim=(1, 2))
        assert distances.min() < 1e-5
        seen.add(distances.argmin().item())
    assert seen == set(range(6))


@pytest.mark.parametrize("name", ["num_mel_bins", "sampling_rate", "segment_length", "num_segments"])
def test_impossible_settings_are_refused(name):
    with pytest.raises(ValueError, match=name):
        ScalarFeatureExtractor(**{name: 0})


def test_a_call_checks_its_keywords_and_the_sampling_rate():
    extractor, waveform = ScalarFeatureExtractor(segment_length=16), noise(2000).numpy()
    expected = extractor([waveform])["input_features"]
    assert torch.equal(extractor(waveform, sampling_rate=16_000, padding=True)["input_features"], expected)
    with pytest.raises(ValueError, match="8000"):
        extractor(waveform, sampling_rate=8000)
    slower = ScalarFeatureExtractor(sampling_rate=8000, segment_length=16)
    resampled = resample(waveform[None], 44_100, 8000)
    assert torch.equal(slower((waveform, 44_100))["input_features"], slower(resampled)["input_features"])
