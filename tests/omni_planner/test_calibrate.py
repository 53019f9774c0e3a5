"""A running pipeline is measured: what its stages do is found, and a simulation of it does the same."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import omni_core
from omni_core.cli.main import omni
from omni_core.client.messages import chat_request
from omni_planner import commands
from omni_planner.calibrate import calibrate, set_after_first
from omni_planner.profile import CLIENT, Hardware, PipelineProfile, StageProfile
from omni_planner.requests import closed_loop, draw
from omni_planner.simulate import simulate
from omni_planner.trace import Window, admit_after, read
from omni_planner.variation import drift_of
from omni_qwen3.works import works


async def test_the_demo_is_measured_and_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    drifts: list[float] = []

    def noted(*arguments: Any) -> float:
        drifts.append(drift_of(*arguments))
        return drifts[-1] + 0.125

    monkeypatch.setattr("omni_planner.calibrate.drift_of", noted)
    async with omni_core.open_async("demo") as pipe:
        spoken = await chat_request(pipe.interface, pipe.media, "What is your name?")
        written = await chat_request(pipe.interface, pipe.media, "Say hello.", modalities=["text"])
        known = works(pipe.config).admit_after
        profile = await calibrate(pipe, {"speech": [spoken] * 3, "text": [written]}, [3], rounds=2, known=known)
        own = Counter([event.stage async for event in pipe.stream(spoken)])
    kinds = {name: stage.kind for name, stage in profile.stages.items()}
    assert kinds == {
        "preprocessing": "function",
        "mm_aggregate": "function",
        "thinker": "engine",
        "decode": "stream",
        "talker_ar": "engine",
        "code2wav": "vocoder",
    }
    assert profile.stages["talker_ar"].admit_after == 2, "the beginning of the text, and its first row"
    assert profile.stages["talker_ar"].costs["speech"].coefficients()["turns"] > 0
    assert profile.stages["code2wav"].costs["speech"].coefficients()["frames"] > 0
    assert profile.stages["code2wav"].frame_seconds == pytest.approx(0.08, rel=0.02)
    if Path("/proc/self/task").exists():
        message, wake = profile.transfer("talker_ar", "speech")
        assert 0 < message + wake < 0.1
        assert profile.client.keys() == {"speech", "text"}
        assert 0.05 < profile.stages["talker_ar"].recorded["speech"] < 20, (
            "turns of a trace cost about as much as the thread used"
        )
    cache = profile.stages["thinker"].cache
    assert cache is not None
    assert 0 < cache.peak <= cache.blocks
    edge = profile.stages["talker_ar"].edges["speech"]["code2wav"]
    assert edge.nbytes > edge.messages > edge.requests > 0
    assert "talker_ar" not in profile.stages["thinker"].edges["text"]
    [sample, *more] = profile.kinds["speech"]
    assert edge.messages / edge.requests == pytest.approx(sample["talker_ar"].chunks["code2wav"] + 1, abs=2)
    assert len(more) == 5
    assert sample["preprocessing"].sources == [CLIENT]
    assert 0.0 < profile.stages["thinker"].after_first["speech"] < 1.0
    assert 0.0 <= drifts[0] < 1.0
    assert profile.drift == drifts[0] + 0.125
    assert sample["thinker"].outputs > 2
    assert sample["talker_ar"].chunks["code2wav"] == sample["talker_ar"].outputs - 1, "its last token ends the speech"
    assert "talker_ar" not in profile.kinds["text"][0]
    outcome = simulate(pipe.config, profile, closed_loop(draw(profile.kinds, {"speech": 1.0}, 0), 4), in_flight=2)
    for flight in outcome.flights:
        assert Counter(stage for _, stage, _ in flight.events) == own
        assert sum(seconds for _, seconds in flight.sound) == pytest.approx(
            0.08 * sample["talker_ar"].chunks["code2wav"], rel=0.05
        )


def test_the_messages_before_a_first_turn_are_the_fewest_of_requests_alone() -> None:
    def turn(begin: float, positions: int) -> dict[str, Any]:
        counts = {"computed": int(positions > 0), "positions": positions, "prompt_positions": positions}
        args = {"stage": "talker", "cpu": 1.0, "taken": 1, "steps": 1, "tokens": 1, **counts}
        return {"cat": "turn", "name": "talker", "ts": begin, "dur": 1.0, "pid": 1, "args": args}

    def receipt(at: float) -> dict[str, Any]:
        return {"cat": "transfer", "name": "receive", "ts": at, "pid": 1, "args": {"flow": "r/thinker/talker/chunk"}}

    lone = [receipt(1.0), turn(2.0, 0), receipt(3.0), receipt(4.0), turn(5.0, 1), receipt(6.0)]
    sooner = [receipt(11.0), receipt(12.0), turn(13.0, 1), receipt(14.0)]
    among_others = [receipt(21.0), turn(22.0, 1)]
    ends = (10.0, 20.0, 30.0)
    windows = [Window("speech", end - 10, end, alone=end < 30) for end in ends]
    found, _ = read([*lone, *sooner, *among_others], windows)
    assert [admit_after("talker", windows[:count], found) for count in (0, 1, 2, 3)] == [1, 3, 2, 2]


def test_a_message_is_under_way_after_its_send_has_ended() -> None:
    """A quick send takes 2 ms and its receipt begins after 5; in one of four both wait. Requests among others say nothing of it."""
    events: list[dict[str, Any]] = []
    for number in range(20):
        flow, at = {"flow": f"{number}/thinker/decode/0"}, 1e4 * number
        dur, waits = (2e3, 0.0) if number % 4 else (9e3, 3e3)
        events += [
            {"cat": "transfer", "name": "send to decode", "ts": at, "dur": dur, "pid": 1, "args": flow},
            {
                "cat": "transfer",
                "name": "receive from thinker",
                "ts": at + 5e3 + waits,
                "dur": 1.0,
                "pid": 2,
                "args": flow,
            },
        ]
    windows = [Window("text", 0.0, 1e5, alone=True), Window("text", 1e5, 2e5, alone=False)]
    found, _ = read(events, windows)
    assert found.latency == pytest.approx(3e-3)
    assert read(events, windows[1:])[0].latency == 0.0


def test_a_chunk_says_what_share_of_its_turn_came_after_it() -> None:
    def turn(begin: float, positions: int) -> dict[str, Any]:
        counts = {"computed": 1, "positions": max(1, positions), "prompt_positions": positions}
        args = {"stage": "thinker", "cpu": 1.0, "taken": 1, "steps": 1, "tokens": 1, **counts}
        return {"cat": "turn", "name": "thinker: turn", "ts": begin, "dur": 10.0, "pid": 1, "args": args}

    def chunk(at: float) -> dict[str, Any]:
        return {"cat": "request", "ph": "n", "name": "thinker: chunk", "ts": at, "pid": 1, "args": {}}

    events = [
        turn(0.0, 7),
        chunk(6.0),
        chunk(9.0),
        turn(10.0, 0),
        chunk(19.0),
        turn(20.0, 7),
        turn(40.0, 7),
        chunk(48.0),
    ]
    windows = [Window("speech", 0.0, 30.0, alone=True), Window("speech", 30.0, 60.0, alone=False)]
    found, _ = read(events, windows)
    assert [each.after_first for each in found.turns] == [
        pytest.approx(0.4),
        pytest.approx(0.1),
        None,
        pytest.approx(0.2),
    ]
    profile = PipelineProfile("demo", Hardware("test", 2), stages={"thinker": StageProfile("engine")})
    set_after_first(profile, windows, found)
    assert profile.stages["thinker"].after_first == {"speech": pytest.approx(0.3)}, "of turns with a prompt"


def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    def recording(*arguments: Any) -> Any:
        given.append(arguments[-1])
        return calibrate(*arguments)

    monkeypatch.setattr(commands, "calibrate", recording)
    path, lines = tmp_path / "demo.json", tmp_path / "lines.jsonl"
    lines.write_text('{"kind": "text", "message": "Say hello.", "modalities": ["text"]}\n')
    runner = CliRunner()
    options = ["--requests", str(lines), "--rounds", "1", "--concurrency", "2", "--restarts"]
    made = runner.invoke(omni, ["calibrate", "demo", *options, "--out", str(path)], catch_exceptions=False)
    assert made.exit_code == 0, made.output
    assert "thinker: " in made.output
    assert given == [{"talker_ar": 2}], "what the pipeline's works say, though a config that is placed names none"
    assert list(PipelineProfile.load(path).kinds) == ["text"]
    asked = ["simulate", "demo", "--profile", str(path), "--requests", "50", "--json"]
    drawn = runner.invoke(omni, [*asked, "--rate", "1"], catch_exceptions=False)
    assert json.loads(drawn.stdout)["requests"]
    slow = json.loads(runner.invoke(omni, [*asked, "--rate", "1"], catch_exceptions=False).stdout)
    fast = json.loads(runner.invoke(omni, [*asked, "--concurrency", "16"], catch_exceptions=False).stdout)
    assert fast["requests"] == 50
    assert fast["per_second"] > slow["per_second"]
    assert fast["done"]["p95"] > slow["done"]["p95"] > 0
    assert PipelineProfile.load(path).starts.keys() >= {"preprocessing", "thinker", "decode"}
    failing = [*asked, "--rate", "20", "--fail", "thinker@1"]  # more than one in twenty comes during the start
    struck = json.loads(runner.invoke(omni, failing, catch_exceptions=False).stdout)
    assert struck["deaths"] == 1
    assert struck["done"]["p95"] > slow["done"]["p95"], "requests wait for the start"
    bursts = json.loads(runner.invoke(omni, [*asked, "--rate", "20", "--arrivals", "bursts:1,9"]).stdout)
    assert bursts["done"]["p95"] > slow["done"]["p95"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--rate", "1", "--concurrency", "2"], "either --concurrency or --rate"),
        (["--rate", "1", "--mix", "sounds=1"], "no such kind of request; it has text"),
        (["--rate", "1", "--mix", "text=none"], "must be KIND=WEIGHT"),
        (["--rate", "1", "--mix", "text=-1"], "must be greater than 0"),
        (["--concurrency", "1", "--arrivals", "gamma:2"], "--arrivals is for --rate"),
        (["--concurrency", "1", "--mtbf", "2"], "--mtbf needs a load with a duration"),
        (["--rate", "1", "--devices", "1xh100"], "either --profile (measured) or --devices"),
    ],
)
def test_wrong_arguments_are_named(tmp_path: Path, arguments: list[str], problem: str) -> None:
    path = tmp_path / "p.json"
    profile = PipelineProfile("demo", Hardware.here())
    profile.kinds["text"] = [{}]
    profile.save(path)
    found = CliRunner().invoke(omni, ["simulate", "demo", "--profile", str(path), *arguments])
    assert found.exit_code == 2
    assert problem in " ".join(found.output.split())


def test_lines_that_are_no_requests_are_named(tmp_path: Path) -> None:
    lines = tmp_path / "lines.jsonl"
    lines.write_text('{"message": "Say hello.", "modalities": ["text"]}\n{"kind": "text"}\n')
    found = CliRunner().invoke(omni, ["calibrate", "demo", "--requests", str(lines), "--out", str(tmp_path / "p")])
    assert found.exit_code == 1
    assert f"{lines}:2" in str(found.exception or "") + found.output
