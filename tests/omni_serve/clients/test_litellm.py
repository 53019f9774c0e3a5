"""LiteLLM as a library, and its proxy between OpenAI's client, or Anthropic's, and the server."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest
from client_voices import KEY, recording

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "true"  # It would fetch a table of prices when it is imported.
os.environ["LITELLM_MASTER_KEY"] = KEY  # of its proxy

import litellm

USER = [{"role": "user", "content": "hello there"}]
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"text": {"type": "string"}}}},
}


@pytest.mark.parametrize("role", ["user", "system", "assistant"])
def test_chats(role: str) -> None:
    said = litellm.completion("openai/tones", [{"role": role, "content": "hello there", "name": "bob"}])
    assert said.choices[0].message.content == "hello there"
    assert said.usage.completion_tokens == 2


def test_streams_and_tools() -> None:
    pieces = list(litellm.completion("openai/tones", USER, stream=True, stream_options={"include_usage": True}))
    assert "".join(each.choices[0].delta.content or "" for each in pieces) == "hello there"
    assert pieces[-1].usage.completion_tokens == 2
    called = litellm.completion("openai/tones", USER, tools=[WEATHER]).choices[0].message
    assert [each.function.name for each in called.tool_calls] == ["weather"]


def test_responses() -> None:
    assert litellm.responses("hello there", "openai/tones").output[0].content[0].text == "hello there"


def test_speech_and_transcriptions() -> None:
    said = litellm.speech("openai/tones", "one two three", voice="alloy", response_format="pcm").content
    assert len(said) / 2 / 24_000 == pytest.approx(0.3, abs=0.01)
    found = litellm.transcription("openai/tones", ("speech.wav", recording()))
    assert found.text.startswith("Write down what is said. audio:")


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a proxy of the server."""
    config = tmp_path_factory.mktemp("proxy") / "config.yaml"
    config.write_text("model_list: [{model_name: tones, litellm_params: {model: openai/tones}}]\n")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [
        str(Path(sys.executable).parent / "litellm"),
        "--config",
        str(config),
        "--host",
        "127.0.0.1",
        "--port",
        port,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        log = []
        for line in process.stdout:
            log.append(line)
            if "Uvicorn running" in line:
                break
        else:
            raise AssertionError("".join(log))
        yield f"http://127.0.0.1:{port}"
        process.terminate()


def test_the_proxy(proxy: str) -> None:
    client = openai.OpenAI(base_url=f"{proxy}/v1", api_key=KEY)
    said = client.chat.completions.create(model="tones", messages=[{"role": "system", "content": "hello there"}])
    assert said.choices[0].message.content == "hello there"
    pieces = client.chat.completions.create(model="tones", messages=USER, stream=True)
    assert "".join(each.choices[0].delta.content or "" for each in pieces if each.choices) == "hello there"
    found = client.audio.transcriptions.create(model="tones", file=("speech.wav", recording()))
    assert found.text.startswith("Write down what is said. audio:")
    speech = client.audio.speech.create(model="tones", input="one two three", voice="alloy", response_format="pcm")
    assert len(speech.content) / 2 / 24_000 == pytest.approx(0.3, abs=0.01)
    asked = {"model": "tones", "max_tokens": 100, "messages": USER}
    message = httpx.post(f"{proxy}/v1/messages", json=asked, headers={"x-api-key": KEY}, timeout=60).json()
    assert [each["text"] for each in message["content"]] == ["hello there"]
