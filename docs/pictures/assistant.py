"""Makes docs/pictures/assistant.mp3: a question, and the answer of an assistant that is served at ADDRESS, by /v1/realtime.

``espeak-ng -s 140 -w question.wav "What is the capital of Italy?"``, then ``python docs/pictures/assistant.py ADDRESS question.wav``
with ``http://127.0.0.1:8000/v1`` for one. Needs omni-serve, openai and soundfile.
"""

from __future__ import annotations

import asyncio
import base64
import sys
from pathlib import Path

import numpy as np
import openai
import soundfile
import soxr

from omni_serve.encoders import pcm16, whole

RATE = 24_000
SESSION = {
    "type": "realtime",
    "instructions": "You are a helpful assistant. Answer in one short sentence.",
    "temperature": 0,
    "audio": {"input": {"transcription": {}}},
}


async def answer(address: str, question: np.ndarray) -> np.ndarray:
    """Return the spoken answer; print what was heard and said. ``question``, and the answer: float32 at 24 kHz."""
    speech = b""
    client = openai.AsyncOpenAI(base_url=address, api_key="none")
    async with client.realtime.connect(model="assistant") as connection:
        await connection.session.update(session=SESSION)
        sound = pcm16(np.concatenate([question, np.zeros(RATE, np.float32)]))
        await connection.input_audio_buffer.append(audio=base64.b64encode(sound).decode())
        async for event in connection:
            if event.type == "response.output_audio.delta":
                speech += base64.b64decode(event.delta)
            elif event.type.endswith(("transcription.completed", "audio_transcript.done")):
                print(event.transcript)
            elif event.type == "response.done":
                break
    return np.frombuffer(speech, "<i2").astype(np.float32) / 32768


def main() -> None:
    address, file = sys.argv[1:]
    samples, rate = soundfile.read(file, dtype="float32")
    question = soxr.resample(samples, rate, RATE) * 0.6
    sounds = [question, np.zeros(RATE // 2, np.float32), asyncio.run(answer(address, question))]
    Path(__file__).with_suffix(".mp3").write_bytes(whole("mp3", sounds, RATE))


if __name__ == "__main__":
    main()
