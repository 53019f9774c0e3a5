"""Reads JSON of clients with bounded work: its values are counted in the raw bytes before an object of any of them exists.

A parser holds the interpreter's lock from its first byte to its last, in a thread too. What bounds that time, and the memory, is the
number of values; long texts (media in base64) are cheap, but for escapes and letters outside ASCII. So the count is of what is outside of
strings, piece by piece, and of what makes texts dear, which media have not.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from math import isfinite
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter

from omni_serve.errors import ApiError, invalid
from omni_serve.settings import Limits

T = TypeVar("T")

INLINE_BYTES = 64 * 1024
"""JSON up to this size is read in the event loop: a thread would take longer."""

PIECE_BYTES = 128 * 1024
"""Bytes that are counted at a time."""

VALUE_BYTES = 32
"""Bytes outside of strings for each value that is allowed: long numbers take time by their square."""

KEY_CHARACTERS = 1000
"""The longest key of an object: keys are names, which messages tell and which are looked for among others."""

DEPTH = 56
"""Objects and lists in each other. A request on its way between processes has a few more around it, and 64 at most."""

_NO_BRACKETS = bytes({*range(256)} - {*b"[]{}"})

_THREADS = ThreadPoolExecutor(2, "json")  # not the loop's own, where media of others may take long

_ESCAPES_OF_CHARACTER, _BYTES_OF_CHARACTER = 2, 12
"""Backslashes, and bytes in JSON, of one character of a text at most; media in base64 have one backslash for 60 characters, if at all."""
_EVENT = TypeAdapter(dict[str, Any])

_NO_NUMBER = re.compile(rb"NaN|Infinity")


async def read_json(
    data: bytes | bytearray | str, parse: Callable[[bytes | bytearray], T], limits: Limits, media: Collection[str] = ()
) -> T:
    """Return what ``parse`` makes of JSON; where there is much of it, in a thread.

    Args:
        media: top-level keys whose values may be large; of large JSON, all others must be within ``limits.text_body_mib``.

    Raises:
        ApiError: 400, a number that JSON has not; 413, there are more values, or longer texts, than the limits allow.
        pydantic.ValidationError: ``parse`` finds that it is no JSON, or of another form.
    """
    if len(data) <= INLINE_BYTES:
        return _read(data, parse, limits, media)
    return await asyncio.get_running_loop().run_in_executor(_THREADS, _read, data, parse, limits, media)


async def read_event(text: str, limits: Limits, media: Collection[str] = ()) -> dict[str, Any]:
    """Return the object in an event of a client; raises as :func:`read_json`."""
    return await read_json(text, _EVENT.validate_json, limits, media)


def _read(
    data: bytes | bytearray | str, parse: Callable[[bytes | bytearray], T], limits: Limits, media: Collection[str]
) -> T:
    given = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    check_values(given, limits.json_values, limits.text_characters)
    parsed = parse(given)
    if len(given) > INLINE_BYTES:
        check_texts(parsed, media, int(limits.text_body_mib * 2**20))
    return parsed


def check_values(data: bytes | bytearray, most: float, characters: float) -> None:
    """Refuse JSON with more than ``most`` values, deep JSON, with ``NaN``, or with long texts of other letters, without parsing it.

    The count is right up to the first error of syntax, where a parser stops.

    Args:
        characters: of all texts that are no media.

    Raises:
        ApiError: 400 or 413.
    """
    inside = is_wide = False  # in a string; it has letters outside ASCII, so that all of it takes more memory
    strings = values = size = escapes = length = at = 0
    last = brackets = b""
    while at < len(data):
        piece = bytes(data[at : at + PIECE_BYTES])
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:  # an escape is not cut in two
            piece = bytes(data[at : at + len(piece) + 1])
        at += len(piece)
        if count := piece.count(b"\\"):
            escapes += count
            if escapes > _ESCAPES_OF_CHARACTER * characters:
                raise _too_long(characters)
            piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        quotes = piece.count(b'"')
        strings += quotes
        if strings // 2 > most + 1:
            raise _too_many(most)
        parts = piece.split(b'"')
        if inside:
            is_wide = is_wide or _is_wide(parts[0])
            length += len(parts[0])
            if is_wide and length > _BYTES_OF_CHARACTER * characters:
                raise _too_long(characters)
        outside = b"".join(parts[inside::2])
        inside ^= bool(quotes % 2)
        if inside and quotes:
            is_wide, length = _is_wide(parts[-1]), len(parts[-1])
        values += outside.count(b",") + outside.count(b":") + outside.count(b"[") + outside.count(b"{")
        size += len(outside.translate(None, b" \t\r\n"))
        if values > most or size > VALUE_BYTES * most:
            raise _too_many(most)
        brackets += outside.translate(None, _NO_BRACKETS)
        last += outside
        if _NO_NUMBER.search(last):
            raise invalid("The body is not valid JSON: NaN and Infinity are no numbers of JSON", code="invalid_json")
        last = last[-len(b"Infinity") :]
    if len(brackets) > DEPTH:
        _check_depth(brackets)


def _check_depth(brackets: bytes) -> None:
    depth = 0
    for each in brackets:
        depth += 1 if each in b"[{" else -1
        if depth > DEPTH:
            raise invalid(
                f"The JSON is nested too deeply: more than {DEPTH} objects and lists in each other", code="invalid_json"
            )


def _is_wide(text: bytes) -> bool:
    return not text.isascii() or b"\\u" in text


def _too_long(characters: float) -> ApiError:
    return ApiError(
        413,
        f"The texts in the JSON are over the limit of {characters} characters (text_characters).",
        code="string_above_max_length",
    )


def _too_many(most: float) -> ApiError:
    return ApiError(
        413,
        f"There are more than {most} values in the JSON, or very long numbers (the limit json_values).",
        code="too_many_values",
    )


def check_texts(parsed: Any, media: Collection[str], most: int) -> None:
    """Refuse long keys, and more than ``most`` characters of texts in fields that are not ``media``.

    Raises:
        ApiError: 400 or 413.
    """
    left = most
    found = [(parsed, False)]
    while found:
        value, free = found.pop()
        if isinstance(value, str):
            left -= 0 if free else len(value)
            if left < 0:
                raise ApiError(
                    413,
                    f"The texts beside {' and '.join(media) or 'media'} are over the limit of {most / 2**20:g} MiB (text_body_mib).",
                    code="too_large",
                )
        elif isinstance(value, list):
            found.extend((each, free) for each in value)
        elif isinstance(value, dict | BaseModel):
            for name, each in value.items() if isinstance(value, dict) else value:
                if len(name) > KEY_CHARACTERS:
                    raise invalid(f"{name[:40]!r}...: a key has {len(name)} characters; the limit is {KEY_CHARACTERS}")
                found.append((each, free or (value is parsed and name in media)))


def check_text(event: Any, most: int) -> None:
    """Check the values of an event: how much text they have, without recordings and images, which are bytes by now, and its numbers.

    Raises:
        ApiError: 413 or 400.
    """
    left, rest = most, [event]
    while rest:
        value = rest.pop()
        if isinstance(value, str):
            left -= len(value)
        elif isinstance(value, dict):
            left -= sum(map(len, value))
            rest += value.values()
        elif isinstance(value, list):
            rest += value
        elif isinstance(value, float) and not isfinite(value):
            raise invalid("The event is not valid JSON: NaN and Infinity are no numbers of JSON", code="invalid_json")
    if left < 0:
        text = f"The event has {most - left} characters of text; the limit is {most} (text_characters)."
        raise ApiError(413, text, code="event_too_large")
