"""Conversations by voice under load: times of answers and interruptions, failures by class, the report."""

from __future__ import annotations

import asyncio
import io
import random
import wave
from pathlib import Path

import pytest
from faulty_server import KEY, Small
from omni_serve_clients import running_server
from rich.console import Console

from omni_core.errors import ConfigError
from omni_serve.bench.load import Generator, Load, exchange
from omni_serve.bench.report import Report
from omni_serve.bench.scenarios import REALTIME, Prompt, Workload, prompts_for
from omni_serve.bench.summary import Objectives
from omni_serve.remote import Remote
from omni_serve.remote_realtime import recording, utterance

MIX = {"duplex": 1.0}
WORKLOAD = Workload(model="small", weights=MIX, prompts=prompts_for(MIX, None), voice="low", max_tokens=9)


async def test_conversations_and_their_report() -> None:
    async with running_server(Small("").app()) as address, Remote(f"http://{address}", KEY, 20) as remote:
        run = await Generator(remote, WORKLOAD, 3).run(Load(concurrency=3))
    assert [each.error for each in run.timelines] == [None] * 3
    for each in run.timelines:
        assert each.sound == pytest.approx(0.5)
        assert each.ttft is not None
        assert each.ttfa is not None
        assert each.begun < each.sounds[0][0] < each.ended < each.played_until  # type: ignore[operator]
        assert each.barge_in is not None
        assert each.barge_in > 0
    report = Report(f"http://{address}", "small", MIX, Objectives.parse("barge_in=60,ttfa=60"), [run])
    assert report.summaries[0].good == 3
    assert report.as_data()["runs"][0]["spreads"]["barge_in"]["count"] == 3
    console = Console(record=True, width=200, file=io.StringIO())
    report.show(console)
    assert "barge-in" in console.export_text()


async def test_without_interruptions_there_is_no_such_column() -> None:
    console = Console(record=True, width=200, file=io.StringIO())
    async with running_server(Small("").app()) as address, Remote(f"http://{address}", KEY, 20) as remote:
        text = Workload(model="small", weights={"text": 1.0}, prompts=prompts_for({"text": 1.0}, None))
        run = await Generator(remote, text, 1).run(Load(concurrency=1))
    Report("", "small", {"text": 1.0}, Objectives({}), [run]).show(console)
    shown = console.export_text()
    assert "barge-in" not in shown
    assert "No room" not in shown


@pytest.mark.parametrize(
    ("mistake", "key", "error"),
    [
        ("beta names", KEY, "no sound"),
        ("", "another key", "403"),
        ("breaks", KEY, "in session: failed"),
        ("hangs up", KEY, "in session: x"),
    ],
)
async def test_failures_by_class(mistake: str, key: str, error: str) -> None:
    body = WORKLOAD.request("duplex", Prompt("x"), random.Random(1))[1]
    if mistake == "hangs up":
        body["session"] = {"type": "realtime", "audio": {"input": 1}}
    async with running_server(Small(mistake).app()) as address, Remote(f"http://{address}", key, 20) as remote:
        found = await exchange(remote, "duplex", REALTIME, body, asyncio.get_running_loop().time())
    assert found.error == error


async def test_nobody_answers() -> None:
    body = WORKLOAD.request("duplex", Prompt("x"), random.Random(1))[1]
    found = await exchange(Remote("http://127.0.0.1:1"), "duplex", REALTIME, body, 0.0)
    assert found.error == "connection failed"


def test_a_recording_of_ones_own_is_the_question(tmp_path: Path) -> None:
    path = tmp_path / "question.wav"
    with wave.open(str(path), "wb") as file:
        file.setparams((2, 2, 48_000, 0, "NONE", ""))
        file.writeframes(bytes(48_000 * 4))
    body = WORKLOAD.request("duplex", Prompt("x", audio=path), random.Random(1))[1]
    assert len(body["sound"]) == pytest.approx(24_000 * 2, abs=200)
    assert body["session"]["audio"] == {"output": {"voice": "low"}}
    path.write_bytes(b"no sound")
    with pytest.raises(ConfigError, match="not a recording"):
        recording(path)
    assert utterance(random.Random(1)) != utterance(random.Random(2))
