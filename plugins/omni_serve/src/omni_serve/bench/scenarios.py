"""The requests that are sent: kinds, a mix of them by weights, and prompts from a CSV file or built in."""

from __future__ import annotations

import base64
import csv
import io
import math
import random
import wave
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from attrs import evolve, frozen
from PIL import Image

from omni_core.errors import ConfigError, did_you_mean

SCENARIOS = {
    "text": "a question in words, to /v1/chat/completions",
    "image": "a question about a picture, to /v1/chat/completions",
    "audio": "a spoken question, to /v1/chat/completions",
    "speech": "a text to speak, to /v1/audio/speech",
    "duplex": "a conversation by voice with an interruption, over /v1/realtime",
}

REALTIME = "/v1/realtime"

_QUESTIONS = (
    "Why is the sky blue in the day and red in the evening?",
    "Name three things that one should see in Lisbon.",
    "How do I keep bread fresh for some days?",
    "Explain in two sentences what a queue is.",
    "What is the difference between a violin and a viola?",
    "Tell me a short story about a lighthouse.",
)
_TEXTS = (
    "The train to the coast leaves from platform four in ten minutes.",
    "Good morning. Your table by the window is ready whenever you like.",
    "It rained all night, and by the morning the river had come up to the road.",
    "Please hold the line; the next person who is free will speak with you.",
    "She opened the letter, read it twice, and put it back without a word.",
    "Turn left after the bridge, then follow the path along the water for a mile.",
)
_COLUMNS = ("prompt", "text", "scenario", "image", "audio", "voice")


@frozen
class Prompt:
    """One prompt. ``scenario`` limits it to one kind; ``image`` and ``audio`` are files; ``voice`` is for speech."""

    text: str
    scenario: str | None = None
    image: Path | None = None
    audio: Path | None = None
    voice: str | None = None


@frozen(kw_only=True)
class Workload:
    """The requests of a benchmark.

    Attributes:
        model: its name. weights: how often each scenario comes. prompts: by scenario.
        spoken: chats are answered with speech too. voice: for speech where a prompt has none.
        max_tokens: longest answer of a chat. extra: further keys of every request.
    """

    model: str
    weights: Mapping[str, float]
    prompts: Mapping[str, Sequence[Prompt]]
    spoken: bool = False
    voice: str | None = None
    max_tokens: int | None = None
    extra: Mapping[str, Any] = {}

    def draw(self, chance: random.Random) -> tuple[str, str, dict[str, Any]]:
        """Return a request: its scenario, its path and its body."""
        scenario = chance.choices(list(self.weights), list(self.weights.values()))[0]
        return scenario, *self.request(scenario, chance.choice(self.prompts[scenario]), chance)

    def request(self, scenario: str, prompt: Prompt, chance: random.Random) -> tuple[str, dict[str, Any]]:
        """Return the path and the body of one request."""
        voice = prompt.voice or self.voice
        if scenario == "speech":
            speech = {"model": self.model, "input": prompt.text, "voice": voice or "alloy"}
            if voice is None:
                del speech["voice"]  # a server's own default
            return "/v1/audio/speech", {**speech, "response_format": "pcm", "stream_format": "audio", **self.extra}
        if scenario == "duplex":
            from omni_serve.remote_realtime import recording, utterance  # loads FFmpeg

            session: dict[str, Any] = {"type": "realtime"}
            if voice is not None:
                session["audio"] = {"output": {"voice": voice}}
            if self.max_tokens is not None:
                session["max_output_tokens"] = self.max_tokens
            session |= self.extra
            sound = recording(prompt.audio) if prompt.audio is not None else utterance(chance)
            return REALTIME, {"model": self.model, "session": session if len(session) > 1 else None, "sound": sound}
        content: Any = prompt.text
        if scenario == "image":
            data = prompt.image.read_bytes() if prompt.image is not None else picture(chance)
            kind = "jpeg" if data[:2] == b"\xff\xd8" else "png"
            url = f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
            content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": prompt.text}]
        elif scenario == "audio":
            data = prompt.audio.read_bytes() if prompt.audio is not None else tone(chance)
            kind = "wav" if data[:4] == b"RIFF" else "mp3"
            audio = {"data": base64.b64encode(data).decode(), "format": kind}
            content = [{"type": "input_audio", "input_audio": audio}, {"type": "text", "text": prompt.text}]
        body: dict[str, Any] = {"model": self.model, "messages": [{"role": "user", "content": content}], "stream": True}
        body["stream_options"] = {"include_usage": True}
        if self.max_tokens is not None:
            body["max_completion_tokens"] = self.max_tokens
        if self.spoken:
            body["modalities"] = ["text", "audio"]
            body["audio"] = {"format": "pcm16", **({"voice": voice} if voice else {})}
        return "/v1/chat/completions", {**body, **self.extra}


def parse_mix(text: str) -> dict[str, float]:
    """Read ``speech`` or ``text=3,speech=1``.

    Raises:
        ConfigError: an unknown scenario or a wrong weight.
    """
    weights: dict[str, float] = {}
    for each in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = each.partition("=")
        if name not in SCENARIOS:
            known = ", ".join(SCENARIOS)
            raise ConfigError(f"--scenario {name}: no such scenario{did_you_mean(name, SCENARIOS)}; there are {known}")
        if name in weights:
            raise ConfigError(f"--scenario {text}: {name} is given twice")
        try:
            weights[name] = float(value) if equals else 1.0
        except ValueError:
            weights[name] = math.nan
        if not 0 < weights[name] < math.inf:
            raise ConfigError(f"--scenario {each}: the weight must be a number above 0")
    if not weights:
        raise ConfigError(f"--scenario: name one or more of {', '.join(SCENARIOS)}")
    return weights


def prompts_for(weights: Mapping[str, float], path: Path | None) -> dict[str, list[Prompt]]:
    """Return the prompts of each scenario: of a CSV file, or the built-in ones.

    Raises:
        ConfigError: the file cannot be used, or has no prompt for a scenario.
    """
    if path is None:
        return {name: [Prompt(text) for text in (_TEXTS if name == "speech" else _QUESTIONS)] for name in weights}
    prompts = read_prompts(path)
    found = {name: [each for each in prompts if each.scenario in (None, name)] for name in weights}
    for name, each in found.items():
        if not each:
            raise ConfigError(f"{path}: has no row for the scenario {name!r}")
    return found


def read_prompts(path: Path) -> list[Prompt]:
    """Read a CSV file with a header; ``prompt`` (or ``text``) is needed, files are relative to it.

    Raises:
        ConfigError: it cannot be read; an unknown column, an empty prompt, a missing file.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            columns, rows = [each.strip() for each in reader.fieldnames or ()], list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    for column in columns:
        if column not in _COLUMNS:
            raise ConfigError(f"{path}: no column is called {column!r}{did_you_mean(column, _COLUMNS)}")
    if not {"prompt", "text"} & set(columns):
        raise ConfigError(f"{path}: needs a column 'prompt' in its first line; has {', '.join(columns) or 'none'}")
    return [_prompt(path, number, row) for number, row in enumerate(rows, 2)]


def _prompt(path: Path, number: int, row: Mapping[Any, Any]) -> Prompt:
    cells = {str(name).strip(): str(value or "").strip() for name, value in row.items()}
    text = cells.get("prompt") or cells.get("text") or ""
    if not text:
        raise ConfigError(f"{path}:{number}: the prompt is empty")
    if (scenario := cells.get("scenario") or None) and scenario not in SCENARIOS:
        raise ConfigError(f"{path}:{number}: no scenario is called {scenario!r}{did_you_mean(scenario, SCENARIOS)}")
    prompt = Prompt(text, scenario, voice=cells.get("voice") or None)
    for column in ("image", "audio"):
        if cells.get(column):
            file = path.parent / cells[column]
            if not file.is_file():
                raise ConfigError(f"{path}:{number}: {column}: there is no file {file}")
            prompt = evolve(prompt, image=file) if column == "image" else evolve(prompt, audio=file)
    return prompt


def picture(chance: random.Random) -> bytes:
    """Return a PNG of random squares: each request has its own, so that no cache of images answers."""
    squares = np.random.default_rng(chance.getrandbits(32)).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(squares).resize((224, 224), Image.Resampling.NEAREST).save(buffer, "PNG")
    return buffer.getvalue()


def tone(chance: random.Random, seconds: float = 2.0, rate: int = 16_000) -> bytes:
    """Return a WAV file with a tone of random pitch."""
    wave_form = 0.3 * np.sin(2 * np.pi * chance.uniform(100, 400) * np.arange(int(seconds * rate)) / rate)
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((wave_form * 32767).astype("<i2").tobytes())
    return buffer.getvalue()
