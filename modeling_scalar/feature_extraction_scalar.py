"""Kaldi log-mel filter banks of waveforms, computed with torch and cut into the segments that BEATs reads.

Kaldi's filter bank treats each 25 ms window separately, so only the windows of the chosen segments are computed.
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, TypedDict

import numpy as np
import torch
from transformers.audio_utils import mel_filter_bank
from transformers.feature_extraction_utils import BatchFeature, FeatureExtractionMixin

from .image_processing_scalar import check_whole, frame_indices, to_batch, to_tensor
from .media_scalar import SAMPLING_RATE, resample

_MAX_CHANNELS = 8  # more are probably a batch passed as one waveform


def list_waveforms(audio: Any) -> list:
    """Return a list of waveforms, each as accepted by [`to_waveform`], from one waveform or a list."""
    # A batch and the channels of one waveform have the same shape: no guess, which might average clips.
    if isinstance(audio, (np.ndarray, torch.Tensor)) and audio.ndim > 1 and 1 not in audio.shape:
        raise ValueError(
            f"An array {tuple(audio.shape)} may be several waveforms or the channels of one: pass `list(waveforms)`, "
            "or `[waveform]`."
        )
    if not isinstance(audio, (list, tuple)) or _has_rate(audio):
        return [audio]
    return list(audio)


def _has_rate(audio: Any) -> bool:
    return isinstance(audio, tuple) and len(audio) == 2 and isinstance(audio[1], int)


def to_waveform(audio: Any, sampling_rate: int = SAMPLING_RATE) -> np.ndarray:
    """Convert one waveform to mono, `(samples,)`, at one sampling rate.

    Args:
        audio: A float array or tensor `(samples,)`, `(channels, samples)` or `(samples, channels)` at `sampling_rate`;
            or `{"array": ..., "sampling_rate": ...}`, as in data sets, or a tuple `(array, sampling_rate)`, which is
            resampled. Channels are averaged.
        sampling_rate (`int`): The sampling rate of the result in Hz.
    """
    # The rate may come with the waveform.
    rate = sampling_rate
    if isinstance(audio, Mapping) and {"array", "sampling_rate"} <= audio.keys():
        rate = audio["sampling_rate"]
        audio = audio["array"]
    elif _has_rate(audio):
        audio, rate = audio
    if not isinstance(audio, (np.ndarray, torch.Tensor)):
        raise TypeError(
            "A waveform must be an array, {'array': ..., 'sampling_rate': ...} or a tuple (array, sampling_rate), got "
            f"{type(audio).__name__}."
        )
    waveform = audio.detach().cpu().numpy() if isinstance(audio, torch.Tensor) else audio
    if not np.issubdtype(waveform.dtype, np.floating):
        raise TypeError(f"A waveform must be floats in [-1, 1], got {waveform.dtype}. Divide 16-bit by 2**15.")
    if waveform.size == 0 or (waveform.ndim == 1 and rate == sampling_rate):
        return waveform.reshape(-1)
    # Channels first: there are few of them.
    channels = np.atleast_2d(waveform)
    if channels.ndim != 2 or min(channels.shape) > _MAX_CHANNELS:
        raise ValueError(
            f"A waveform must have the shape (samples,) or (channels, samples) with at most {_MAX_CHANNELS} channels, "
            f"got {waveform.shape}."
        )
    if len(channels) > _MAX_CHANNELS:
        channels = channels.T
    return resample(channels, int(rate), sampling_rate)


def check_sampling_rate(stated: int | None, expected: int) -> None:
    """Raise a ValueError if waveforms have another rate than the feature extractor's."""
    if stated is not None and stated != expected:
        raise ValueError(
            f"`sampling_rate={stated}`, but the feature extractor reads {expected} Hz. Resample the waveforms, or "
            "pass each as a tuple `(waveform, sampling_rate)`."
        )


@lru_cache
def _mel_filters(num_mel_bins: int, sampling_rate: int, fft_length: int) -> torch.Tensor:
    with warnings.catch_warnings():
        # with 128 bins the lowest filter falls between two frequencies; it is empty in Kaldi too
        warnings.filterwarnings("ignore", message="At least one mel filter has all zero values")
        filters = mel_filter_bank(
            num_frequency_bins=fft_length // 2 + 1,
            num_mel_filters=num_mel_bins,
            min_frequency=20.0,
            max_frequency=sampling_rate / 2,
            sampling_rate=sampling_rate,
            norm=None,
            mel_scale="kaldi",
            triangularize_in_mel_space=True,
        )
    return torch.from_numpy(filters)  # (frequencies, mel), float64


def _window_and_shift(sampling_rate: int) -> tuple[int, int]:
    return sampling_rate * 25 // 1000, sampling_rate * 10 // 1000


def kaldi_fbank(waveform: torch.Tensor, num_mel_bins: int = 64, sampling_rate: int = SAMPLING_RATE) -> torch.Tensor:
    """Compute Kaldi's log-mel filter bank of a waveform in [-1, 1], which is first scaled to 16-bit integers.

    Complete windows of 25 ms every 10 ms (snip edges), mean removed, pre-emphasis 0.97, Povey window, power spectrum,
    triangular filters from 20 Hz to half the sampling rate, no dither. Computed in float64 and rounded once: the
    rounding errors of a float32 FFT are relative to the window's total energy, so the third decimal of the logarithm
    of a nearly silent filter would depend on the machine.

    Args:
        waveform (`torch.FloatTensor` of shape `(..., samples)`): The waveform, at least one window long.
    Returns:
        `torch.FloatTensor` of shape `(..., windows, num_mel_bins)`, natural logarithms, at least log(2**-23).
    """
    # Windows without their mean, with pre-emphasis, weighted.
    window, shift = _window_and_shift(sampling_rate)
    fft_length = 2 ** math.ceil(math.log2(window))
    frames = (waveform.double() * 2**15).unfold(-1, window, shift)  # (..., windows, window)
    frames = frames - frames.mean(-1, keepdim=True)
    frames = frames - 0.97 * torch.cat([frames[..., :1], frames[..., :-1]], dim=-1)
    frames = frames * torch.hann_window(window, periodic=False, dtype=torch.float64) ** 0.85  # Povey
    # Power in triangular bands of the mel scale.
    spectrum = torch.fft.rfft(frames, n=fft_length)
    power = spectrum.real.square() + spectrum.imag.square()  # (..., windows, frequencies)
    mel = power @ _mel_filters(num_mel_bins, sampling_rate, fft_length)  # (..., windows, mel)
    return mel.clamp(min=torch.finfo(torch.float32).eps).log().float()


class ScalarAudioKwargs(TypedDict, total=False):
    """Audio options of a call. The rate is checked; `padding` has no effect, because segments have a fixed length."""

    sampling_rate: int | None
    padding: Any
    return_tensors: Any


class ScalarFeatureExtractor(FeatureExtractionMixin):
    """Turn waveforms into `input_features`: normalised filter banks, padded and cut into segments.

    Args:
        num_mel_bins (`int`): Number of mel bins; the default is VAST's, the original BEATs has 128.
        sampling_rate (`int`): Sampling rate in Hz.
        segment_length (`int`): Windows of 10 ms per segment.
        num_segments (`int`): Segments per clip, chosen like frames (`frame_indices`).
        mean (`float`), std (`float`): Values become `(x - mean) / (2 * std)`; padding is zero after that.
    """

    valid_kwargs = ScalarAudioKwargs
    model_input_names = ["input_features"]
    padding_value = 0.0  # for windows beyond the end of a waveform

    def __init__(
        self,
        num_mel_bins: int = 64,
        sampling_rate: int = SAMPLING_RATE,
        segment_length: int = 1024,
        num_segments: int = 1,
        mean: float = 15.41663,
        std: float = 6.55582,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check_whole(
            num_mel_bins=num_mel_bins,
            sampling_rate=sampling_rate,
            segment_length=segment_length,
            num_segments=num_segments,
        )
        self.num_mel_bins = num_mel_bins
        self.sampling_rate = sampling_rate
        self.segment_length = segment_length
        self.num_segments = num_segments
        self.mean = mean
        self.std = std

    @property
    def feature_size(self) -> int:
        """Transformers' name for `num_mel_bins`."""
        return self.num_mel_bins

    @property
    def min_samples(self) -> int:
        """Number of samples of one 25 ms window; a shorter waveform has no filter bank."""
        return _window_and_shift(self.sampling_rate)[0]

    def process_waveform(
        self, waveform: Any, training: bool = False, generator: torch.Generator | None = None
    ) -> torch.Tensor:
        """Compute the chosen segments of one waveform.

        Args:
            waveform: A waveform for [`to_waveform`], at least one window (25 ms) long.
            training (`bool`): Whether to draw segments at random instead of taking the middle of each chunk.
            generator (`torch.Generator`): Required in training.
        Returns:
            `torch.FloatTensor` of shape `(num_segments, segment_length, num_mel_bins)`.
        """
        # Segments are chosen first, so that only their windows are computed.
        waveform = to_waveform(waveform, self.sampling_rate)
        if len(waveform) < self.min_samples:
            raise ValueError(f"A waveform must have at least {self.min_samples} samples (25 ms), got {len(waveform)}.")
        parts = self.choose_parts(len(waveform), training, generator)
        return self.process_parts([waveform[start:stop] for start, stop in parts])

    def choose_parts(
        self, num_samples: int, training: bool = False, generator: torch.Generator | None = None
    ) -> list[tuple[int, int]]:
        """Choose the segments of a waveform of at least one window, as in `process_waveform`. Returns the range
        `(start, stop)` of the samples of each, empty beyond its end."""
        # Whole windows in segments; a short waveform has empty segments up to the number.
        window, shift = _window_and_shift(self.sampling_rate)
        num_windows = 1 + (num_samples - window) // shift
        available = max(math.ceil(num_windows / self.segment_length), self.num_segments)
        parts = []
        for segment in frame_indices(available, self.num_segments, training, generator):
            first = segment * self.segment_length
            count = min(self.segment_length, num_windows - first)
            part = (0, 0)
            if count > 0:  # windows overlap, so the last one reaches beyond its shift
                part = (first * shift, (first + count - 1) * shift + window)
            parts.append(part)
        return parts

    def process_parts(self, parts: Sequence[np.ndarray | torch.Tensor]) -> torch.Tensor:
        """Compute the segments from the samples chosen by `choose_parts`, as in `process_waveform`."""
        features = torch.zeros(self.num_segments, self.segment_length, self.num_mel_bins)
        for row, part in enumerate(map(to_tensor, parts)):
            if len(part):  # a segment beyond the end is padding
                fbank = kaldi_fbank(part, self.num_mel_bins, self.sampling_rate)  # (count, mel)
                features[row, : len(fbank)] = (fbank - self.mean) / (2 * self.std)
        return features

    def __call__(
        self,
        waveforms: Any,
        return_tensors: str | None = "pt",
        sampling_rate: int | None = None,
        padding: Any = True,
    ) -> BatchFeature:
        """Process one waveform or a list of waveforms for inference, see `process_waveform`.

        Args:
            waveforms: A waveform for [`to_waveform`], or a list of them.
            return_tensors (`str`, *optional*): `"pt"`, `"np"`, or `None` for a list with an array per clip.
            sampling_rate (`int`, *optional*), padding: See [`ScalarAudioKwargs`].
        Returns:
            `BatchFeature` with `input_features` of shape `(clips, num_segments, segment_length, num_mel_bins)`.
        """
        check_sampling_rate(sampling_rate, self.sampling_rate)
        features = [self.process_waveform(waveform) for waveform in list_waveforms(waveforms)]
        return to_batch({"input_features": torch.stack(features)}, return_tensors)


ScalarFeatureExtractor.register_for_auto_class("AutoFeatureExtractor")

__all__ = ["ScalarAudioKwargs", "ScalarFeatureExtractor", "kaldi_fbank", "to_waveform"]
