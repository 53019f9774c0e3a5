"""Frames: a message's document and raw bytes in a byte stream, however it is cut."""

from __future__ import annotations

import random
from typing import Any

import numpy
import psutil
import pytest

from omni_core.control.framing import FrameReader, frame, parse_frame
from omni_core.errors import CodecError, TransportError
from omni_core.protocol.codec import EncodedValue, decode, encode_split, encode_whole
from omni_core.protocol.messages import AbortMessage, SubmitMessage


def submit(size: int, fill: int = 1) -> SubmitMessage:
    body, has_tensors = encode_whole({"x": numpy.full(size, fill, numpy.uint8), "y": (1, "two")})
    return SubmitMessage("r", "s", body, has_tensors)


def stream(*messages: Any) -> bytes:
    return b"".join(part for message in messages for part in frame(message).parts)


@pytest.mark.parametrize("piece", [1, 3, 1000, 10**9])
def test_a_stream_is_cut_into_its_messages_wherever_it_is_broken(piece: int) -> None:
    sent = [submit(10), AbortMessage("a"), submit(5000, 2), submit(3, 3), AbortMessage("b")]
    data = stream(*sent)
    got: list[Any] = []
    reader = FrameReader(lambda document, raw: got.append(decode(document, raw)))
    receive(reader, data, lambda: piece)
    assert [type(each) for each in got] == [type(each) for each in sent]
    assert [each.request_id for each in got] == [each.request_id for each in sent]
    for mine, theirs in zip(sent, got, strict=True):
        if isinstance(mine, SubmitMessage):
            assert decode(theirs.body)["y"] == (1, "two")
            numpy.testing.assert_array_equal(decode(theirs.body)["x"], decode(mine.body)["x"])


def receive(reader: FrameReader, data: bytes, piece: Any) -> None:
    while data:
        with reader.room() as room:
            count = min(len(data), len(room), piece())
            room[:count] = data[:count]
        reader.received(count)
        data = data[count:]


def test_messages_larger_than_the_buffer_arrive_among_small_ones() -> None:
    chance = random.Random(0)
    sizes = [chance.choice((1, 3000, 300_000, 900_000)) for _ in range(30)]
    data = stream(*(submit(size, index) for index, size in enumerate(sizes)))
    got: list[Any] = []
    reader = FrameReader(lambda document, raw: got.append(decode(decode(document, raw).body)["x"]))
    receive(reader, data, lambda: chance.randrange(1, 200_000))
    assert [len(each) for each in got] == sizes
    assert all((each == index).all() for index, each in enumerate(got)), (
        "kept arrays are not overwritten by later messages"
    )


def test_large_arrays_are_sent_without_a_copy() -> None:
    array = numpy.zeros(1_000_000, numpy.uint8)
    body, _ = encode_whole(array)
    made = frame(SubmitMessage("r", "s", body))
    assert made.nbytes < 1_000_300
    array[:] = 7
    assert bytes(made.parts[-1][:3]) == b"\7\7\7", "not a copy"
    made.own()
    array[:] = 9
    assert made.parts[0][-1] == 7, "a copy, once it has to wait"


def test_a_body_is_not_copied_into_the_document() -> None:
    message = frame(submit(1_000_000))
    assert message.parts[0].nbytes < 500
    assert sum(part.nbytes for part in message.parts) == message.nbytes


def test_bodies_survive_being_forwarded() -> None:
    body, _ = encode_whole([numpy.arange(5000), numpy.arange(3000.0)])
    once = decode(*whole(SubmitMessage("r", "s", body))).body
    twice = decode(*whole(SubmitMessage("r", "t", once))).body
    assert isinstance(twice, EncodedValue)
    numpy.testing.assert_array_equal(decode(twice)[1], numpy.arange(3000.0))


def whole(message: Any) -> tuple[bytes, memoryview]:
    encoded = encode_split(message)
    return encoded.header, memoryview(encoded.joined())


def read_stream(data: bytes, piece: int = 10**9) -> list[str]:
    """Return the ids of the messages of a stream, up to what is no frame."""
    got: list[str] = []
    reader = FrameReader(lambda document, raw: got.append(decode(document, raw).request_id))
    with pytest.raises(CodecError, match="bytes that are no frame"):
        receive(reader, data, lambda: piece)
    return got


NONSENSE = [
    b"\x05\0\0\0" + b"\xc1" * 5,
    b"\n",
    b"\0" * 64,
    b"\xff" * 300_000,
    b"omn1",
    b"omni" + b"\xff" * 8,
    b"GET / HTTP/1.1",
]


@pytest.mark.parametrize("piece", [1, 7, 10**9])
@pytest.mark.parametrize("nonsense", NONSENSE, ids=lambda each: repr(each[:12]))
def test_bytes_that_are_no_frame_are_noticed_at_once(nonsense: bytes, piece: int) -> None:
    assert read_stream(nonsense, piece) == []
    assert read_stream(stream(AbortMessage("a"), AbortMessage("b")) + nonsense, piece) == ["a", "b"]


def test_bytes_within_a_frame_are_noticed_at_the_next_one() -> None:
    first, second = stream(AbortMessage("a")), stream(AbortMessage("b"))
    got = bytearray()
    reader = FrameReader(lambda document, raw: got.extend(document))
    with pytest.raises(CodecError, match="bytes that are no frame"):
        receive(reader, first[:-2] + b"123456789" + first[-2:] + second, lambda: 10**9)


def test_memory_for_a_frame_is_taken_as_it_arrives() -> None:
    before = psutil.Process().memory_info().rss
    reader = FrameReader(lambda document, raw: None)
    receive(reader, b"omni" + (10).to_bytes(4, "little") + b"\xff" * 4 + bytes(1000), lambda: 10**9)
    with reader.room() as room:
        assert room.nbytes > 4 * 10**9
    assert psutil.Process().memory_info().rss - before < 50 * 2**20


@pytest.mark.parametrize(
    "data", [b"", bytes(11), b"omni", stream(AbortMessage("a")) + b"x", stream(AbortMessage("a"))[:-1]]
)
def test_a_whole_frame_is_checked(data: bytes) -> None:
    with pytest.raises(CodecError, match="bytes that are no frame"):
        parse_frame(memoryview(data))


def test_a_document_that_is_too_large_is_an_error_of_the_sender() -> None:
    with pytest.raises(
        TransportError, match=r"a control message of 70,000,054 bytes cannot be sent; at most 67,108,864"
    ):
        frame(AbortMessage("x" * 70_000_000))
