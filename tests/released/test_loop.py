"""Twelve spoken questions to an assistant of released weights, served over `/v1/realtime`: what it hears, answers and says."""

from __future__ import annotations

import asyncio
import base64
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import psutil
import pytest
from attrs import define, field
from index_packages import gguf_file, kokoro, other_recogniser, whisper
from spoken_sentences import errors, resampled, words

from demo_training.speech.espeak import speak

RATE = 24_000
STEP = RATE // 10
QUESTIONS = [
    "Can you tell me what the capital of France is?",
    "Please explain why people need to sleep at night.",
    "What is the best way to cook rice?",
    "How many days are there in a week?",
    "What do plants need in order to grow?",
    "Can you tell me where penguins live?",
    "Where does the rain come from?",
    "What should I eat for breakfast tomorrow morning?",
    "Why is the water in the ocean salty?",
    "Please tell me who wrote the play Hamlet.",
    "How can I learn to play the piano?",
    "What is the difference between a cat and a dog?",
]
AT_ONCE, TURNS = 4, 2
SAID = {"instructions": "You are a helpful assistant. Answer in one short sentence.", "temperature": 0}
TOKENS = 40
SESSION: Any = {
    "type": "realtime",
    "output_modalities": ["audio"],
    "max_output_tokens": TOKENS,
    "audio": {"input": {"transcription": {}, "turn_detection": {"type": "server_vad"}}},
}


@define
class Turn:
    """A question and its answer. Times are seconds after the end of its words."""

    asked: str
    heard: str = ""
    pieces: list[str] = field(factory=list)
    answer: str = ""
    status: str = ""
    sound: bytes = b""
    times: dict[str, float] = field(factory=dict)

    @property
    def seconds(self) -> float:
        return len(self.sound) / 2 / RATE


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[tuple[str, psutil.Process]]:
    """Address and process of `omni serve assistant`."""
    options = {"asr": whisper(folder), "llm": gguf_file(folder), "tts": "kokoro", "tts_model": kokoro(folder)}
    command = [sys.executable, "-m", "omni_core.cli", "serve", "assistant", "--port", "0"]
    command += [each for name, value in options.items() for each in ("--option", f"{name}={value}")]
    command += ["--set", "defaults.params.speech.language=en-us"]
    begin, log = time.monotonic(), folder / "assistant.log"
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        while not (found := re.findall(r"^Serving \S+ at (\S+)$", log.read_text(), re.MULTILINE)):
            assert process.poll() is None, log.read_text()
            time.sleep(0.1)
        print(f"\nReady after {time.monotonic() - begin:.1f} s")
        yield found[0], psutil.Process(process.pid)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, log.read_text()
        assert "Traceback" not in log.read_text()
    finally:
        process.kill()
        process.wait()


async def say(connection: Any, spoken: np.ndarray, begin: float) -> None:
    """Send speech at its pace, behind a tenth of a second of silence and before a second of it."""
    samples = (np.pad(spoken, (STEP, RATE)) * 32767).astype(np.int16)
    for start in range(0, len(samples), STEP):
        await asyncio.sleep(begin + (start + STEP) / RATE - time.monotonic())  # when it is recorded
        piece = samples[start : start + STEP].tobytes()
        await connection.input_audio_buffer.append(audio=base64.b64encode(piece).decode())


async def conversation(client: openai.AsyncOpenAI, questions: list[str]) -> list[Turn]:
    """Ask one after the other in one session, at the pace of speech."""
    turns = []
    async with client.realtime.connect(model="assistant") as connection:
        await connection.session.update(session={**SESSION, **SAID})
        for question in questions:
            spoken = speak(question, rate=RATE)
            ends = len(np.trim_zeros(np.where(np.abs(spoken) > 0.01, 1, 0), "b")) / RATE
            turn, begin = Turn(question), time.monotonic()
            async with asyncio.timeout(180):
                speaking = asyncio.create_task(say(connection, spoken, begin))
                async for event in connection:
                    happened(turn, event, time.monotonic() - begin - STEP / RATE - ends)
                    if event.type == "response.done":
                        break
                await speaking
            turns.append(turn)
    return turns


def happened(turn: Turn, event: Any, moment: float) -> None:
    """Note an event of a turn."""
    assert event.type != "error", event.error
    kind = event.type.split(".", 1)[-1]
    if kind == "item.input_audio_transcription.delta" and event.delta:
        turn.pieces.append(event.delta)
        turn.times.setdefault("word", moment)
    elif kind == "item.input_audio_transcription.completed":
        turn.heard = event.transcript
    elif kind == "output_audio_transcript.delta":
        turn.answer += event.delta
        turn.times.setdefault("text", moment)
    elif kind == "output_audio.delta":
        turn.sound += base64.b64decode(event.delta)
        turn.times.setdefault("sound", moment)
    elif event.type == "response.done":
        turn.status = event.response.status
        turn.times["end"] = moment


def wrong(pairs: list[tuple[str, str]]) -> tuple[int, int]:
    """Return how many words of the first texts are not in the second ones, and how many there are."""
    return sum(errors(words(one), words(other)) for one, other in pairs), sum(len(words(one)) for one, _ in pairs)


def table(turns: list[Turn], outside: list[str]) -> str:
    """Return what happened as Markdown."""
    lines = ["", "| asked | heard | answered | said, as another recogniser hears it | text, s | sound, s | speech, s |"]
    lines.append("|---|---|---|---|---|---|---|")
    for turn, other in zip(turns, outside, strict=True):
        heard = "the same" if words(turn.heard) == words(turn.asked) else turn.heard
        said = "the same" if words(other) == words(turn.answer) else other
        figures = [turn.times["text"], turn.times["sound"], turn.seconds]
        cells = [turn.asked, heard, turn.answer, said, *(f"{each:.1f}" for each in figures)]
        lines.append(f"| {' | '.join(each.strip() for each in cells)} |")
    return "\n".join(lines)


def cpu(process: psutil.Process) -> float:
    """Return the seconds of CPU that a process and its children have used."""
    return sum(sum(each.cpu_times()[:2]) for each in [process, *process.children(recursive=True)])


def summary(name: str, turns: list[Turn], outside: list[str], seconds: float) -> str:
    """Return errors and medians as one row of Markdown. ``seconds``: of CPU."""
    misheard = "{} of {}".format(*wrong([(turn.asked, turn.heard) for turn in turns]))
    unlike = "{} of {}".format(*wrong([(turn.answer, other) for turn, other in zip(turns, outside, strict=True)]))
    medians = [statistics.median(turn.times[each] for turn in turns) for each in ("word", "text", "sound")]
    spent = seconds / len(turns)
    return f"| {name} | {misheard} | {unlike} | {' | '.join(f'{each:.2f}' for each in (*medians, spent))} |"


def test_twelve_questions_and_four_conversations_at_once(server: tuple[str, psutil.Process], folder: Path) -> None:
    """Questions and answers are heard to within bounds; answers are what the model writes to what was heard."""
    address, process = server
    client = openai.AsyncOpenAI(base_url=address, api_key="none")
    spent = [cpu(process)]

    async def talk() -> tuple[list[Turn], list[Turn], list[str]]:
        alone = [(await conversation(client, [question]))[0] for question in QUESTIONS]
        spent.append(cpu(process))
        several = [QUESTIONS[start : start + TURNS] for start in range(0, AT_ONCE * TURNS, TURNS)]
        together = await asyncio.gather(*(conversation(client, each) for each in several))
        spent.append(cpu(process))
        written = []
        for turn in alone:
            asked: Any = [{"role": "system", "content": SAID["instructions"]}, {"role": "user", "content": turn.heard}]
            options: Any = {"temperature": 0, "max_tokens": TOKENS, "modalities": ["text"]}
            reply = await client.chat.completions.create(model="assistant", messages=asked, **options)
            written.append(reply.choices[0].message.content or "")
        return alone, [turn for turns in together for turn in turns], written

    alone, together, written = asyncio.run(talk())
    hear = other_recogniser(folder)
    outside = [hear(resampled(turn.sound, RATE)) for turn in [*alone, *together]]
    print(table(alone, outside[: len(alone)]))
    print("\n| | misheard words | unclear words | first word, s | first text, s | first sound, s | CPU of a turn, s |")
    print("|---|---|---|---|---|---|---|")
    print(summary("one conversation", alone, outside[: len(alone)], spent[1] - spent[0]))
    print(summary(f"{AT_ONCE} at once", together, outside[len(alone) :], spent[2] - spent[1]))
    assert [turn.answer for turn in alone] == written
    assert len(together) == AT_ONCE * TURNS
    for turn in [*alone, *together]:
        assert turn.status in ("completed", "incomplete")
        assert words(turn.answer), turn
        assert turn.seconds > 0.1 * len(words(turn.answer)), turn
        assert turn.times["text"] <= turn.times["sound"] <= turn.times["end"]
        assert "".join(turn.pieces).strip() == turn.heard.strip()
    assert any(len(turn.pieces) > 1 for turn in alone), "words come while they are spoken"
    misheard, asked = wrong([(turn.asked, turn.heard) for turn in [*alone, *together]])
    assert misheard <= asked / 5
    unlike, said = wrong([(turn.answer, other) for turn, other in zip([*alone, *together], outside, strict=True)])
    assert unlike <= said / 4


def test_an_answer_that_is_interrupted_falls_silent(server: tuple[str, psutil.Process]) -> None:
    """No sound is sent once the speech of the user is detected."""

    async def interrupt() -> tuple[float, float]:
        client = openai.AsyncOpenAI(base_url=server[0], api_key="none")
        question, more = (speak(each, rate=RATE) for each in (QUESTIONS[1], QUESTIONS[2]))
        told = {**SESSION, "instructions": "You tell long stories in short sentences.", "max_output_tokens": 200}
        tasks, begin, detected, ended = [], 0.0, 0.0, 0.0
        async with client.realtime.connect(model="assistant") as connection, asyncio.timeout(180):
            await connection.session.update(session=told)
            tasks.append(asyncio.create_task(say(connection, question, time.monotonic())))
            async for event in connection:
                assert event.type != "error", event.error
                if event.type == "response.output_audio.delta":
                    assert not detected, "sound after the speech of the user"
                    if not begin:
                        begin = time.monotonic()
                        tasks.append(asyncio.create_task(say(connection, more, begin)))
                elif event.type == "input_audio_buffer.speech_started" and begin:
                    detected = time.monotonic() - begin - STEP / RATE
                elif event.type == "response.done":
                    ended = time.monotonic() - begin - STEP / RATE
                    assert event.response.status == "cancelled"
                    break
            await asyncio.gather(*tasks)
        return detected, ended

    detected, ended = asyncio.run(interrupt())
    assert 0 < detected <= ended
    print(f"\nInterrupted: speech is detected after {detected:.2f} s, the answer has ended after {ended:.2f} s")
