"""Ids of the thinker and the talker equal those of transformers; waveforms agree with the same noise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from qwen25_reference import answer
from qwen25_stages import Stages
from tiers import few

from omni_core.protocol.messages import OmniRequest

TEXTS = ("Hello.", "Tell me a story about a red fox.", "What is in the picture?")


def request(text: str, seed: int = 3, **metadata: Any) -> OmniRequest:
    params = {
        "thinker": {"max_new_tokens": 9},
        "talker": {"temperature": 0.0, "max_new_tokens": 24},
        "token2wav": {"seed": seed},
    }
    return OmniRequest({"messages": [{"role": "user", "content": text}]}, params, metadata=metadata)


@pytest.mark.parametrize("shape", few(["a", "b", "c"], 2))
def test_replies_together_equal_those_of_transformers(tiny: dict[str, Path], shape: str) -> None:
    folder, voices = tiny[shape], ("Chelsie", "Ethan", "ethan")
    replies = Stages(folder).run(*(request(text, speaker=voice) for text, voice in zip(TEXTS, voices, strict=True)))
    for reply, voice in zip(replies, voices, strict=True):
        ids = reply.prompt["input_ids"][None]
        expected = answer(folder, {"input_ids": ids}, tokens=9, codes=24, seed=3, speaker=voice.capitalize())
        assert reply.ids == expected.ids
        assert reply.codes == expected.codes
        difference = (torch.from_numpy(reply.samples) - expected.samples).abs().max()
        assert difference < 1e-4
        assert expected.samples.std() > 1e-3, "silence would prove nothing"
