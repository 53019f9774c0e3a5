"""Decodes audio of any rate and channel count with soundfile; soxr resamples to 16 kHz, channels are averaged."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import soundfile
import soxr

from omni_media.source import Limits, MediaSource

SAMPLE_RATE = 16_000
SHORTEST_SECONDS = 0.025
"""One analysis window of the feature extractor; a shorter clip has no feature."""

BLOCK_FRAMES = 2**18
"""Samples of each channel that are decoded at once."""

Samples = npt.NDArray[np.float32]


def load_audio(source: MediaSource, limits: Limits) -> Samples:
    """Load the audio of a content part as mono float32 samples at 16 kHz.

    The part has ``path``, ``data`` (the bytes of a file), or ``samples`` (``[n]`` or ``[n, channels]``, float in [-1, 1]) with
    ``sample_rate``.

    Raises:
        InvalidRequestError: no audio, damaged, empty, too long, or not finite; the message names it.
    """
    given = source.part.get("samples")
    if given is not None:
        rate = source.part.get("sample_rate")
        if not isinstance(rate, int) or rate <= 0:
            raise source.fail("`samples` need a `sample_rate` in Hz")
        source.spend("request_samples", np.size(given), limits)
        return to_mono_16k(source, limits, np.asarray(given, dtype=np.float32), rate)
    try:
        with source.open(limits) as stream, soundfile.SoundFile(stream) as file:
            # Check the header's length before decoding anything. The header of a truncated file is wrong, so check the
            # decoded length too.
            if file.frames > limits.max_audio_seconds * file.samplerate:
                raise too_long(source, limits, file.frames / file.samplerate)
            source.spend("request_samples", file.frames * file.channels, limits)
            expected, rate = file.frames, file.samplerate
            # One channel is kept of each block: a file of many channels is small where they are silent.
            blocks = [averaged(each) for each in file.blocks(BLOCK_FRAMES, dtype="float32", always_2d=True)]
            samples = np.concatenate(blocks) if blocks else np.zeros(0, np.float32)
    except soundfile.LibsndfileError as error:
        raise source.fail(f"not an audio file, or damaged: {error.error_string}") from error
    if len(samples) < expected:
        raise source.fail(f"the audio is truncated: {len(samples)} of {expected} samples are present")
    return to_mono_16k(source, limits, samples, rate)


def too_long(source: MediaSource, limits: Limits, seconds: float) -> Exception:
    """Return the error of a clip over the limit."""
    return source.too_large(
        f"{seconds:.1f} s of audio are over the limit of {limits.max_audio_seconds:g} s (max_audio_seconds)"
    )


def to_mono_16k(source: MediaSource, limits: Limits, samples: Samples, rate: int) -> Samples:
    """Check samples at ``rate`` Hz, average their channels and resample them to 16 kHz."""
    seconds = len(samples) / rate
    if seconds > limits.max_audio_seconds:
        raise too_long(source, limits, seconds)
    if seconds < SHORTEST_SECONDS:
        raise source.fail(f"{seconds * 1000:.0f} ms of audio; at least {SHORTEST_SECONDS * 1000:.0f} ms are needed")
    if not np.isfinite(samples).all():
        raise source.fail("the audio holds NaN or infinite samples")
    mono = averaged(samples)
    if rate != SAMPLE_RATE:
        mono = soxr.resample(mono, rate, SAMPLE_RATE, quality="HQ")
    return np.ascontiguousarray(mono, dtype=np.float32)


def averaged(samples: Samples) -> Samples:
    """Return samples ``[n]``, or the average of the channels of samples ``[n, channels]``."""
    return samples.mean(axis=1, dtype=np.float32) if samples.ndim == 2 else samples
