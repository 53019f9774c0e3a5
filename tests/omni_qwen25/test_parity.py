"""Ids of the thinker and the talker equal those of transformers; waveforms agree with the same noise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve
from qwen25_reference import answer
from qwen25_stages import Stages
from tiers import few
from transformers import LogitsProcessor, LogitsProcessorList

from omni_core.protocol.messages import OmniRequest
from omni_qwen3.tokenizer import load_older_chat
from omni_qwen25.config import read_config
from omni_qwen25.decode import end_ids

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


class Dictated(LogitsProcessor):
    """Lets a thinker write given ids after a prompt."""

    def __init__(self, prompt: int, ids: list[int]) -> None:
        self.prompt, self.ids = prompt, ids

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores = torch.full_like(scores, -torch.inf)
        scores[:, self.ids[input_ids.shape[1] - self.prompt]] = 0
        return scores


@pytest.mark.parametrize("shape", few(["a", "b", "c"], 1))
def test_a_given_text_is_spoken_as_if_transformers_had_written_it(tiny: dict[str, Path], shape: str) -> None:
    folder = tiny[shape]
    asked = [evolve(request(text), modalities=["speech"]) for text in ("Good morning!", "One, two,  three. Fünf?")]
    asked[1].inputs["messages"].insert(0, {"role": "system", "content": "Whisper."})
    stages = Stages(folder)
    replies = stages.run(*asked, request(TEXTS[0]))
    assert [each.codes for each in stages.run(*asked)] == [
        each.codes for each in replies[:-1]
    ]  # of kept keys and values
    for reply in replies[:-1]:
        ids = reply.prompt["input_ids"].tolist()
        prompt, text = ids[: -reply.prompt["given"]], ids[-reply.prompt["given"] :]
        dictated = Dictated(len(prompt), [*text, *end_ids(str(folder), read_config(folder))[:1]])
        forced = {"thinker_logits_processor": LogitsProcessorList([dictated])}
        expected = answer(
            folder, {"input_ids": torch.tensor([prompt])}, tokens=len(text) + 1, codes=24, seed=3, **forced
        )
        assert expected.ids[:-1] == text
        assert reply.codes == expected.codes
        assert bool(reply.notices) is (len(reply.codes) == 24), "a limit has cut it, or not"
        assert (torch.from_numpy(reply.samples) - expected.samples).abs().max() < 1e-4
    written = [load_older_chat(str(folder), {}).inner.decode(reply.prompt["input_ids"]) for reply in replies]
    assert written[0].endswith(
        "user\nRead the text aloud, word for word.<|im_end|>\n<|im_start|>assistant\nGood morning!"
    )
    assert "Whisper.\n\nRead the text" in written[1]
    assert replies[0].codes != replies[1].codes != replies[2].codes
