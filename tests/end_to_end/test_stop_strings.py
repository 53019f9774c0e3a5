"""Stop strings: the reply ends before one, streamed or not, and so does the speech."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness import pipeline, request_of

from omni_core.client import AsyncPipe, open_async
from omni_core.protocol.messages import OmniRequest
from omni_core.protocol.outputs import TextChunk


def stopping(case: dict[str, Any], *stops: str) -> OmniRequest:
    request = request_of(case)
    request.params["stop"] = list(stops)
    return request


async def streamed(client: AsyncPipe, request: OmniRequest) -> tuple[list[str], dict[str, Any]]:
    pieces, final = [], {}
    async for event in client.stream(request):
        if event.final:
            final[event.stage] = event.data
        elif isinstance(event.data, TextChunk):
            pieces.append(event.data.text)
    return pieces, final


async def test_a_reply_ends_before_its_stop_string(checkpoints: dict[str, Path], cases: dict[str, Any]) -> None:
    case = cases["text"]
    async with open_async(pipeline(checkpoints["a"], processes="one")) as client:
        whole = await client.submit(request_of(case))
        text, ids = whole["decode"].text, whole["decode"].token_ids
        assert len(text) > 12
        for begin, length in ((len(text) // 2, 1), (len(text) // 2, 4), (len(text) // 3, 6)):
            stop = text[begin : begin + length]
            expected = text[: text.index(stop)]
            pieces, final = await streamed(client, stopping(case, "never said", stop))
            reply = final["decode"]
            assert (reply.text, reply.finish_reason) == (expected, "stop")
            assert "".join(pieces) == expected
            assert reply.token_ids == ids[: len(reply.token_ids)]
            assert len(reply.token_ids) < len(ids), "the rest was generated all the same"
            assert (await client.submit(stopping(case, stop)))["decode"].text == expected
        unaffected = await client.submit(stopping(case, "never said"))
    assert (unaffected["decode"].text, unaffected["decode"].token_ids) == (text, ids)
    assert unaffected["code2wav"].codes.tolist() == whole["code2wav"].codes.tolist(), (
        "held back, the speech is the same"
    )


async def test_speech_ends_with_the_text(checkpoints: dict[str, Path], cases: dict[str, Any]) -> None:
    """A stop string of several tokens is not spoken: the speech equals that of a reply without it."""
    case = cases["text"]
    async with open_async(pipeline(checkpoints["a"], processes="one")) as client:
        whole = (await client.submit(request_of(case)))["decode"]
        stop = whole.text[len(whole.text) // 2 :]
        stopped = await client.submit(stopping(case, stop))
        count = len(stopped["decode"].token_ids)
        for length in range(1, count + 1):
            short = request_of(case)
            short.params["thinker"]["max_new_tokens"] = length
            reply = await client.submit(short)
            if len(reply["decode"].text) > len(stopped["decode"].text):
                break
    # The last token of a reply is never spoken; ``reply`` is the shortest one that contains all text before the stop
    # string.
    assert stopped["code2wav"].codes.tolist() == reply["code2wav"].codes.tolist()
