"""The vocoder: any chunking gives the one-shot decode, sample-exact; invalid codes are errors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fish_cases import SHAPES
from hearing import answer, heard
from tiers import few

from omni_fish_s2.codec.memory import StreamState
from omni_fish_s2.vocoder import Vocoder, create_vocoder

FRAMES = 150
"""More than the window of the codec's transformer (128)."""


def frames_of(vocoder: Vocoder, seed: int = 0, count: int = FRAMES) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 64, (count, vocoder.codebooks), generator=generator)


def one_shot(vocoder: Vocoder, frames: torch.Tensor) -> torch.Tensor:
    return vocoder.decode([(StreamState(), frames)])[0]


@pytest.mark.parametrize("shape", few(SHAPES, 2))
@pytest.mark.parametrize(
    "sizes", few([[1] * FRAMES, [3, 7, 140], [4] + [20] * 7 + [6], [149, 1], [1, 2] + [49] * 3], 3)
)
def test_every_stride_equals_the_one_shot_decode(tiny: dict[str, Path], shape: str, sizes: list[int]) -> None:
    vocoder = Vocoder(str(tiny[shape]))
    frames = frames_of(vocoder)
    expected = one_shot(vocoder, frames)
    stream, pieces = StreamState(), []
    for chunk in frames.split(sizes):
        (piece,) = vocoder.decode([(stream, chunk)])
        assert len(piece) == 2048 * len(chunk)
        pieces.append(piece)
    wave = torch.cat(pieces)
    assert wave.shape == expected.shape == (2048 * FRAMES,)
    torch.testing.assert_close(wave, expected, atol=2e-5, rtol=0)
    assert expected.abs().mean() > 0.02


def test_the_state_is_needed_and_bounded(tiny: dict[str, Path]) -> None:
    """Without the state chunks differ (so the test above can fail); it does not grow with the stream."""
    vocoder = Vocoder(str(tiny["a"]))
    frames = frames_of(vocoder)
    apart = torch.cat([one_shot(vocoder, chunk) for chunk in frames.split(50)])
    assert (apart - one_shot(vocoder, frames)).abs().max() > 1e-2
    stream, sizes = StreamState(), set()
    for chunk in frames.split(10):
        vocoder.decode([(stream, chunk)])
        sizes.add(sum(each.untyped_storage().nbytes() for each in stream.kept))
    assert len(sizes) == 1


def test_a_batch_equals_each_alone(tiny: dict[str, Path]) -> None:
    """Streams that begin at different times, with chunks of equal and of different sizes."""
    vocoder = Vocoder(str(tiny["b"]))
    clips = [frames_of(vocoder, seed, 60) for seed in range(4)]
    expected = [one_shot(vocoder, clip) for clip in clips]
    streams = [StreamState() for _ in clips]
    waves = [
        [vocoder.decode([(stream, clip[:n])])[0]]
        for n, stream, clip in zip((5, 10, 10, 20), streams, clips, strict=True)
    ]
    done = [5, 10, 10, 20]
    while any(count < 60 for count in done):
        work = [index for index, count in enumerate(done) if count < 60]
        chunks = [clips[index][done[index] : done[index] + 10] for index in work]
        for index, piece in zip(
            work, vocoder.decode([(streams[i], c) for i, c in zip(work, chunks, strict=True)]), strict=True
        ):
            waves[index].append(piece)
            done[index] += len(piece) // 2048
    for wave, target in zip(waves, expected, strict=True):
        torch.testing.assert_close(torch.cat(wave), target, atol=2e-5, rtol=0)


def test_residual_codes_above_the_codebook_are_its_last_entry(tiny: dict[str, Path]) -> None:
    vocoder = Vocoder(str(tiny["a"]))
    frames = frames_of(vocoder, 0, 4)
    frames[1, 3], frames[2, 9] = 63, 63
    above = frames.clone()
    above[1, 3], above[2, 9] = 64, 255
    assert torch.equal(one_shot(vocoder, frames), one_shot(vocoder, above))


@pytest.mark.parametrize("count", [0, 1, 2, 30])
def test_the_stage_streams_what_it_returns(tiny: dict[str, Path], count: int) -> None:
    frames = frames_of(Vocoder(str(tiny["a"])), 1, count)
    result = heard(create_vocoder(str(tiny["a"]), initial_chunk=2, chunk=7), frames)
    assert len(result.samples) == 2048 * count
    assert result.sample_rate == 44_100


@pytest.mark.parametrize(("row", "bad"), [(1, -1), (0, 256), (4, 10**6)])
def test_codes_out_of_range_fail_the_request(tiny: dict[str, Path], row: int, bad: int) -> None:
    frames = frames_of(Vocoder(str(tiny["a"])), 0, 5)
    frames[3, row] = bad
    *_, last = answer(create_vocoder(str(tiny["a"])), frames)
    assert last.type == "error"
    assert "codes must be from 0 to 255" in str(last.data)
