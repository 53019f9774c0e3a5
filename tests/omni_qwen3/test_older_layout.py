"""A checkpoint as transformers 4.5x saved it, which is how published ones are, gives the answers of the same one in the new layout."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from older_layout import write_older_layout
from transformers import AutoTokenizer, Qwen3OmniMoeProcessor

from omni_core import open_async
from omni_core.protocol.messages import OmniRequest
from omni_qwen3.config import read_config
from omni_qwen3.pipeline import qwen3_omni
from omni_qwen3.tokenizer import load_chat_tokenizer

MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be kind."},
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "It's 2026. Grüße, 世界!"},
            {"type": "image", "image": np.arange(40 * 64 * 3, dtype=np.uint8).reshape(40, 64, 3)},
            {"type": "audio", "samples": np.sin(np.arange(8000, dtype=np.float32)), "sample_rate": 16000},
            {"type": "video", "frames": np.arange(4 * 64 * 64 * 3, dtype=np.uint8).reshape(4, 64, 64, 3)},
        ],
    },
]


async def answer(folder: Path) -> tuple[str, list[int], Any, Any]:
    params = {
        "thinker": {"max_new_tokens": 10},
        "talker": {"temperature": 0.0, "max_new_tokens": 8},
        "return_codes": True,
    }
    async with open_async(qwen3_omni(str(folder), processes="one")) as pipe:
        made = await pipe.submit(OmniRequest({"messages": MESSAGES}, params=params))
        return made["decode"].text, made["decode"].usage, made["code2wav"].codes, made["code2wav"].samples


@pytest.fixture(scope="module")
def older(tiny: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_older_layout(tiny["a"], tmp_path_factory.mktemp("older") / "checkpoint")


@pytest.mark.full
async def test_the_pipeline_answers_alike(tiny: dict[str, Path], older: Path, tmp_path: Path) -> None:
    newer = tmp_path / "newer"
    shutil.copytree(tiny["a"], newer)
    (newer / "video_preprocessor_config.json").unlink()  # frames have the bounds of images where there is no such file
    text, usage, codes, samples = await answer(older)
    expected_text, expected_usage, expected_codes, expected_samples = await answer(newer)
    assert (text, usage) == (expected_text, expected_usage)
    assert len(codes) > 0
    assert np.array_equal(codes, expected_codes)
    assert np.array_equal(samples, expected_samples)


def test_the_template_is_the_one_of_transformers_processor(tiny: dict[str, Path], older: Path) -> None:
    template = Qwen3OmniMoeProcessor.get_processor_dict(older)[0]["chat_template"]
    reference = AutoTokenizer.from_pretrained(older)
    assert reference.chat_template is None
    plain = [
        {"role": "system", "content": [{"type": "text", "text": "Be kind."}]},
        {
            "role": "user",
            "content": [{"type": "text", "text": "It's 2026. Grüße, 世界!"}, {"type": "image"}, {"type": "audio"}],
        },
    ]
    own = load_chat_tokenizer(str(older), read_config(older))
    prompt = reference.apply_chat_template(plain, chat_template=template, tokenize=False, add_generation_prompt=True)
    assert own.render(plain) == prompt
    newer = load_chat_tokenizer(str(tiny["a"]), read_config(tiny["a"]))
    assert own.encode(prompt) == reference(prompt)["input_ids"] == newer.encode(prompt)
    assert set(own.special_tokens) == set(newer.special_tokens)


def test_the_config_is_the_same(tiny: dict[str, Path], older: Path) -> None:
    made, expected = read_config(older), read_config(tiny["a"])
    for part in ("thinker", "talker", "vision", "audio", "vocoder", "im_start", "tts_eos"):
        assert getattr(made, part) == getattr(expected, part), part
