"""The suite that shows that a pipeline can be served: subclass it in a test of the pipeline's distribution.

::

    class TestServing(ServingConformance):
        def config(self):
            return my_pipeline("tiny-checkpoint")

It needs omni-serve. Every test sends requests to the application without a socket, as a client would.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import av
import httpx2
import numpy as np

from omni_core import AsyncPipe, open_async
from omni_core.api import Interface, PipelineConfig
from omni_serve.app import Application, create_app
from omni_serve.settings import Settings

Client = httpx2.AsyncClient

TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks a word up.",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}},
    },
}


class ServingConformance:
    """Tests of a pipeline behind the server. What it does not declare is not asked for, but must be refused in order.

    Attributes:
        text: a message that it answers.
        seed: makes its answers equal, where its interface has a ``seed``.
        tool_text: a message that it answers with a call of the only tool, ``look_up``; ``None``: none is known. It says if calls are
            read out of its text; that tools, calls and their results are taken is tested in any case.
    """

    text = "Hello."
    seed = 1
    tool_text: str | None = None

    def config(self) -> PipelineConfig:
        """Return the pipeline, on a small checkpoint."""
        raise NotImplementedError

    def test_it_declares_what_a_server_needs(self) -> None:
        interface = self._interface
        assert interface.outputs, "interface.outputs: name the modalities that it answers in: text, audio"
        assert "text" in interface.inputs, "interface.inputs: a chat begins with text"
        if "audio" in interface.outputs:
            assert interface.sample_rate, "interface.sample_rate: the rate of its speech"

    def test_it_becomes_ready_and_shows_what_it_can(self) -> None:
        async def check(http: Client, app: Application) -> None:
            from omni_serve.health import warm_up

            await warm_up(app.state.server)
            assert (await http.get("/health/ready")).json()["status"] == "ready"
            [model] = (await http.get("/v1/models")).json()["data"]
            assert model["capabilities"]["outputs"] == self._interface.outputs

        self._run(check)

    def test_a_streamed_answer_equals_the_whole(self) -> None:
        async def check(http: Client, app: Application) -> None:
            for body in self._chats():
                whole = (await _post(http, body)).json()["choices"][0]["message"]
                text, sound = _joined((await _post(http, {**body, "stream": True})).text)
                spoken = whole.get("audio")
                assert text == (whole["content"] if spoken is None else spoken["transcript"])
                if spoken is not None:
                    assert spoken["data"], "there is no sound in a spoken answer"
                    assert sound == spoken["data"], "the streamed sound is not the whole one's, byte for byte"

        self._run(check)

    def test_speech_is_a_file_of_each_format(self) -> None:
        interface = self._interface
        if not (interface.speaks_texts or ("audio" in interface.outputs and "speech" in interface.prompts)):
            return

        async def check(http: Client, app: Application) -> None:
            lengths = {}
            for form in ("mp3", "opus", "aac", "flac", "wav"):
                asked = {"model": app.state.server.model, "input": self.text, "response_format": form, **self._seeded}
                answer = await http.post("/v1/audio/speech", json=asked)
                assert answer.status_code == 200, answer.text
                with av.open(io.BytesIO(answer.content)) as file:
                    lengths[form] = sum(each.samples for each in file.decode(audio=0)) / file.streams.audio[0].rate
            low = {"response_format": "pcm", "sample_rate": 8_000}
            answer = await http.post("/v1/audio/speech", json={**asked, **low})
            lengths["pcm at 8 kHz"] = len(answer.content) / 2 / 8_000
            assert max(lengths.values()) - min(lengths.values()) < 0.2, lengths

        self._run(check)

    def test_what_it_does_not_know_is_refused(self) -> None:
        async def check(http: Client, app: Application) -> None:
            for change in (
                {"logprobs": True},
                {"modalities": ["smell"]},
                {"messages": [{"role": "user", "content": [{"type": "no_such_part"}]}]},
            ):
                answer = await http.post("/v1/chat/completions", json={**self._chats()[0], **change})
                assert answer.status_code == 400, f"{change}: {answer.text}"
                assert answer.json()["error"]["message"]

        self._run(check)

    def test_a_parameter_that_nothing_reads_is_ignored_and_named(self) -> None:
        async def check(http: Client, app: Application) -> None:
            answer = await http.post("/v1/chat/completions", json={**self._chats()[0], "no_such_parameter": 1})
            assert answer.status_code == 200, answer.text
            assert answer.headers["x-omni-ignored"] == "no_such_parameter"

        self._run(check)

    def test_it_takes_tools_calls_and_their_results_where_it_declares_a_format(self) -> None:
        called = {"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": '{"word": "a"}'}}
        turns = [
            {"role": "assistant", "content": None, "tool_calls": [called]},
            {"role": "tool", "tool_call_id": "call_1", "content": "found"},
        ]

        async def check(http: Client, app: Application) -> None:
            declares = self._interface.tool_format is not None
            for body in self._chats():
                for more in ([], turns):
                    asked = {**body, "messages": [*body["messages"], *more], "tools": [TOOL]}
                    answer = await http.post("/v1/chat/completions", json=asked)
                    assert answer.status_code == (200 if declares else 400), answer.text
                    if not declares:
                        assert answer.json()["error"]["param"] == "tools"
                        continue
                    streamed = _calls((await _post(http, {**asked, "stream": True})).text)
                    whole = answer.json()["choices"][0]["message"].get("tool_calls") or []
                    assert streamed == [each["function"] for each in whole], (
                        "the streamed calls are not the whole one's"
                    )

        self._run(check)

    def test_calls_are_read_out_of_its_text(self) -> None:
        if self.tool_text is None:
            return

        async def check(http: Client, app: Application) -> None:
            for body in self._chats():
                asked = {**body, "messages": [{"role": "user", "content": self.tool_text}], "tools": [TOOL]}
                choice = (await _post(http, asked)).json()["choices"][0]
                assert choice["finish_reason"] == "tool_calls", f"no call was found in: {choice['message']}"
                [called] = choice["message"]["tool_calls"]
                assert called["function"]["name"] == "look_up"
                assert isinstance(json.loads(called["function"]["arguments"]), dict)
                [streamed] = _calls((await _post(http, {**asked, "stream": True})).text)
                assert streamed == called["function"]

        self._run(check)

    def test_it_takes_the_media_that_it_declares(self) -> None:
        from PIL import Image

        from omni_serve.encoders import whole

        picture = io.BytesIO()
        Image.new("RGB", (64, 64), "red").save(picture, "PNG")
        sound = whole("wav", [np.zeros(16_000, np.float32)], 16_000)
        media = {"image": ("image/png", picture.getvalue()), "audio": ("audio/wav", sound)}

        async def check(http: Client, app: Application) -> None:
            for kind, (mime, data) in media.items():
                url = f"data:{mime};base64,{base64.b64encode(data).decode()}"
                parts = [{"type": f"{kind}_url", f"{kind}_url": {"url": url}}, {"type": "text", "text": self.text}]
                body = {**self._chats()[0], "messages": [{"role": "user", "content": parts}]}
                answer = await http.post("/v1/chat/completions", json=body)
                expected = 200 if kind in self._interface.inputs else 400
                assert answer.status_code == expected, f"{kind}: {answer.text}"

        self._run(check)

    @property
    def _interface(self) -> Interface:
        found = self.config().interface
        assert found is not None, "the config has no interface: set it, or declare it on the pipeline's component"
        return found

    @property
    def _seeded(self) -> dict[str, Any]:
        seeded = any(each.name == "seed" for group in self._interface.groups for each in group.parameters)
        return {"seed": self.seed} if seeded else {}

    def _chats(self) -> list[dict[str, Any]]:
        """Return a chat for each way of answering."""
        outputs = self._interface.outputs
        base = {"model": "served", "messages": [{"role": "user", "content": self.text}], **self._seeded}
        chats: list[dict[str, Any]] = [{**base, "modalities": ["text"]}] if "text" in outputs else []
        if "audio" in outputs:
            chats.append({**base, "modalities": ["text", "audio"], "audio": {"format": "pcm16"}})
        return chats

    def _run(self, check: Callable[[Client, Application], Awaitable[None]]) -> None:
        async def run() -> None:
            async with open_async(self.config()) as pipe:
                await self._check(pipe, check)

        asyncio.run(run())

    async def _check(self, pipe: AsyncPipe, check: Callable[[Client, Application], Awaitable[None]]) -> None:
        app = create_app(pipe, Settings(model="served"))
        transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
        async with Client(transport=transport, base_url="http://served", timeout=120) as http:
            await check(http, app)


async def _post(http: Client, body: dict[str, Any]) -> httpx2.Response:
    answer = await http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer


def _deltas(stream: str) -> Iterator[dict[str, Any]]:
    """Yield the deltas of a stream of chunks."""
    for line in stream.split("\n"):
        if line.startswith("data: {"):
            event = json.loads(line[6:])
            assert "error" not in event, event
            for choice in event["choices"]:
                yield choice["delta"]


def _joined(stream: str) -> tuple[str, str]:
    """Return the text and the base64 sound of a stream of chunks, joined as the SDK joins them."""
    text = sound = ""
    for delta in _deltas(stream):
        spoken = delta.get("audio") or {}
        text += (delta.get("content") or "") + (spoken.get("transcript") or "")
        sound += spoken.get("data") or ""
    return text, sound


def _calls(stream: str) -> list[dict[str, str]]:
    """Return the functions that a stream of chunks calls, joined as the SDK joins them."""
    calls: list[dict[str, str]] = []
    for delta in _deltas(stream):
        for each in delta.get("tool_calls") or ():
            if each["index"] == len(calls):
                assert each["id"], "a call begins with its id"
                assert each["function"]["name"], "a call begins with its name"
                calls.append({"name": each["function"]["name"], "arguments": ""})
            calls[each["index"]]["arguments"] += each["function"].get("arguments") or ""
    return calls
