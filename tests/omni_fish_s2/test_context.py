"""Inputs that do not fit into the context are errors, and the sequence of a request in turns is computed once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fish_cases import CASES, REFERENCE_TEXT, sound
from fish_driving import GREEDY, create_semantic_ar, inputs_of, request_message, speak

from omni_core.errors import InvalidRequestError
from omni_core.protocol.messages import OmniRequest, StagePayload
from omni_core.scheduling.base import IncomingMessage
from omni_fish_s2.codec.memory import StreamState
from omni_fish_s2.preprocessing import create_preprocessing
from omni_fish_s2.vocoder import Vocoder

LONG: dict[str, Any] = {
    "text": "The fox sleeps in the red house by the sea. " * 8,
    "segment_bytes": 60,
    "max_new_tokens": 20,
}


def test_a_text_that_outgrows_the_context_says_after_how_much(tiny: dict[str, Path]) -> None:
    scheduler = create_semantic_ar(str(tiny["b"]), max_context=250)
    with pytest.raises(
        InvalidRequestError, match=r"does not fit: after \d+ frames .* context of 250; .* several requests"
    ):
        speak(scheduler, [request_message("r", tiny["b"], LONG, GREEDY)])
    state = scheduler.statistics()
    assert state["free_blocks"] == state["total_blocks"]


def test_a_prompt_that_leaves_no_room_for_speech_is_refused(tiny: dict[str, Path]) -> None:
    stage = create_preprocessing(str(tiny["a"]), max_context=2048 + 100)
    voice = {"samples": sound(44_100 * 4), "sample_rate": 44_100, "text": REFERENCE_TEXT}
    message = {"role": "user", "content": "Hello."}
    payload = StagePayload("r", OmniRequest({"messages": [message], "references": [voice]}))
    with pytest.raises(InvalidRequestError, match=r"\d+ positions; the context leaves 100 .* shorter references"):
        stage._preprocessor(payload)  # type: ignore[attr-defined]
    payload.request.inputs.pop("references")
    assert len(stage._preprocessor(payload)["token_ids"]) < 100  # type: ignore[attr-defined]


def test_weights_that_are_no_numbers_fail_the_request(tiny: dict[str, Path]) -> None:
    scheduler = create_semantic_ar(str(tiny["a"]))
    scheduler._runner.model.norm.weight.fill_(float("nan"))  # type: ignore[attr-defined]
    for sampling in (GREEDY, {}):
        with pytest.raises(FloatingPointError, match="no frame can be chosen at position"):
            speak(scheduler, [request_message("r", tiny["a"], CASES["plain"], sampling)])
        scheduler = create_semantic_ar(str(tiny["a"]))
        scheduler._runner.model.norm.weight.fill_(float("nan"))  # type: ignore[attr-defined]


def test_sixteen_bits_speak_too(tiny: dict[str, Path]) -> None:
    """Every stage in bfloat16; the codes differ from float32, and the sound is not silent."""
    voice = {"samples": sound(20_000), "sample_rate": 44_100, "text": REFERENCE_TEXT}
    request = OmniRequest(
        {"messages": [{"role": "user", "content": "Hello."}], "references": [voice]},
        {"seed": 1, "semantic": {"max_new_tokens": 30}},
    )
    made = create_preprocessing(str(tiny["b"]), dtype="bfloat16")
    inputs = made._preprocessor(StagePayload("r", request))  # type: ignore[attr-defined]
    stage = create_semantic_ar(str(tiny["b"]), dtype="bfloat16")
    codes = speak(stage, [IncomingMessage("r", "new_request", StagePayload("r", request, inputs))])["r"]
    assert len(codes) > 3
    (wave,) = Vocoder(str(tiny["b"]), dtype="bfloat16").decode([(StreamState(), torch.from_numpy(codes[:40]))])
    full = Vocoder(str(tiny["b"])).decode([(StreamState(), torch.from_numpy(codes[:40]))])[0]
    assert wave.dtype == torch.float32
    assert 0 < (wave - full).abs().mean() < 0.3 * full.abs().mean()


def test_turns_compute_every_position_once(tiny: dict[str, Path]) -> None:
    """Two turns cost their prompts and their frames, not the history again; small chunks and a full cache change
    nothing.
    """
    inputs = inputs_of(tiny["a"], CASES["turns"])
    scheduler = create_semantic_ar(str(tiny["a"]), chunk_size=8)
    computed = []
    execute = scheduler._runner.execute

    def counting(batch: Any, forward: Any = None) -> Any:
        computed.append(sum(batch.lengths))
        return execute(batch, forward)

    scheduler._runner.execute = counting  # type: ignore[method-assign]
    codes = speak(scheduler, [request_message("r", tiny["a"], CASES["turns"], GREEDY)])["r"]
    prompts = len(inputs["token_ids"]) + sum(map(len, inputs["turns"]))
    assert sum(computed) == prompts + len(codes)
    messages = [request_message(str(n), tiny["a"], CASES["turns"], GREEDY) for n in range(4)]
    crowded = create_semantic_ar(str(tiny["a"]), kv_blocks=40, block_size=8)
    assert all(np.array_equal(each, codes) for each in speak(crowded, messages).values())
    assert crowded.statistics()["preemptions"] > 0
