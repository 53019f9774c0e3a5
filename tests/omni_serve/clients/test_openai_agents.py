"""OpenAI's Agents SDK: agents by chat and by responses, its voice pipeline and its realtime sessions, with the models it names."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import numpy as np
import pytest
from agents import Agent, OpenAIProvider, RunConfig, Runner, function_tool, set_trace_processors
from agents.realtime import RealtimeAgent, RealtimeRunner
from agents.voice import AudioInput, SingleAgentVoiceWorkflow, VoicePipeline
from client_voices import RATE, pcm, program, voice

pytestmark = pytest.mark.asyncio(loop_scope="session")
set_trace_processors([])  # Traces are made, but not sent to OpenAI.


@function_tool
def weather(text: str) -> str:
    """Say what the weather is."""
    return "no call: rain"  # After this the pipeline calls nothing.


@pytest.mark.parametrize("responses", [False, True])
async def test_agents_and_tools(responses: bool) -> None:
    config = RunConfig(model_provider=OpenAIProvider(use_responses=responses))
    agent = Agent(name="Assistant", instructions="Be brief.", tools=[weather])
    result = await Runner.run(agent, "hello there", run_config=config)
    called = [each.raw_item for each in result.new_items if each.type == "tool_call_item"]
    assert [(each.name, json.loads(each.arguments)) for each in called] == [("weather", {"text": "hello there"})]
    assert result.final_output == "None is needed."
    streamed = Runner.run_streamed(agent, "hello there", run_config=config)
    events = [event.data async for event in streamed.stream_events() if event.type == "raw_response_event"]
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == "So:None is needed."
    assert streamed.final_output == "None is needed."


async def test_a_voice_pipeline() -> None:
    """It says what it heard: the tenth of a second of each of six words."""
    agent = Agent(name="Assistant", instructions="Be brief.")
    pipeline = VoicePipeline(workflow=SingleAgentVoiceWorkflow(agent))
    result = await pipeline.run(AudioInput(np.frombuffer(pcm(voice(0.8)), np.int16)))
    pieces = [event.data async for event in result.stream() if event.type == "voice_stream_event_audio"]
    assert sum(map(len, pieces)) / RATE == pytest.approx(0.6, abs=0.02)


async def answer(session: Any) -> tuple[str, float]:
    """Return the text and the seconds of speech of the next answer; no event is an error."""
    text, size = "", 0
    async for event in session:
        assert event.type != "error", event.error
        if event.type == "audio":
            size += len(event.audio.data)
        elif event.type == "raw_model_event" and event.data.type == "transcript_delta":
            text += event.data.delta
        elif event.type == "agent_end":
            break
    return text, size / 2 / RATE


async def test_a_realtime_session(address: str) -> None:
    """A spoken turn and a text, with turns and tracing as it asks for them, and a tool."""
    agent = RealtimeAgent(name="Assistant", instructions="Be brief.")
    running = RealtimeRunner(agent).run(model_config={"url": f"ws://{address}/v1/realtime?model=tones"})
    async with await running as session, asyncio.timeout(60):
        await session.send_audio(pcm(voice(0.8)))
        text, seconds = await answer(session)
        assert text.startswith("Be brief. audio:")
        assert seconds == pytest.approx(0.3, abs=0.02)
        await session.send_message("history")
        assert (await answer(session))[0] == f"system=Be brief. assistant={text}"
        await session.update_agent(RealtimeAgent(name="Assistant", instructions="Be brief.", tools=[weather]))
        await session.send_message("hello there")
        assert (await answer(session))[0] == "So:"
        assert (await answer(session))[0] == "None is needed."


async def test_the_program_of_the_page(address: str) -> None:
    speech = await program("OpenAI's Agents SDK", address)["answer"](pcm(voice(0.8)))
    assert len(speech) / 2 / RATE == pytest.approx(0.1, abs=0.02)
