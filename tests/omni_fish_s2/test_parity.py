"""Prompts, logits, codes and waveforms equal the reference's (fish-speech; see ``golden/make_golden.py``)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from fish_cases import CASES, FRAMES, SAMPLED, SAMPLED_CASES, SHAPES, frames, sound
from fish_driving import GREEDY, create_semantic_ar, inputs_of, request_message, speak
from tiers import few

from omni_fish_s2.codec.memory import Memory, StreamState
from omni_fish_s2.codec.networks import CodecDecoder, CodecEncoder
from omni_fish_s2.codec.weights import CodecFile, load_codec
from omni_fish_s2.config import read_config
from omni_fish_s2.slow import load_decoders

Golden = dict[str, dict[str, np.ndarray]]


@pytest.mark.parametrize("shape", few(SHAPES, 2))
@pytest.mark.parametrize("name", few(CASES, 3))
def test_prompts_equal_the_reference(name: str, shape: str, tiny: dict[str, Path], golden: Golden) -> None:
    """The reference's last prompt: every turn's text, and the speech of all but the last."""
    inputs = inputs_of(tiny[shape], CASES[name])
    config = read_config(tiny[shape])
    expected, spoken = golden[shape][f"{name}.prompt"], golden[shape][f"{name}.codes"]
    rows = [inputs["token_ids"].numpy()]
    begin = 0
    for turn, count in zip(inputs["turns"], golden[shape][f"{name}.turns"].tolist(), strict=False):
        rows += [spoken[begin : begin + count, 0] + config.semantic_begin, turn.numpy()]
        begin += count
    assert np.concatenate(rows).tolist() == expected[0].tolist()
    if "codes" in inputs:
        span = slice(inputs["codes_start"], inputs["codes_start"] + len(inputs["codes"]))
        assert np.array_equal(inputs["codes"].numpy().T, expected[1:, span])
        assert not expected[1:, span.stop :].any()


@pytest.mark.parametrize("shape", few(SHAPES, 2))
def test_greedy_codes_equal_the_reference(shape: str, tiny: dict[str, Path], golden: Golden) -> None:
    """``top_k = 1`` there, temperature 0 here; alone and all cases in one batch."""
    alone = {}
    for name, case in CASES.items():
        alone |= speak(create_semantic_ar(str(tiny[shape])), [request_message(name, tiny[shape], case, GREEDY)])
    messages = [request_message(name, tiny[shape], case, {"top_k": 1}) for name, case in CASES.items()]
    together = speak(create_semantic_ar(str(tiny[shape])), messages)
    for name in CASES:
        assert np.array_equal(alone[name], golden[shape][f"{name}.codes"]), name
        assert np.array_equal(together[name], golden[shape][f"{name}.codes"]), name


@pytest.mark.parametrize("shape", few(SHAPES, 2))
@pytest.mark.parametrize("way", SAMPLED)
def test_sampled_codes_equal_the_reference(way: str, shape: str, tiny: dict[str, Path], golden: Golden) -> None:
    """A seed gives the result of ``torch.manual_seed`` there: random numbers are drawn in the same order, batched or
    not.
    """
    for name in SAMPLED_CASES:
        message = request_message(name, tiny[shape], CASES[name], SAMPLED[way])
        spoken = speak(create_semantic_ar(str(tiny[shape])), [message])
        assert np.array_equal(spoken[name], golden[shape][f"{name}/{way}.codes"]), name
    messages = [request_message(name, tiny[shape], CASES[name], SAMPLED[way]) for name in SAMPLED_CASES]
    together = speak(create_semantic_ar(str(tiny[shape])), messages)
    for name in SAMPLED_CASES:
        assert np.array_equal(together[name], golden[shape][f"{name}/{way}.codes"]), name


@pytest.mark.parametrize("shape", few(SHAPES, 2))
def test_the_reference_answers_are_not_degenerate(shape: str, golden: Golden) -> None:
    """Constant codes, silence or clipping would make the parity tests vacuous."""
    answers = golden[shape]
    spoken = [answers[f"{name}.codes"] for name in CASES]
    assert len({each.tobytes() for each in spoken}) == len(CASES)
    assert max(len(set(each[:, 0].tolist())) for each in spoken) > 8
    assert all(len(set(each.flatten().tolist())) > 8 for each in spoken if len(each) > 8)
    wave = answers["decoded"] / 32767
    assert 0.05 < np.abs(wave).mean() < 0.5
    assert np.abs(wave).max() < 0.999
    assert len(set(answers["encoded"].flatten().tolist())) > 20


def test_some_speech_ends_by_itself(golden: Golden) -> None:
    ended = [
        name
        for answers in golden.values()
        for name, case in CASES.items()
        if answers[f"{name}.turns"][-1] < case.get("max_new_tokens", 40) - 1
    ]
    assert ended


@pytest.mark.parametrize("shape", few(SHAPES, 2))
def test_logits_equal_the_reference(shape: str, tiny: dict[str, Path], golden: Golden) -> None:
    """The slow decoder's after a prompt, and the fast one's for a frame of given codes."""
    config = read_config(tiny[shape])
    model = load_decoders(str(tiny[shape]), config)
    seen: dict[str, torch.Tensor] = {}
    scheduler = create_semantic_ar(str(tiny[shape]))
    runner = scheduler._runner
    compute = runner.model.compute_logits

    def recording(hidden: torch.Tensor) -> torch.Tensor:
        seen.setdefault("hidden", hidden.clone())
        return compute(hidden)

    runner.model.compute_logits = recording  # type: ignore[method-assign]
    speak(scheduler, [request_message("plain", tiny[shape], {**CASES["plain"], "max_new_tokens": 1}, GREEDY)])
    slow = model.compute_logits(seen["hidden"])[0]
    expected = golden[shape]["slow logits"][model.candidates.numpy()]
    np.testing.assert_allclose(slow.numpy(), expected, atol=2e-4)
    fast: list[torch.Tensor] = []

    def given(logits: torch.Tensor, index: int) -> torch.Tensor:
        fast.append(logits[0])
        return torch.tensor([index])

    model.fast(seen["hidden"], torch.tensor([0]), given)
    np.testing.assert_allclose(torch.stack(fast).numpy(), golden[shape]["fast logits"], atol=2e-4)


@pytest.mark.parametrize("shape", few(SHAPES, 2))
def test_the_codec_decodes_as_the_reference(shape: str, tiny: dict[str, Path], golden: Golden) -> None:
    file = CodecFile(tiny[shape] / "codec.pth")
    config = file.config
    codes = frames(1, FRAMES, config.semantic_codebook, config.residual_codebook, config.codebooks)
    decoder = load_codec(CodecDecoder, file, dtype=torch.float32, device="cpu")
    wave = decoder(torch.from_numpy(codes.T.copy())[None], Memory([StreamState()]))[0].numpy()
    expected = golden[shape]["decoded"] / 32767
    assert wave.shape == expected.shape == (FRAMES * 2048,)
    # The golden wave is rounded to 16 bits, which is up to 1.6e-5 of this.
    np.testing.assert_allclose(wave, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("shape", few(SHAPES, 2))
def test_the_codec_encodes_as_the_reference(shape: str, tiny: dict[str, Path], golden: Golden) -> None:
    encoder = load_codec(CodecEncoder, CodecFile(tiny[shape] / "codec.pth"), dtype=torch.float32, device="cpu")
    codes = encoder(torch.from_numpy(sound(FRAMES * 2048))[None], Memory([StreamState()]))[0].T.numpy()
    assert np.array_equal(codes, golden[shape]["encoded"])
