"""A checkpoint as transformers 4.5x saved it, which is how published ones are, has the prompts, ids and config of the new layout."""

from __future__ import annotations

from pathlib import Path

import pytest
from older_layout import write_older_layout
from transformers import AutoTokenizer, Qwen3OmniMoeProcessor

from omni_qwen3.config import read_config
from omni_qwen3.tokenizer import load_chat_tokenizer


@pytest.fixture(scope="module")
def older(tiny: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_older_layout(tiny["a"], tmp_path_factory.mktemp("older") / "checkpoint")


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
