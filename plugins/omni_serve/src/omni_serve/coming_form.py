"""A multipart body while it comes: the fields before its file, the bytes of the file, and the names of the fields after it."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.types import Message

from omni_media.api import reads_forward
from omni_serve.encoders import wav_header
from omni_serve.forms import FIELDS
from omni_serve.media import pcm_rate

_MOST_BYTES = 2**18
"""Of a body until its file has begun: what has more before it is read as a whole."""

WHOLE_SECONDS = 1.0
"""A body that has come within this time is read as a whole: that costs less than windows of it, and hears as well."""

_DISPOSITION, _TYPE = b"content-disposition", b"content-type"


class ComingForm:
    """The form.

    Attributes:
        fields: before the file.
        late: names of the fields after it.
        file: the name of the file's field; empty: it has not begun.
        has_ended: the last byte of the file has come.
        reads_forward: the file can be decoded while it comes; ``None``: not known yet.
    """

    def __init__(self, boundary: bytes) -> None:
        self.fields: list[tuple[str, str | UploadFile]] = []
        self.late: list[str] = []
        self.file = ""
        self.has_ended = False
        self.reads_forward: bool | None = None
        self._name, self._value = b"", b""
        self._headers: dict[bytes, bytes] = {}
        self._part, self._is_file, self._data = "", False, bytearray()
        self._begin = b""
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._headers.clear,
                "on_header_field": self._header_name,
                "on_header_value": self._header_value,
                "on_header_end": self._header_end,
                "on_headers_finished": self._part_begin,
                "on_part_data": self._part_data,
                "on_part_end": self._part_end,
            },
        )

    def feed(self, data: bytes) -> bytes:
        """Take bytes of the body; return those of the file that are ready, once it is known that it reads forward.

        Raises:
            FormParserError, ValueError: it is malformed.
        """
        self._parser.write(data)
        if not self.file:
            return b""
        found, self._data = bytes(self._data), bytearray()
        if self.reads_forward:
            return found
        self._begin += found
        if self.reads_forward is None:
            self.reads_forward = reads_forward(self._begin)
        return b""

    def keep(self, data: bytes) -> None:
        """Keep bytes of the file for :meth:`begin`."""
        self._begin += data

    def begin(self) -> bytes:
        """Return the bytes of the file that came before it was known to read forward, and those that were kept."""
        found, self._begin = self._begin, b""
        return found

    def _header_name(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header_end(self) -> None:
        self._headers[self._name.lower()] = self._value
        self._name = self._value = b""

    def _part_begin(self) -> None:
        _, options = parse_options_header(self._headers.get(_DISPOSITION))
        if b"name" not in options:
            raise ValueError('The Content-Disposition header field "name" must be provided.')
        self._part, self._is_file = options[b"name"].decode(), b"filename" in options
        if len(self.fields) + len(self.late) > FIELDS:
            raise ValueError("too many fields")
        if self.file:
            self.late.append(self._part)
        elif self._is_file:
            self.file = self._part
            rate = pcm_rate(options[b"filename"].decode(), self._headers.get(_TYPE, b"").decode("latin-1"))
            self._begin = b"" if rate is None else wav_header(rate, None)

    def _part_data(self, data: bytes, start: int, end: int) -> None:
        if not self.late:
            self._data += data[start:end]

    def _part_end(self) -> None:
        if self._is_file and not self.late:
            self.has_ended = True
        elif not self.late:
            self.fields.append((self._part, self._data.decode()))
            self._data.clear()


async def begun_form(request: Request) -> tuple[Request, ComingForm | None, bool]:
    """Read a body until its file has begun, and what comes of it within :data:`WHOLE_SECONDS`.

    Returns:
        A request from whose body nothing is missing; the form, where its file can be decoded while it comes, and more is to come;
        and whether more of the body is to come than the form has.
    """
    kind, options = parse_options_header(request.headers.get("content-type"))
    if kind != b"multipart/form-data" or b"boundary" not in options:
        return request, None, True
    read: list[Message] = []
    receive, size, more = request.receive, 0, True
    loop = asyncio.get_running_loop()
    until = loop.time() + WHOLE_SECONDS

    async def again() -> Message:
        return read.pop(0) if read else await receive()

    try:
        form = ComingForm(options[b"boundary"])
        while form.reads_forward is None and more and size < _MOST_BYTES:
            read.append(message := await receive())
            data = message.get("body", b"")
            size, more = size + len(data), message.get("more_body", False)
            form.feed(data)
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                while form.reads_forward and more and loop.time() < until:
                    read.append(message := await receive())
                    more = message.get("more_body", False)
                    form.keep(form.feed(message.get("body", b"")))
    except (FormParserError, ValueError, KeyError):
        return Request(request.scope, again), None, more
    return Request(request.scope, again), form if form.reads_forward and more else None, more
