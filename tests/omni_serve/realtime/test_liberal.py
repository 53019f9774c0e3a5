"""Sessions of clients that send more than is read here: what they get of it, and sessions that only transcribe."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest
import websockets
from omni_serve_clients import running_server, socket_to
from serve_stages import RATE

from omni_core import AsyncPipe
from omni_serve import Settings, create_app
from omni_serve.app import Application
from omni_serve.encoders import pcm16
from omni_serve.realtime.actions import Action, Send, Start, Transcribe
from omni_serve.realtime.config import Offer, ServerVad
from omni_serve.realtime.session import Session

on_the_loop = pytest.mark.asyncio(loop_scope="session")

TONE = (0.3 * np.sin(np.arange(RATE) / 10) * (np.arange(RATE) % 4800 < 3600)).astype(np.float32)
TURN = base64.b64encode(pcm16(np.concatenate([TONE, np.zeros(RATE, np.float32)]))).decode()
OFFER = Offer(vad=ServerVad(type="server_vad", silence_duration_ms=300), reads=lambda name: name == "temperature")


def update(**fields: Any) -> dict[str, Any]:
    return {"type": "session.update", "session": {"type": "realtime", **fields}}


def events(actions: list[Action]) -> list[dict[str, Any]]:
    return [each.event for each in actions if isinstance(each, Send)]


def test_the_defaults_of_agents_are_served_by_the_detector_that_is_there() -> None:
    session = Session(offer=OFFER)
    turns = {"type": "semantic_vad", "eagerness": "low", "interrupt_response": False, "idle_timeout_ms": 5000}
    sound = {"turn_detection": turns, "noise_reduction": {"type": "near_field"}}
    given = update(instructions="Be brief.", tracing="auto", include=[], audio={"input": sound}, temperature=0.5)
    (event,) = events(session.receive(given, 0))
    assert event["type"] == "session.updated"
    shown = event["session"]
    assert (shown["instructions"], shown["temperature"]) == ("Be brief.", 0.5)
    found = shown["audio"]["input"]["turn_detection"]
    assert (found["type"], found["silence_duration_ms"], found["interrupt_response"]) == ("server_vad", 300, False)
    assert set(event["x_omni_ignored"]) == {
        "session.tracing",
        "session.audio.input.noise_reduction",
        "session.audio.input.turn_detection.type",
        "session.audio.input.turn_detection.eagerness",
        "session.audio.input.turn_detection.idle_timeout_ms",
    }


def test_a_session_that_is_sent_back_as_it_was_shown_ignores_nothing() -> None:
    session = Session(offer=OFFER)
    shown = events(session.begin())[0]["session"]
    (event,) = events(session.receive({"type": "session.update", "session": shown}, 0))
    assert "x_omni_ignored" not in event
    assert event["session"] == shown


@pytest.mark.parametrize(
    ("refused", "param"),
    [
        ({"prompt": {"id": "pmpt_1"}}, "session.prompt"),
        ({"audio": {"input": {"turn_detection": {"threshold": 3}}, "output": {"speed": 1.1}}},
         "session.audio.input.turn_detection.threshold"),
        ({"tools": [{"type": "mcp", "server_label": "x"}], "audio": {"output": {"speed": 1.1}}}, "session.tools[0].type"),
        ({"voice": "ash", "audio": {"output": {"speed": 1.1}}}, "session.voice"),
    ],
)  # fmt: skip
def test_a_refused_field_drops_nothing_else(refused: dict[str, Any], param: str) -> None:
    session = Session(offer=OFFER)
    updated, error = events(session.receive({**update(instructions="Be brief.", **refused), "event_id": "mine"}, 0))
    assert (updated["type"], updated["session"]["instructions"]) == ("session.updated", "Be brief.")
    assert (error["error"]["param"], error["error"]["event_id"]) == (param, "mine")
    if "audio" in refused:
        assert updated["session"]["audio"]["output"]["speed"] == 1.1


def test_fields_of_events_and_items() -> None:
    session = Session(offer=OFFER)
    item = {
        "type": "message",
        "role": "user",
        "content": [{"type": "input_text", "text": "a", "mood": 1}],
        "phase": "x",
    }
    first, *_ = events(session.receive({"type": "conversation.item.create", "item": item, "extra": 1}, 0))
    assert first["type"] == "conversation.item.added"
    assert first["x_omni_ignored"] == ["extra", "item.phase", "item.content[].mood"]
    first, *_ = events(session.receive({"type": "response.create", "response": {"model": "x", "instructions": "b"}}, 0))
    assert (first["type"], first["x_omni_ignored"]) == ("response.created", ["response.model"])


def test_tools_that_must_not_be_called_need_no_format() -> None:
    tools = [{"type": "function", "name": "f", "strict": True}]
    session = Session(offer=Offer(tools=None, forces=False))
    (event,) = events(session.receive(update(tools=tools, tool_choice="none"), 0))
    assert event["session"]["tool_choice"] == "none"
    (event,) = events(session.receive(update(tool_choice="auto"), 0))
    assert event["error"]["param"] == "session.tools"
    session = Session(offer=Offer(forces=False))
    choice = {"type": "function", "name": "g"}
    (_, error) = events(Session(offer=Offer()).receive(update(tools=tools, tool_choice=choice), 0))
    assert error["error"]["param"] == "session.tool_choice"
    (updated, error) = events(session.receive(update(tools=tools, tool_choice="required"), 0))
    assert (updated["session"]["tool_choice"], error["error"]["param"]) == ("auto", "session.tool_choice")


def spoken(session: Session) -> list[Action]:
    return session.receive({"type": "input_audio_buffer.append", "audio": TURN}, 0)


@pytest.mark.parametrize("is_beta", [False, True])
def test_a_session_that_only_transcribes_answers_nothing(is_beta: bool) -> None:
    session = Session(offer=OFFER)
    if is_beta:
        asked = {"input_audio_format": "pcm16", "input_audio_transcription": {"model": "whisper-1", "language": "en"},
                 "turn_detection": {"type": "server_vad"}, "input_audio_noise_reduction": None}  # fmt: skip
        (event,) = events(session.receive({"type": "transcription_session.update", "session": asked}, 0))
        assert event["type"] == "transcription_session.updated"
        assert event["session"]["input_audio_format"] == "pcm16"
        assert event["session"]["input_audio_transcription"]["language"] == "en"
    else:
        sound = {"format": {"type": "audio/pcm", "rate": 24000}, "transcription": {"language": "en"}}
        asked = {"type": "transcription", "audio": {"input": sound}}
        (event,) = events(session.receive({"type": "session.update", "session": asked}, 0))
        assert (event["type"], event["session"]["type"]) == ("session.updated", "transcription")
        assert event["session"]["object"] == "realtime.transcription_session"
        assert "output" not in event["session"]["audio"]
    actions = spoken(session)
    (wanted,) = [each for each in actions if isinstance(each, Transcribe)]
    assert wanted.language == "en"
    assert not any(isinstance(each, Start) for each in actions)
    assert "error" not in [each["type"] for each in events(actions)]
    (event,) = events(session.transcribed(wanted.item, "hello", {}))
    assert (event["type"], event["transcript"]) == (
        "conversation.item.input_audio_transcription.completed",
        "hello",
    )
    (event,) = events(session.receive({"type": "response.create"}, 0))
    assert event["type"] == "error"


def test_a_pipeline_that_writes_nothing_down_has_no_such_sessions() -> None:
    session = Session(offer=Offer(transcribes=False))
    (event,) = events(session.receive({"type": "session.update", "session": {"type": "transcription"}}, 0))
    assert event["error"]["param"] == "session.type"
    (event,) = events(session.receive(update(audio={"input": {"transcription": {"model": "whisper-1"}}}), 0))
    assert event["x_omni_ignored"] == ["session.audio.input.transcription"]
    assert not any(isinstance(each, Transcribe) for each in spoken(session))


@on_the_loop
async def test_the_intent_of_a_connection(pipe: AsyncPipe) -> None:
    async with (
        running_server(create_app(pipe, Settings())) as address,
        websockets.connect(f"ws://{address}/v1/realtime?intent=transcription") as socket,
    ):
        created = json.loads(await socket.recv())
        assert (created["type"], created["session"]["type"]) == ("session.created", "transcription")
        asked = {"type": "transcription", "audio": {"input": {"transcription": {"model": "gpt-4o-transcribe"}}}}
        await socket.send(json.dumps({"type": "session.update", "session": asked}))
        updated = json.loads(await socket.recv())
        assert updated["x_omni_ignored"] == ["session.audio.input.transcription.model"]
        await socket.send(json.dumps({"type": "input_audio_buffer.append", "audio": TURN}))
        kinds = []
        while not kinds or not kinds[-1].endswith("transcription.completed"):
            event = json.loads(await socket.recv())
            kinds.append(event["type"])
        assert event["transcript"].startswith("Write down")
        assert not [each for each in kinds if each.startswith("response.")]


@on_the_loop
@pytest.mark.parametrize(
    ("query", "named"), [("intent=foo", "'conversation' or 'transcription'"), ("modle=x", "'model'")]
)
async def test_a_query_that_asks_for_something_else(app: Application, query: str, named: str) -> None:
    async with socket_to(app, f"/v1/realtime?{query}") as socket:
        event = await socket.receive_json()
        assert (event["type"], event["error"]["param"]) == ("error", query.partition("=")[0])
        assert named in event["error"]["message"]


@on_the_loop
async def test_a_call_that_must_be_made(app: Application) -> None:
    async with socket_to(app, "/v1/realtime") as socket:
        await socket.receive_json()
        tools = [{"type": "function", "name": "look"}, {"type": "function", "name": "hear"}]
        choice = {"type": "function", "name": "hear"}
        voice = {"output": {"voice": "marin"}}
        await socket.send_json(update(output_modalities=["text"], tools=tools, tool_choice=choice, audio=voice))
        assert (await socket.receive_json())["x_omni_ignored"] == ["session.audio.output.voice"]
        await socket.send_json({"type": "response.create", "response": {"instructions": "Go."}})
        event = await socket.receive_json()
        while event["type"] != "response.done":
            event = await socket.receive_json()
        assert [each["name"] for each in event["response"]["output"]] == ["hear"]
