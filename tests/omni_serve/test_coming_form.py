"""Multipart bodies in pieces: no cut changes what is read, and what is malformed is said so."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from python_multipart.exceptions import FormParserError

from omni_serve.coming_form import ComingForm
from omni_serve.encoders import PCM_RATE, wav_header

FILE = b"RIFF0000WAVE" + bytes(range(256)) + b"\r\n--boun\r\n--b" + b"\r\n" * 5
FIELD = '--bound\r\nContent-Disposition: form-data; name="{}"\r\n\r\n{}\r\n'


def part(name: str = "file", filename: str = "a.wav", data: bytes = FILE, kind: str = "audio/wav") -> bytes:
    head = (
        f'--bound\r\ncontent-disposition: form-data; name="{name}"; filename="{filename}"\r\ncontent-type: {kind}\r\n'
    )
    return head.encode() + b"\r\n" + data + b"\r\n"


BODY = (FIELD.format("model", "m") + FIELD.format("prompt", "Straße")).encode() + part()
AFTER = (FIELD.format("language", "de") + "--bound--\r\n").encode()


def read(body: bytes, *sizes: int) -> tuple[ComingForm, bytes]:
    form, data, at = ComingForm(b"bound"), b"", 0
    for size in [*sizes, len(body)]:
        data += form.feed(body[at : at + size])
        data += form.begin() if form.reads_forward else b""
        at += size
    return form, data


@given(st.lists(st.integers(0, 60), max_size=40))
def test_no_cut_changes_what_is_read(sizes: list[int]) -> None:
    form, data = read(BODY + AFTER, *sizes)
    assert form.fields == [("model", "m"), ("prompt", "Straße")]
    assert data == FILE
    assert (form.file, form.late, form.has_ended, form.reads_forward) == ("file", ["language"], True, True)


def test_what_has_not_come_is_not_there() -> None:
    form, data = read(BODY[:-40])
    assert (form.has_ended, form.late) == (False, [])
    assert FILE.startswith(data)
    assert read(BODY[:200])[0].file == ""


@pytest.mark.parametrize(
    ("name", "kind", "rate"),
    [
        ("a.pcm", "application/octet-stream", PCM_RATE),
        ("a", "audio/pcm", PCM_RATE),
        ("a", "audio/pcm; rate=16000; channels=1", 16_000),
        ("a.pcm", "audio/pcm;rate=48000", 48_000),
    ],
)
def test_pcm_gets_a_header(name: str, kind: str, rate: int) -> None:
    form, data = read(part(filename=name, kind=kind, data=bytes(100)) + b"--bound--\r\n")
    assert form.reads_forward
    assert data == wav_header(rate, None) + bytes(100)


def test_a_format_that_is_not_read_forward_keeps_nothing_back() -> None:
    form, data = read(part(data=b"FORM....AIFF" + bytes(100)) + b"--bound--\r\n")
    assert (form.reads_forward, data) == (False, b"")
    assert read(part(data=b"RI") + b"--bound--\r\n")[0].reads_forward is None


def test_many_fields_are_refused() -> None:
    body = FIELD.format("x", "1").encode() * 80
    with pytest.raises(ValueError, match="too many"):
        read(body)
    with pytest.raises(ValueError, match="too many"):
        read(BODY + body)


def test_a_part_without_a_name_is_told() -> None:
    with pytest.raises(ValueError, match='"name" must be provided'):
        read(BODY + b"--bound\r\ncontent-type: text/plain\r\n\r\nx\r\n--bound--\r\n")


@given(st.binary(max_size=40), st.integers(0, len(BODY)), st.integers(0, 300))
def test_damage_is_an_error_of_the_form_or_none(noise: bytes, at: int, cut: int) -> None:
    with contextlib.suppress(FormParserError, ValueError, KeyError):
        read(BODY[:at] + noise + BODY[at:] + AFTER, cut)
