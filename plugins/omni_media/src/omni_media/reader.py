"""Reads content parts of OpenAI's form, omni's own, and plain Python values.

Stages read ``{"type": "text", "text": ...}`` and, for ``image``, ``audio`` and ``video``, a part with ``path``, ``data`` (the bytes of a
file), or an array: ``image``, ``frames``, or ``samples`` with ``sample_rate``. A video may also have a list of pictures as ``frames``,
with their ``times`` in seconds and perhaps ``sound``.
"""

from __future__ import annotations

import asyncio
import base64
import io
import mimetypes
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote, unquote_to_bytes, urlsplit

import numpy as np

from omni_core.api import KINDS, InvalidRequestError, MediaPolicy, Recording, shown

_SCHEMES = ("data:", "http://", "https://", "file://")

_SHORT = 100
_STEP = 4 * 2**16  # characters of base64: a multiple of 4

_URL_CHARACTERS = 16 * 1024
"""The longest URL that is looked at, but for ``data:`` URLs."""

_ESCAPES = 100_000
"""The most bytes that a ``data:`` URL has as ``%XX``: each costs fifty times as much as one in base64."""


class Reader:
    """Reads the messages and the media of one request. What it returns holds nothing that the policy forbids.

    Its methods raise InvalidRequestError, whose message names the part: ``messages[1].content[0].image_url.url``.
    """

    def __init__(self, policy: MediaPolicy) -> None:
        self._policy = policy
        self._left = policy.max_bytes

    async def messages(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return messages with their content parts in the form that stages read."""
        return [await self._message(each, f"messages[{index}]") for index, each in enumerate(messages)]

    async def _message(self, message: Any, where: str) -> dict[str, Any]:
        if not isinstance(message, Mapping):
            raise InvalidRequestError(f"{where}: must be {{'role': ..., 'content': ...}}, is {shown(message)}")
        content = message.get("content")
        if not isinstance(content, list | tuple):
            return dict(message)
        parts = [await self._part(part, f"{where}.content[{index}]") for index, part in enumerate(content)]
        return {**message, "content": parts}

    async def _part(self, part: Any, where: str) -> dict[str, Any]:
        if isinstance(part, str):
            return {"type": "text", "text": part}
        if not isinstance(part, Mapping) or not isinstance(part.get("type"), str):
            raise InvalidRequestError(
                f"{where}: must be a text, or a part with a type such as {{'type': 'text', 'text': ...}}"
            )
        name = part["type"]
        if name in KINDS:
            return {"type": name, **await self._ours(name, part, where)}
        kind = name.removesuffix("_url")
        if kind in KINDS:
            inner = part.get(name)
            fields = (
                {"url": inner} if isinstance(inner, str) else self._fields(inner, f"{where}.{name}", ("url", "detail"))
            )
            if fields.get("detail") not in (None, "auto", "high"):
                raise InvalidRequestError(f"{where}.{name}.detail: images are read in full detail; leave it out")
            return {"type": kind, **await self._located(fields.get("url"), f"{where}.{name}.url")}
        if name == "input_audio":
            fields = self._fields(part.get(name), f"{where}.{name}", ("data", "format"))
            return {"type": "audio", "data": (await self._content(fields.get("data"), f"{where}.{name}.data"))[1]}
        if name == "file":
            return await self._file(
                self._fields(part.get(name), f"{where}.file", ("file_data", "filename")), f"{where}.file"
            )
        return dict(part)

    def _fields(self, value: Any, where: str, known: tuple[str, ...]) -> Mapping[str, Any]:
        if not isinstance(value, Mapping):
            raise InvalidRequestError(f"{where}: must be a mapping with {' and '.join(known)}")
        for name in value:
            if name not in known:
                raise InvalidRequestError(f"{where}.{name}: is not read; there are: {', '.join(known)}")
        return value

    async def _ours(self, kind: str, part: Mapping[str, Any], where: str) -> dict[str, Any]:
        if kind == "video" and part.get("times") is not None:
            return await self._timed(part, where)
        for name in ("path", "url", "bytes", "data", kind):
            if part.get(name) is not None:
                rest = {key: value for key, value in part.items() if key not in ("type", name)}
                return {**rest, **await self._value(kind, part[name], f"{where}.{name}", name)}
        return dict(part)

    async def _timed(self, part: Mapping[str, Any], where: str) -> dict[str, Any]:
        """Return a video that is given as pictures with their times."""
        try:
            frames, times = list(part["frames"]), [float(each) for each in part["times"]]
        except (KeyError, TypeError, ValueError):
            raise InvalidRequestError(f"{where}: needs `frames`, pictures, and `times`, a number for each") from None
        made: dict[str, Any] = {"times": times}
        made["frames"] = [await self._piece("image", each, f"{where}.frames[{n}]") for n, each in enumerate(frames)]
        if part.get("sound") is not None:
            made["sound"] = await self._piece("audio", part["sound"], f"{where}.sound")
        return made

    async def _piece(self, kind: str, value: Any, where: str) -> dict[str, Any]:
        """Return one value of a list, or a part of this kind."""
        return await (self._ours(kind, value, where) if isinstance(value, Mapping) else self._value(kind, value, where))

    async def values(self, kind: str, given: Any) -> list[dict[str, Any]]:
        """Return the parts of an argument such as ``image=``: one value, or a list of them."""
        if given is None:
            return []
        several = given if isinstance(given, list) else [given]
        titles = [kind] if several is not given else [f"{kind}[{index}]" for index in range(len(several))]
        return [
            {"type": kind, **await self._value(kind, each, title)} for each, title in zip(several, titles, strict=True)
        ]

    async def references(self, voices: Sequence[Recording]) -> list[dict[str, Any]]:
        """Return the recordings of a request's ``references``."""
        parts = [await self._value("audio", each.audio, f"voice[{index}].audio") for index, each in enumerate(voices)]
        return [
            part | ({} if each.text is None else {"text": each.text}) for part, each in zip(parts, voices, strict=True)
        ]

    async def _value(self, kind: str, value: Any, where: str, name: str = "") -> dict[str, Any]:
        if isinstance(value, str) and (name == "url" or (name != "path" and value.lower().startswith(_SCHEMES))):
            return await self._located(value, where)
        if isinstance(value, str | Path):
            return self._path(Path(value), where)
        if isinstance(value, bytes | bytearray | memoryview):
            return {"data": self._counted(bytes(value), where)}
        if kind == "audio" and isinstance(value, tuple) and len(value) == 2:
            return _samples(*value, where)
        if kind == "image" and hasattr(value, "getbands"):  # Pillow's
            transparent = "A" in value.getbands() or "transparency" in value.info
            return {"image": np.asarray(value.convert("RGBA" if transparent else "RGB"))}
        if kind == "video" and isinstance(value, Mapping):
            return await self._ours(kind, value, where)
        if kind != "audio" and hasattr(value, "__array_interface__"):
            return {"image" if kind == "image" else "frames": value}
        array = {"image": "a PIL image or an array", "audio": "(samples, sample_rate)", "video": "an array of frames"}
        raise InvalidRequestError(f"{where}: must be a path, a URL, bytes, or {array[kind]}; is {type(value).__name__}")

    async def _located(self, url: Any, where: str) -> dict[str, Any]:
        if isinstance(url, str) and _is_data_url(url):
            return {"data": (await self._data_url(url, where))[1]}
        try:
            # It keeps what it has split: long texts must not get there.
            parts = urlsplit(url) if isinstance(url, str) and len(url) <= _URL_CHARACTERS else None
        except ValueError as error:
            raise InvalidRequestError(f"{where}: is not a URL: {error}") from None
        scheme = parts.scheme if parts is not None else ""
        if scheme == "file" and parts is not None:
            return self._path(Path(unquote(parts.path)), where)
        if scheme not in ("http", "https"):
            fetched = ["http:", "https:"] if self._policy.allow_urls else []
            schemes = ["data:", *fetched, *(["file:"] if self._policy.allow_paths else [])]
            raise InvalidRequestError(f"{where}: must be a URL ({' or '.join(schemes)}), is {shown(url)}")
        if not self._policy.allow_urls:
            raise InvalidRequestError(
                f"{where}: URLs are not fetched here; send the content, as a data: URL or as bytes"
            )
        from omni_media.fetch import fetch

        policy = self._policy
        internal, hosts = policy.allow_internal_urls, policy.url_hosts
        data = await fetch(url, where, self._left, policy.fetch_seconds, allow_internal=internal, hosts=hosts)
        return {"data": self._counted(data, where)}

    def _path(self, path: Path, where: str) -> dict[str, Any]:
        if not self._policy.allow_paths:
            raise InvalidRequestError(
                f"{where}: files cannot be named here; send the content, as a data: URL or as bytes"
            )
        with suppress(RuntimeError, OSError):  # ~NAME of no user; a name that is too long
            path = path.expanduser().absolute()
            if path.is_file():
                return {"path": str(path)}
        raise InvalidRequestError(f"{where}: no such file: {path!s:.300}")

    async def _file(self, fields: Mapping[str, Any], where: str) -> dict[str, Any]:
        content, name = fields.get("file_data"), str(fields.get("filename") or "")
        guessed = mimetypes.guess_type(name)[0]
        where = f"{where}.file_data"
        said, data = await self._content(content, where)
        mime = said or guessed or "a file of unknown type"
        if mime.partition("/")[0] in KINDS:
            return {"type": mime.partition("/")[0], "data": data}
        try:
            if mime.startswith("text/"):
                return {"type": "text", "text": data.decode()}
        except UnicodeDecodeError:
            raise InvalidRequestError(f"{where}: the text is not UTF-8") from None
        raise InvalidRequestError(f"{where}: {mime} cannot be read; images, sound, video and text can")

    async def _content(self, text: Any, where: str) -> tuple[str, bytes]:
        """Return the media type, if it is said, and the content of a text in base64, or of a ``data:`` URL."""
        if isinstance(text, str) and _is_data_url(text):
            return await self._data_url(text, where)
        return "", await self._base64(text, where)

    async def _data_url(self, url: str, where: str) -> tuple[str, bytes]:
        """Return the media type and the content of a ``data:`` URL."""
        comma = url.find(",")  # the content is large: it is not copied
        if comma < 0:
            raise InvalidRequestError(f"{where}: a data: URL has a comma before its content")
        mime, *parameters = (each.strip().lower() for each in url[url.find(":") + 1 : comma].split(";"))
        escapes = url.count("%", comma)
        if escapes > _ESCAPES:
            raise InvalidRequestError(f"{where}: has more than {_ESCAPES} bytes as %XX; send them in base64")
        if "base64" not in parameters:
            return mime, self._counted(unquote_to_bytes(url[comma + 1 :]), where)
        if escapes:
            return mime, await self._base64(unquote(url[comma + 1 :]), where)
        return mime, await self._base64(url, where, comma + 1)

    async def _base64(self, text: Any, where: str, start: int = 0) -> bytes:
        """Return what a text in base64 holds from ``start`` on."""
        if not isinstance(text, str) or len(text) <= start:
            raise InvalidRequestError(f"{where}: must be text in base64, is {shown(text)}")
        self._check((len(text) - start) * 3 // 4 - 2, where)
        try:
            if len(text) - start <= _STEP:
                return self._counted(from_base64(text, start), where)
            decoded = await asyncio.to_thread(from_base64, text, start)
            return self._counted(decoded, where)
        except ValueError as error:  # of binascii, or for letters outside ASCII
            raise InvalidRequestError(f"{where}: is not base64: {error}") from None

    def _counted(self, data: bytes, where: str) -> bytes:
        self._check(len(data), where)
        self._left -= len(data)
        return data

    def _check(self, size: int, where: str) -> None:
        if size > self._left:
            limit = f"{self._policy.max_bytes / 2**20:g} MiB"
            raise InvalidRequestError(f"{where}: the media of this request are over the limit of {limit} (max_bytes)")


def _is_data_url(text: str) -> bool:
    return text[:_SHORT].lstrip()[:5].lower() == "data:"


_URL_SAFE = bytes.maketrans(b"-_", b"+/")
_SPACES = b" \t\r\n\v\f"


def from_base64(text: str, begin: int = 0) -> bytes:
    """Decode base64 from ``begin`` on, also of the URL-safe alphabet, with white space in it, and without its padding.

    It goes in steps: one call would hold the interpreter's lock for all of it.

    Raises:
        ValueError: it is no base64.
    """
    decoded = io.BytesIO()
    held, ended = b"", False
    for start in range(begin, len(text), _STEP):
        held += text[start : start + _STEP].encode("ascii").translate(_URL_SAFE, _SPACES)
        if ended and held:
            raise ValueError("Excess data after padding")
        whole = len(held) - len(held) % 4
        size = decoded.write(base64.b64decode(held[:whole], validate=True))
        ended, held = size < whole // 4 * 3, held[whole:]
    decoded.write(base64.b64decode(held + b"=" * (-len(held) % 4), validate=True))
    return decoded.getvalue()  # not a copy


def _samples(samples: Any, rate: Any, where: str) -> dict[str, Any]:
    """Return sound as floats; integers are scaled to [-1, 1]."""
    if isinstance(rate, bool) or not isinstance(rate, int | np.integer) or np.ndim(samples) not in (1, 2):
        raise InvalidRequestError(f"{where}: must be (samples, sample_rate), samples of shape [n] or [n, channels]")
    array = np.asarray(samples)
    if array.dtype.kind == "i":
        array = array / (np.iinfo(array.dtype).max + 1)
    return {"samples": np.asarray(array, dtype=np.float32), "sample_rate": int(rate)}
