"""Streamed results equal one-shot results, and speech starts before the reply is complete."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import pipeline, request_of
from tiers import few

from omni_core.client import AsyncPipe, open_async
from omni_core.protocol.messages import OmniRequest
from omni_core.protocol.outputs import AudioChunk, TextChunk


async def collect(client: AsyncPipe, request: OmniRequest) -> tuple[list[tuple[str, Any]], dict[str, Any]]:
    """Every partial result in order of arrival, and the final ones."""
    partial, final = [], {}
    async for event in client.stream(request):
        if event.final:
            final[event.stage] = event.data
        else:
            partial.append((event.stage, event.data))
    return partial, final


@pytest.mark.parametrize(("initial_chunk", "chunk"), few([(1, 1), (2, 5), (4, 16), (10, 300)], 2))
async def test_streamed_audio_and_text_concatenate_to_the_one_shot_reply(
    initial_chunk: int, chunk: int, checkpoints: dict[str, Path], cases: dict[str, Any]
) -> None:
    async with open_async(pipeline(checkpoints["a"], processes="one", initial_chunk=300, chunk=300)) as client:
        whole = await client.submit(request_of(cases["image_audio"]))
    options = {"processes": "one", "initial_chunk": initial_chunk, "chunk": chunk}
    async with open_async(pipeline(checkpoints["a"], **options)) as client:
        partial, final = await collect(client, request_of(cases["image_audio"]))
    pieces = [data.samples for _, data in partial if isinstance(data, AudioChunk)]
    streamed = np.concatenate([np.asarray(piece) for piece in pieces])
    expected = np.asarray(whole["code2wav"].samples)
    frames = len(np.asarray(whole["code2wav"].codes))
    assert streamed.shape == expected.shape == (1920 * frames - 555,)
    np.testing.assert_allclose(streamed, expected, atol=1e-4)
    np.testing.assert_array_equal(streamed, np.asarray(final["code2wav"].samples))
    assert len(pieces) >= min(frames // max(chunk, initial_chunk), 2), "nothing was streamed"
    text = "".join(data.text for _, data in partial if isinstance(data, TextChunk))
    assert text == final["decode"].text == whole["decode"].text


async def test_first_audio_arrives_before_a_long_reply_is_complete(
    checkpoints: dict[str, Path], cases: dict[str, Any]
) -> None:
    request = request_of(cases["text"])
    # A reply that cannot end early: its end-of-turn id is never chosen.
    request.params["thinker"] |= {"max_new_tokens": 160, "ignore_eos": True}
    request.params["talker"] |= {"max_new_tokens": 60}
    async with open_async(pipeline(checkpoints["a"], initial_chunk=1, chunk=4)) as client:
        partial, final = await collect(client, request)
    assert len(final["decode"].token_ids) == 160
    stages = [stage for stage, _ in partial]
    first_audio = stages.index("code2wav")
    text_after = stages[first_audio:].count("decode")
    assert text_after > 10, f"only {text_after} pieces of text followed the first audio"


async def test_text_only_requests_do_not_reach_the_talker(checkpoints: dict[str, Path], cases: dict[str, Any]) -> None:
    async with open_async(pipeline(checkpoints["a"])) as client:
        spoken = await client.submit(request_of(cases["text"]))
        silent = await client.submit(request_of(cases["text"], modalities=["text"]))
        assert set(spoken) == {"decode", "code2wav"}
        assert set(silent) == {"decode"}
        assert silent["decode"].text == spoken["decode"].text
    async with open_async(pipeline(checkpoints["a"], name="qwen3-omni-text")) as client:
        case = cases["text"]
        plain = OmniRequest({"messages": case["messages"]}, {"max_tokens": case["thinker_max_new_tokens"]})
        assert (await client.submit(plain))["decode"].text == silent["decode"].text
