"""The pipeline as users meet it: what it declares, the command line, streamed sound, and bad input by name."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
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
    assert (interface.outputs, interface.sample_rate) == (["text", "audio", "speech"], 24_000)
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
        counters = (await pipe.statistics())["pipeline"]
        assert all(counters[name]["reused_positions"] > 0 for name in ("thinker", "talker"))


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
