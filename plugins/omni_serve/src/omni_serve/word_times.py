"""The times of the words of speech, where clients ask for them: in JSON beside the sound, in events, and in sessions."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from starlette.responses import Response

from omni_core.api import WORD_TIMES, Interface, Word
from omni_serve.bodies import Base64
from omni_serve.calls import Call
from omni_serve.errors import invalid
from omni_serve.streams import media_response, whole
from omni_serve.usage import of_tokens

_MOST_HEADER = 4096
"""Characters of the header with words; proxies take no longer ones."""


def ask_for_words(interface: Interface, params: dict[str, Any], where: str) -> None:
    """Put what a pipeline needs into a request's parameters, so that it tells the times of words.

    Args:
        where: the field by which the client asks for them.

    Raises:
        ApiError: 400, it does not know them.
    """
    if not interface.word_times:
        raise invalid(
            f"{where}: this pipeline does not know when its words are heard", where, code="unsupported_parameter"
        )
    if any(each.name == WORD_TIMES.name for each in interface.params):
        params[WORD_TIMES.name] = "word"


class WordTimes:
    """The words of a speech that are not sent yet. ``speed``: that its sound is brought to."""

    def __init__(self, speed: float) -> None:
        self._speed = speed
        self._words: list[Word] = []

    def add(self, words: Sequence[Word]) -> bool:
        """Take words with their times in the sound as it was made; return if there are any."""
        self._words += scaled(words, self._speed)
        return bool(words)

    def take(self) -> list[Word]:
        """Return those that are not sent, with their times in the sound as it is sent."""
        words, self._words = self._words, []
        return words


def scaled(words: Sequence[Word], speed: float) -> list[Word]:
    """Return words with their times in a sound at another speed."""
    return [Word(each.text, each.start / speed, each.end / speed) for each in words]


def shown(words: Sequence[Word]) -> list[dict[str, Any]]:
    """Return words as OpenAI's transcripts have them, with times in seconds."""
    return [{"word": each.text, "start": round(each.start, 3), "end": round(each.end, 3)} for each in words]


def in_milliseconds(words: Sequence[Word]) -> list[dict[str, Any]]:
    """Return words with times in milliseconds, as ``word_timestamps`` has them."""
    return [
        {"word": each.text, "start_ms": round(each.start * 1000), "end_ms": round(each.end * 1000)} for each in words
    ]


def chunk(number: int, data: bytes, words: Sequence[Word]) -> dict[str, Any]:
    """Return the fields of ``audio.chunk``: sound, and the words that end in it or before it."""
    return {
        "chunk_id": number,
        "audio_b64": base64.b64encode(data).decode(),
        "timestamps": in_milliseconds(words) or None,
    }


async def with_words(
    pieces: AsyncGenerator[bytes], words: WordTimes, call: Call, form: str, media_type: str, speed: float
) -> Response:
    """Return the whole speech and its words, in JSON."""
    sound = await _joined(pieces)
    made = {
        "audio": Base64(sound),
        "format": form,
        "media_type": media_type,
        "duration": round(call.audio_seconds / speed, 3),
        "words": shown(words.take()),
        "usage": of_tokens(call.usage),
    }
    return await media_response(made | ({"notices": call.notices} if call.notices else {}))


async def with_words_in_header(pieces: AsyncGenerator[bytes], words: WordTimes, media_type: str) -> Response:
    """Return the whole speech as a file, and its words in a header, as other servers do it who know ``word_timestamps``."""
    sound = await _joined(pieces)
    told = json.dumps(in_milliseconds(words.take()), separators=(",", ":"))
    fits = len(told) <= _MOST_HEADER
    headers = {"x-word-timestamps": told} if fits else {"x-word-timestamps-omitted": str(len(told))}
    return whole(sound, media_type, headers)


async def _joined(pieces: AsyncGenerator[bytes]) -> bytes:
    async with aclosing(pieces):
        parts = [piece async for piece in pieces]
    return await asyncio.to_thread(b"".join, parts)
