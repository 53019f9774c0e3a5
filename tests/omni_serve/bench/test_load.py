"""Requests in both loops over a real socket: times, errors by class, interruption; the table, JSON and page of the results."""

from __future__ import annotations

import asyncio
import io
import json
import random
import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest
from faulty_server import KEY, Small
from omni_serve_clients import running_server
from rich.console import Console
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from omni_core.errors import ConfigError
from omni_serve.bench.load import Generator, Load, exchange
from omni_serve.bench.page import page
from omni_serve.bench.report import Report
from omni_serve.bench.scenarios import Prompt, Workload, parse_mix, prompts_for, read_prompts
from omni_serve.bench.summary import Objectives
from omni_serve.remote import BadStreamError, Remote, UnreachableError, base_of, events

MIX = {"text": 1.0, "speech": 1.0}


def workload(**options: object) -> Workload:
    return Workload(**{"model": "small", "weights": MIX, "prompts": prompts_for(MIX, None), **options})  # type: ignore[arg-type]


async def test_both_loops_and_their_report() -> None:
    async with running_server(Small("").app()) as address, Remote(f"http://{address}", KEY) as remote:
        generator = Generator(remote, workload(spoken=True), 12)
        runs = [await generator.run(load) for load in (Load(concurrency=1), Load(concurrency=4), Load(rate=500.0))]
    report = Report(f"http://{address}", "small", MIX, Objectives.parse("ttfa=60"), runs)
    for summary in report.summaries:
        assert (summary.succeeded, summary.errors, summary.good) == (12, {}, 12)
        assert summary.sound == pytest.approx(12 * 0.5)
    data = json.loads(json.dumps(report.as_data()))
    assert [each["scenario"] for each in data["runs"][0]["requests"]].count("text") == data["runs"][0]["scenarios"][
        "text"
    ]["sent"]
    assert data["runs"][0]["tokens_per_second"] > 0
    assert data["runs"][2]["load"] == "rate 500/s"
    console = Console(record=True, width=200, file=io.StringIO())
    report.show(console)
    assert "concurrency 4" in console.export_text()
    html = page(report)
    assert html.count("<svg") >= 4
    assert not re.search(r"<script|src=|href=|url\(|@import", html)


async def test_errors_by_class() -> None:
    async def cut(query: str) -> AsyncIterator[bytes]:
        yield b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n'
        if query == "fail":
            yield b'data: {"error": {"message": "no", "code": "stage_failed"}}\n\n'

    async def answer(request: Request) -> Response:
        query = request.url.query
        if query == "busy":
            return JSONResponse({"error": {"message": "later", "code": "overloaded"}}, 429)
        return StreamingResponse(cut(query), media_type="text/event-stream")

    app = Starlette(routes=[Route("/", answer, methods=["POST"])])
    async with running_server(app) as address, Remote(f"http://{address}") as remote:
        now = asyncio.get_running_loop().time()
        found = [await exchange(remote, "text", path, {}, now) for path in ("/?busy", "/?fail", "/?cut")]
    assert [each.error for each in found] == ["429 overloaded", "in stream: stage_failed", "no [DONE]"]
    assert (await exchange(Remote("http://127.0.0.1:1"), "text", "/", {}, now)).error == "connection failed"


async def test_an_interrupted_run_keeps_what_has_ended() -> None:
    async with running_server(Small("").app()) as address, Remote(f"http://{address}", KEY) as remote:
        generator = Generator(remote, workload(), 10_000)
        ended = asyncio.Event()
        generator.on_done = lambda run: ended.set() if len(run.timelines) == 3 else None
        task = asyncio.ensure_future(generator.run(Load(concurrency=2)))
        await ended.wait()
        task.cancel()
        run = await task
    assert run.interrupted
    assert 3 <= len(run.timelines) < run.sent <= len(run.timelines) + 2


@pytest.mark.parametrize("load", [Load(concurrency=2), Load(rate=50.0)])
async def test_a_duration_ends_a_run(load: Load) -> None:
    async with running_server(Small("").app()) as address, Remote(f"http://{address}", KEY) as remote:
        run = await Generator(remote, workload(), 1_000_000, seconds=0.3).run(load)
    assert not run.interrupted
    assert run.unfinished == run.sent - len(run.timelines) <= run.sent < 1_000_000
    assert {each.error for each in run.timelines} <= {None}


async def test_servers_that_cannot_be_used() -> None:
    with pytest.raises(UnreachableError, match="cannot connect"):
        await Remote("http://127.0.0.1:1").model(None)
    async with running_server(Small("").app()) as address:
        with pytest.raises(UnreachableError, match="asks for an API key"):
            await Remote(f"http://{address}").model(None)
        with pytest.raises(UnreachableError, match="refuses this API key"):
            await Remote(f"http://{address}", "wrong").model(None)
        with pytest.raises(UnreachableError, match="lists no model"):
            await Remote(f"http://{address}/other/v1", KEY).model(None)
    assert base_of("https://example.org/openai/v1/") == "https://example.org/openai"
    with pytest.raises(ConfigError, match="must be an address"):
        base_of("localhost:8000")


def test_a_mix() -> None:
    assert parse_mix("text=3, speech=1") == {"text": 3.0, "speech": 1.0}
    for text, message in (
        ("texts", "did you mean 'text'"),
        ("text=0", "above 0"),
        ("text,text", "twice"),
        ("", "name one"),
    ):
        with pytest.raises(ConfigError, match=message):
            parse_mix(text)
    drawn = [workload(weights={"text": 3, "speech": 1}).draw(random.Random(seed))[0] for seed in range(400)]
    assert 250 < drawn.count("text") < 350


def test_requests_carry_their_media(tmp_path: Path) -> None:
    prompts = {"image": [Prompt("what?")], "audio": [Prompt("what?")]}
    made = workload(weights={"image": 1.0, "audio": 1.0}, prompts=prompts, extra={"seed": 3})
    path, body = made.request("image", prompts["image"][0], random.Random(0))
    assert path == "/v1/chat/completions"
    assert body["messages"][0]["content"][0]["image_url"]["url"].startswith("data:image/png;base64,iVBOR")
    assert body["seed"] == 3
    assert "modalities" not in body
    other = made.request("image", prompts["image"][0], random.Random(1))[1]
    assert other["messages"] != body["messages"]
    sound = made.request("audio", prompts["audio"][0], random.Random(0))[1]["messages"][0]["content"][0]["input_audio"]
    assert sound["format"] == "wav"
    assert sound["data"].startswith("UklGR")


def test_prompts_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"\x89PNG")
    file = tmp_path / "prompts.csv"
    file.write_text('prompt,scenario,image,voice\n"One, two.",speech,,low\nWhat is this?,image,a.png,\n')
    assert read_prompts(file) == [
        Prompt("One, two.", "speech", voice="low"),
        Prompt("What is this?", "image", image=tmp_path / "a.png"),
    ]
    with pytest.raises(ConfigError, match="no row for the scenario 'text'"):
        prompts_for({"text": 1.0}, file)
    for content, message in (
        ("question\nx\n", "no column is called 'question'"),
        ("prompt,scenario\nx,speach\n", "prompts.csv:2: .* did you mean 'speech'"),
        ("prompt,image\nx,none.png\n", "there is no file"),
        ("prompt,voice\n,low\n", "the prompt is empty"),
        ("", "needs a column 'prompt'"),
    ):
        file.write_text(content)
        with pytest.raises(ConfigError, match=message):
            read_prompts(file)


async def test_events_of_other_servers_are_read() -> None:
    async def read(text: str) -> list[tuple[str, object]]:
        return [each async for each in events(httpx2.Response(200, text=text))]

    assert await read(': ping\n\nevent: a\ndata: {"x":\ndata: 1}\n\ndata:[DONE]') == [("a", {"x": 1}), ("", "[DONE]")]
    with pytest.raises(BadStreamError, match="not JSON"):
        await read("data: {x}\n\n")
