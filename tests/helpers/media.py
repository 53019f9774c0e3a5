"""Media files that the end-to-end tests make themselves: seeded, small, and of sizes that no resizing changes."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import soundfile
from PIL import Image

AUDIO_RATE = 16_000
VIDEO_RATE = 2


def write_image(path: Path, seed: int, size: tuple[int, int] = (64, 96)) -> Path:
    """A PNG of smooth random colours, ``size`` = (height, width)."""
    generator = np.random.default_rng(seed)
    coarse = generator.integers(0, 255, (4, 6, 3), dtype=np.uint8)
    Image.fromarray(coarse).resize((size[1], size[0]), Image.Resampling.BICUBIC).save(path)
    return path


def tone(seed: int, seconds: float) -> np.ndarray:
    """Float32 mono at 16 kHz: a few random partials and a little noise."""
    generator = np.random.default_rng(seed)
    time = np.arange(int(seconds * AUDIO_RATE)) / AUDIO_RATE
    wave = sum(
        np.sin(2 * np.pi * f * time + p)
        for f, p in zip(generator.uniform(80, 3000, 5), generator.uniform(0, 6, 5), strict=True)
    )
    return (0.1 * wave + 0.01 * generator.standard_normal(len(time))).astype(np.float32)


def write_audio(path: Path, seed: int, seconds: float = 1.5) -> Path:
    """A 16 kHz mono float WAV, so that reading it back is exact."""
    soundfile.write(path, tone(seed, seconds), AUDIO_RATE, subtype="FLOAT")
    return path


def write_video(
    path: Path, seed: int, frames: int = 4, size: tuple[int, int] = (320, 448), sound: bool = False, codec: str = "ffv1"
) -> Path:
    """A clip at 2 frames per second (lossless by default), with or without a 16 kHz PCM track of the same length."""
    generator = np.random.default_rng(seed)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=VIDEO_RATE)
        stream.width, stream.height, stream.pix_fmt = size[1], size[0], "bgr0" if codec == "ffv1" else "yuv420p"
        track = container.add_stream("pcm_s16le", rate=AUDIO_RATE, layout="mono") if sound else None
        for index in range(frames):
            coarse = generator.integers(0, 255, (4, 6, 3), dtype=np.uint8)
            picture = np.asarray(Image.fromarray(coarse).resize((size[1], size[0]), Image.Resampling.BICUBIC))
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = index, Fraction(1, VIDEO_RATE)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
        if track is not None:
            samples = (tone(seed, frames / VIDEO_RATE) * 32767).astype(np.int16)[None]
            audio = av.AudioFrame.from_ndarray(samples, format="s16", layout="mono")
            audio.sample_rate, audio.pts, audio.time_base = AUDIO_RATE, 0, Fraction(1, AUDIO_RATE)
            container.mux(track.encode(audio))
            container.mux(track.encode(None))
    return path
