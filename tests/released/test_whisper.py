"""Whisper tiny.en writes recordings down as transformers' ``generate()`` does with the same weights, however long they are."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import torch
from index_packages import recordings, whisper
from transformers import WhisperForConditionalGeneration, WhisperProcessor

from omni_core import open_async
from omni_media.api import sound
from omni_transformers.pipeline import transformers as pipeline

RATE = 16_000


def test_texts_equal_those_of_generate_alone_and_at_once(folder: Path) -> None:
    """Recordings of 10 to 44 s. None is cut: the words at the end of the longest are there."""
    made = whisper(folder)
    files = recordings(folder)
    processor, model = WhisperProcessor.from_pretrained(made), WhisperForConditionalGeneration.from_pretrained(made)

    def generated(data: bytes) -> str:
        samples = sound({"data": data}, RATE)
        is_long = len(samples) > 30 * RATE
        given: dict[str, Any] = (
            {"truncation": False, "padding": "longest", "return_attention_mask": True} if is_long else {}
        )
        inputs = processor(samples, sampling_rate=RATE, return_tensors="pt", **given)
        with torch.inference_mode():
            ids = model.generate(**inputs, return_timestamps=is_long)
        return str(processor.batch_decode(ids, skip_special_tokens=True)[0]).strip()

    async def heard() -> tuple[list[str], list[str]]:
        async with open_async(pipeline(str(made))) as pipe:

            async def hear(data: bytes) -> str:
                reply = await pipe.chat([{"role": "user", "content": [{"type": "audio", "data": data}]}])
                assert reply.finish_reason == "stop"
                return reply.text.strip()

            return [await hear(each) for each in files.values()], list(await asyncio.gather(*map(hear, files.values())))

    alone, together = asyncio.run(heard())
    theirs = [generated(each) for each in files.values()]
    for name, text in zip(files, alone, strict=True):
        print(f"\n{name}: {text}")
    assert alone == together == theirs
    assert max(len(sound({"data": each}, RATE)) for each in files.values()) > 40 * RATE
