"""Transformers' Qwen2.5-Omni as the reference: for a prompt, its ids, codes and waveform."""

from __future__ import annotations

from functools import cache, wraps
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from attrs import frozen
from transformers import Qwen2_5OmniForConditionalGeneration
from transformers.utils import logging


@frozen
class Answer:
    """Answer of the reference: generated ids, codes, and the waveform."""

    ids: list[int]
    codes: list[int]
    samples: torch.Tensor


@cache
def model(folder: Path) -> Any:
    """Return the model of a checkpoint, in float32."""
    logging.set_verbosity_error()
    return Qwen2_5OmniForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()


def answer(
    folder: Path,
    inputs: dict[str, Any],
    *,
    tokens: int,
    codes: int,
    seed: int = 0,
    speaker: str = "Chelsie",
    **options: Any,
) -> Answer:
    """Run the reference's ``generate``, greedily.

    ``generate`` of transformers 5 drops a mask without zeros, and the talker, which looks at its mask to know that it is to add the
    markers of its prompt and to lay out positions, then does neither. It is given its mask here.

    Args:
        inputs: ``input_ids`` and media, as its processor makes them. tokens, codes: the most of each.
        seed: of the noise. options: further arguments of ``generate``.
    """
    reference = model(folder)
    talker, kind = reference.talker, type(reference.token2wav)
    heard: list[list[int]] = []
    forward, step = kind.forward, talker.forward

    def hear(self: Any, code: torch.Tensor, *arguments: Any, **others: Any) -> torch.Tensor:
        heard.append(code[0].tolist())
        torch.manual_seed(seed)
        sound: torch.Tensor = forward(self, code, *arguments, **others)
        return sound

    @wraps(step)
    def with_mask(*arguments: Any, attention_mask: Any = None, **others: Any) -> Any:
        given = others.get("input_ids") if others.get("inputs_embeds") is None else others["inputs_embeds"]
        cache = others["cache"] if "cache" in others else others["past_key_values"]  # before transformers 5.24
        whole = cache.get_seq_length() + given.shape[1]
        mask = torch.ones(1, whole, dtype=torch.int64)
        return step(*arguments, attention_mask=mask, **others)

    settings = {
        "talker_do_sample": False,
        "talker_eos_token_id": [talker.codec_pad_token, talker.codec_eos_token],
        **options,
    }
    with mock.patch.object(kind, "forward", hear), mock.patch.object(talker, "forward", with_mask):
        sequences, samples = reference.generate(
            **inputs,
            attention_mask=torch.ones_like(inputs["input_ids"]),
            speaker=speaker,
            thinker_max_new_tokens=tokens,
            talker_max_new_tokens=codes,
            **settings,
        )
    return Answer(sequences[0, inputs["input_ids"].shape[1] :].tolist(), heard[0], samples)
