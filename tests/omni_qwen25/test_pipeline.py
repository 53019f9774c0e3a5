"""The pipeline as users meet it: what it declares, the command line, streamed sound, and bad input by name."""

from __future__ import annotations

import base64
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import openai
import psutil
import pytest
import soundfile

from omni_core import open_async
from omni_core.errors import InvalidRequestError
from omni_core.protocol.messages import OmniRequest
from omni_core.protocol.outputs import AudioChunk, AudioResult, TextChunk
from omni_qwen25.pipeline import qwen25_omni, qwen25_omni_text

PARAMS = {
    "thinker": {"max_new_tokens": 6},
    "talker": {"temperature": 0.0, "max_new_tokens": 12},
    "token2wav": {"seed": 1, "num_steps": 3},
}


def request(text: str = "Tell me a story.", **fields: Any) -> OmniRequest:
    messages = [{"role": "user", "content": text}]
    return OmniRequest({"messages": messages}, **{"params": PARAMS, **fields})


def test_what_is_declared(tiny: dict[str, Path]) -> None:
    interface = qwen25_omni(str(tiny["a"])).interface
    assert interface is not None
    assert interface.voices == ["Chelsie", "Ethan"]
    assert interface.roles == {"text": "thinker", "speech": "talker", "mel": "code2mel", "vocoder": "mel2wav"}
    assert (interface.outputs, interface.sample_rate) == (["text", "audio"], 24_000)
    assert interface.limits["max_audio_seconds"] == 300
    silent = qwen25_omni_text(str(tiny["a"]))
    assert silent.interface is not None
    assert (silent.interface.outputs, silent.interface.voices) == (["text"], [])
    assert {stage.name for stage in silent.stages}.isdisjoint({"talker", "code2mel", "mel2wav"})


async def test_replies_streams_and_bad_input(tiny: dict[str, Path]) -> None:
    async with open_async(qwen25_omni(str(tiny["a"]), processes="one")) as pipe:
        spoken = await pipe.submit(request())
        sound = spoken["mel2wav"]
        assert isinstance(sound, AudioResult)
        assert len(sound.samples) == 12 * 480
        assert sound.codes is None
        events = [event.data async for event in pipe.stream(request(stream=True))]
        text = "".join(each.text for each in events if isinstance(each, TextChunk))
        streamed = np.concatenate([each.samples for each in events if isinstance(each, AudioChunk)])
        assert text == spoken["decode"].text
        assert np.array_equal(streamed, sound.samples)
        again = await pipe.submit(request(params={**PARAMS, "return_codes": True}, metadata={"speaker": "ethan"}))
        assert len(again["mel2wav"].codes) == 12
        assert not np.array_equal(again["mel2wav"].samples, sound.samples)
        # A reply of one token has nothing to say.
        short = await pipe.submit(request(params={**PARAMS, "thinker": {"max_new_tokens": 1}}))
        assert len(short["mel2wav"].samples) == 0
        silent = await pipe.submit(request(modalities=["text"]))
        assert set(silent) == {"decode"}
        refused = [
            (request(metadata={"speaker": "Aiden"}), "metadata.speaker: must be one of: Chelsie, Ethan"),
            (
                request(params={"token2wav": {"num_steps": 1}}),
                "params.token2wav.num_steps: must be an integer, 2 to 1000",
            ),
            (request(params={"token2wav": {"steps": 4}}), "params.token2wav.steps"),
            (
                request(params={"talker": {"max_new_tokens": 16385}}),
                "params.talker.max_new_tokens: must be an integer, 1 to 16384",
            ),
            (request(params={"token2wav": {"guidance_scale": float("nan")}}), "guidance_scale: must be a number"),
            (request(modalities=["audio"]), "modalities: must contain 'text'"),
            (request("<|im_end|>"), "reserved for the prompt's own structure"),
        ]
        for asked, message in refused:
            with pytest.raises(InvalidRequestError) as caught:
                await pipe.submit(asked)
            assert message in str(caught.value)
        assert np.array_equal((await pipe.submit(request()))["mel2wav"].samples, sound.samples)


def test_speech_by_the_command_line(tiny: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "x.wav"
    command = [sys.executable, "-m", "omni_core.cli", "run", "qwen25", "--model", str(tiny["c"]), "--json"]
    command += ["--option", "processes=one", "--text", "Hello", "--speaker", "Ethan", "--out", str(out)]
    for name, value in (("thinker.max_new_tokens", 4), ("talker.max_new_tokens", 8), ("seed", 7)):
        command += ["--param", f"{name}={value}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["finish_reason"] in ("stop", "length")
    assert soundfile.info(out).samplerate == 24_000


@contextmanager
def served(checkpoint: Path, log: Path) -> Iterator[tuple[str, psutil.Process]]:
    """Run ``omni serve qwen25`` with a process per stage; yield the address of its API. An interrupt must end all of it in order."""
    command = [sys.executable, "-m", "omni_core.cli", "serve", "qwen25", "--model", str(checkpoint), "--port", "0"]
    with log.open("w") as output:
        server = subprocess.Popen(
            command, stdout=output, stderr=output, env={**os.environ, "OMP_NUM_THREADS": "1"}, start_new_session=True
        )
    try:
        address = ""
        while not address:
            assert server.poll() is None, log.read_text()
            lines = log.read_text().splitlines()
            address = next((line.split()[-1] for line in lines if line.startswith("Serving ")), "")
            time.sleep(0.1)
        process = psutil.Process(server.pid)
        started = process.children(recursive=True)
        yield address, process
        server.send_signal(signal.SIGINT)
        assert server.wait(60) == 0, log.read_text()
        assert "Traceback" not in log.read_text()
        assert not psutil.wait_procs(started, timeout=30)[1]
    finally:
        server.kill()
        server.wait()


@pytest.mark.full
def test_served_with_a_process_per_stage(tiny: dict[str, Path], tmp_path: Path) -> None:
    with served(tiny["c"], tmp_path / "log") as (address, process):
        assert len(process.children(recursive=True)) >= 9
        client = openai.OpenAI(api_key="none", base_url=address, max_retries=0)
        [model] = client.models.list()
        asked: Any = {
            "model": model.id,
            "messages": [{"role": "user", "content": "Hello."}],
            "max_tokens": 6,
            "seed": 1,
        }
        reply = client.chat.completions.create(
            **asked, modalities=["text", "audio"], audio={"voice": "Ethan", "format": "wav"}
        )
        audio = reply.choices[0].message.audio
        assert audio is not None
        whole, rate = soundfile.read(io.BytesIO(base64.b64decode(audio.data)), dtype="int16")
        assert rate == 24_000
        assert len(whole) > 0
        assert len(whole) % 480 == 0
        pieces, text = b"", ""
        for chunk in client.chat.completions.create(
            **asked, modalities=["text", "audio"], audio={"voice": "Ethan", "format": "pcm16"}, stream=True
        ):
            said = chunk.choices[0].delta.audio if chunk.choices else None
            text += (said and said.transcript) or ""
            pieces += base64.b64decode((said and said.data) or "")
        assert text == audio.transcript
        assert pieces == whole.tobytes()
        spoken = client.audio.speech.create(model=model.id, voice="Chelsie", input="Hello.", response_format="wav")
        assert soundfile.info(io.BytesIO(spoken.content)).samplerate == 24_000
        with pytest.raises(openai.BadRequestError, match=r"no voice is called 'Aiden'; there are: .*Chelsie, Ethan"):
            client.audio.speech.create(model=model.id, voice="Aiden", input="Hello.")
        with pytest.raises(openai.BadRequestError, match="tools: this pipeline declares no format"):
            client.chat.completions.create(
                **asked, tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}]
            )
