"""Frames that are decoded as they come give the sound of all frames decoded at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tiny_transformers import checkpoint, speakers_by_frame
from transformers import CsmForConditionalGeneration, DacConfig, DacModel, PocketTTSAudioTokenizerModel

from omni_transformers.speak.decoding import Causal, Windows, reach_of
from omni_transformers.speak.higgs import resample

assert speakers_by_frame
FRAMES = 40


def mimi() -> tuple[Any, torch.Tensor, int]:
    codec = CsmForConditionalGeneration.from_pretrained(checkpoint("CsmForConditionalGeneration")).codec_model.eval()
    return codec, torch.randint(0, 32, (1, 4, FRAMES)), 2


def pocket() -> tuple[Any, torch.Tensor, int]:
    folder = checkpoint("PocketTTSForConditionalGeneration") / "audio_tokenizer"
    codec = PocketTTSAudioTokenizerModel.from_pretrained(folder).eval()
    return codec, torch.randn(1, FRAMES, 4), 1


@pytest.mark.parametrize("make", [mimi, pocket])
@pytest.mark.parametrize("sizes", [[1] * FRAMES, [3, 1, 7, 20, 9]])
@torch.inference_mode()
def test_a_causal_codec_is_exact(make: Any, sizes: list[int]) -> None:
    torch.manual_seed(0)
    codec, frames, axis = make()
    whole = codec.decode(frames).audio_values.reshape(-1)
    one, other = Causal(codec), Causal(codec)
    pieces = []
    for some in frames.split(sizes, axis):
        pieces.append(one.push(some))
        other.push(some.flip(0, 1))  # streams do not mix
    assert whole.abs().max() > 1e-3
    np.testing.assert_allclose(torch.cat(pieces), whole, atol=2e-5)
    assert torch.equal(codec.decode(frames).audio_values.reshape(-1), whole)  # without a stream it is as before


@pytest.mark.parametrize("ratios", [[5, 2], [3, 4]])
@torch.inference_mode()
def test_windows_of_a_convolutional_codec_are_exact(ratios: list[int]) -> None:
    torch.manual_seed(0)
    sizes = {
        "encoder_hidden_size": 4,
        "decoder_hidden_size": 16,
        "n_codebooks": 3,
        "codebook_size": 32,
        "codebook_dim": 4,
    }
    codec = DacModel(DacConfig(downsampling_ratios=ratios[::-1], upsampling_ratios=ratios, **sizes)).eval()
    codes = torch.randint(0, 32, (3, 120))

    def decode(some: torch.Tensor) -> torch.Tensor:
        return codec.decode(audio_codes=some[None]).audio_values[0]

    reach = reach_of(codec.decoder)
    windows = Windows(decode, codec.config.hop_length, reach)
    pieces = [windows.push(frame) for frame in codes.T]
    assert reach < 40
    assert sum(each is not None for each in pieces) > 2
    found = torch.cat([each for each in [*pieces, windows.finish()] if each is not None])
    np.testing.assert_allclose(found, decode(codes), atol=1e-5)


def test_no_frames_are_no_sound() -> None:
    assert Windows(lambda codes: codes[0], 1, 1).finish() is None


def test_resampling_keeps_a_tone() -> None:
    tone = torch.sin(2 * torch.pi * 440 * torch.arange(24_000) / 24_000)[None]
    found = resample(tone, 24_000, 16_000)[0]
    wanted = torch.sin(2 * torch.pi * 440 * torch.arange(16_000) / 16_000)
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found[100:-100], wanted[100:-100], atol=2e-3)
