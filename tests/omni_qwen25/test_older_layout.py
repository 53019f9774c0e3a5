"""A checkpoint as transformers 4.5x saved it, which is how published ones are, gives the answers of the same one in the new layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from older_layout import write_older_layout
from transformers import AutoTokenizer, Qwen2_5OmniProcessor

from omni_core import open_async
from omni_core.protocol.messages import OmniRequest
from omni_qwen3.chat import Chat
from omni_qwen3.tokenizer import load_older_chat
from omni_qwen25.pipeline import qwen25_omni

PARAMS = {
    "thinker": {"max_new_tokens": 8},
    "talker": {"temperature": 0.0, "max_new_tokens": 12},
    "token2wav": {"seed": 1, "num_steps": 3},
    "return_codes": True,
}
WORDS = {"type": "text", "text": "It's 2026. Grüße, 世界!"}
PARTS: list[dict[str, Any]] = [
    WORDS,
    {"type": "image", "image": np.arange(40 * 64 * 3, dtype=np.uint8).reshape(40, 64, 3)},
    {"type": "audio", "samples": np.sin(np.arange(8000, dtype=np.float32)), "sample_rate": 16000},
]


async def answer(folder: Path) -> tuple[str, Any, Any, Any]:
    async with open_async(qwen25_omni(str(folder), processes="one")) as pipe:
        made = await pipe.submit(OmniRequest({"messages": [{"role": "user", "content": PARTS}]}, params=PARAMS))
        return made["decode"].text, made["decode"].usage, made["mel2wav"].codes, made["mel2wav"].samples


@pytest.mark.full
async def test_the_pipeline_answers_alike(tiny: dict[str, Path], tmp_path: Path) -> None:
    text, usage, codes, samples = await answer(write_older_layout(tiny["a"], tmp_path / "older"))
    expected_text, expected_usage, expected_codes, expected_samples = await answer(tiny["a"])
    assert (text, usage) == (expected_text, expected_usage)
    assert len(codes) > 0
    assert np.array_equal(codes, expected_codes)
    assert np.array_equal(samples, expected_samples)


def test_the_template_is_the_one_of_transformers_processor(tiny: dict[str, Path], tmp_path: Path) -> None:
    older = write_older_layout(tiny["a"], tmp_path / "older")
    template = Qwen2_5OmniProcessor.get_processor_dict(older)[0]["chat_template"]
    reference = AutoTokenizer.from_pretrained(older)
    messages = [{"role": "user", "content": [WORDS, {"type": "image"}, {"type": "audio"}]}]
    prompt = reference.apply_chat_template(messages, chat_template=template, tokenize=False, add_generation_prompt=True)
    own, newer = (load_older_chat(str(folder), {}) for folder in (older, tiny["a"]))
    chat = Chat({"messages": [{"role": "user", "content": PARTS}]}, own.special_tokens)
    assert own.render(chat.messages) == prompt
    assert own.encode(prompt) == reference(prompt)["input_ids"] == newer.encode(prompt)
    assert set(own.special_tokens) == set(newer.special_tokens)
