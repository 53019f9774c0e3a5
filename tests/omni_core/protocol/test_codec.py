"""The wire codec: exact round trips, and refusals that name the path."""

from __future__ import annotations

import collections
import dataclasses
import subprocess
import sys
import time
from typing import Any

import attrs
import msgpack
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiers import few

from omni_core.errors import CodecError
from omni_core.protocol import structure
from omni_core.protocol.codec import ALIGNMENT, decode, encode, encode_split, encode_whole, is_large, register
from omni_core.protocol.messages import OmniRequest, StagePayload, SubmitMessage
from omni_core.protocol.outputs import TextChunk
from omni_core.protocol.structure import LARGE_BYTES, LARGE_NODES, MAX_NODES

Point = collections.namedtuple("Point", "x y")


@dataclasses.dataclass
class Plain:
    value: Any


leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
keys = st.text() | st.integers() | st.booleans() | st.none() | st.tuples(st.integers(), st.text())
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(keys, inner) | st.frozensets(leaves),
    max_leaves=20,
)


def same(left: Any, right: Any) -> bool:
    """Equality that tells a tuple from a list and True from 1."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return [*map(repr, left)] == [*map(repr, right)] and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


@given(values)
def test_plain_data_round_trips_exactly(value: Any) -> None:
    assert same(decode(encode(value)), value)


TENSORS = [
    torch.arange(12, dtype=torch.float32).reshape(3, 4).T,
    torch.randn(2, 3).to(torch.bfloat16),
    torch.tensor([True, False]),
    torch.empty(0, 5, dtype=torch.int16),
    torch.tensor(3.5, dtype=torch.float64),
    torch.randn(100, 100)[::2, 1:],
    torch.complex(torch.ones(3), torch.ones(3)).conj(),
    torch.nn.Parameter(torch.randn(64, 64)),
]


@pytest.mark.parametrize("tensor", TENSORS, ids=lambda t: f"{t.dtype}{list(t.shape)}")
@pytest.mark.parametrize("apart", [False, True])
def test_tensors_round_trip_exactly(tensor: torch.Tensor, apart: bool) -> None:
    value = {"a": [tensor, ("x", tensor)]}
    if apart:
        encoded = encode_split(value)
        memory = bytearray(encoded.nbytes)
        encoded.write_into(memoryview(memory))
        assert all(offset % ALIGNMENT == 0 for offset in encoded.offsets)
        got = decode(encoded.header, memoryview(memory))
    else:
        got = decode(encode(value))
    for back in (got["a"][0], got["a"][1][1]):
        assert back.dtype == tensor.dtype
        assert back.shape == tensor.shape
        assert torch.equal(back, tensor)


@pytest.mark.parametrize(
    "array", [np.arange(6.0).reshape(2, 3).T, np.zeros((0, 2)), np.array(["ab", "c"]), np.array(2)]
)
def test_arrays_round_trip_exactly(array: np.ndarray) -> None:
    back = decode(encode({"x": array}))["x"]
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)


def test_numpy_scalars_keep_their_type() -> None:
    back = decode(encode(np.float32(1.5)))
    assert type(back) is np.float32
    assert back == 1.5


def test_large_tensors_stay_out_of_the_header() -> None:
    encoded = encode_split({"big": torch.zeros(10_000), "small": torch.zeros(4), "more": np.zeros(1000)})
    assert len(encoded.buffers) == 2
    assert len(encoded.header) < 500


def test_decoded_tensors_are_views_of_the_buffer() -> None:
    encoded = encode_split(torch.arange(1000))
    memory = bytearray(encoded.nbytes)
    encoded.write_into(memoryview(memory))
    back = decode(encoded.header, memoryview(memory))
    memory[0:8] = (77).to_bytes(8, "little")
    assert back[0] == 77


def test_registered_classes_keep_their_type() -> None:
    payload = StagePayload("r", OmniRequest(inputs={"a": (1, 2)}), TextChunk("x"))
    assert decode(encode(payload)) == payload


def test_data_that_looks_like_a_placeholder_stays_data() -> None:
    for value in ({"_tensor_placeholder": "x"}, {"__ext__": [7, b""]}, ["float32", [2], 0], "omni_core.protocol"):
        assert decode(encode_split(value).header) == value


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": [1, {"b": object()}]}, r"payload\['a'\]\[1\]\['b'\]"),
        ({"p": Point(torch.zeros(2), 1)}, r"payload\['p'\].*Point"),
        ([Plain(1)], r"payload\[0\].*Plain"),
        (StagePayload("r", OmniRequest(params={"f": print}), None), r"payload\.request\.params\['f'\]"),
        ({"t": torch.zeros(2, 2).to_sparse()}, r"payload\['t'\].*dense"),
        ({Plain: 1}, r"payload key"),
        (np.array([object()]), r"payload.*dtype object"),
    ],
)
def test_a_value_that_cannot_be_sent_is_named(value: Any, path: str) -> None:
    with pytest.raises(CodecError, match=path):
        encode(value)


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(CodecError, match="nested too deeply"):
        encode(loop)
    deep: Any = ()
    for _ in range(5000):
        deep = (deep,)
    with pytest.raises(CodecError, match="nested too deeply"):
        encode(deep)


@given(st.binary(max_size=200))
def test_garbage_never_raises_anything_but_a_codec_error(data: bytes) -> None:
    try:
        decode(data)
    except CodecError:
        return


def test_a_tensor_outside_its_bytes_is_refused() -> None:
    encoded = encode_split(torch.zeros(10_000))
    with pytest.raises(CodecError, match="outside"):
        decode(encoded.header, memoryview(bytearray(10)))
    with pytest.raises(CodecError, match="outside"):
        decode(encoded.header)


def nested(wrap: Any, depth: int) -> Any:
    value = wrap([])
    for _ in range(depth):
        value = wrap([value])
    return value


def in_dict(items: Any) -> Any:
    return dict(enumerate(items))


def in_payload(items: Any) -> Any:
    return StagePayload("r", OmniRequest(), items)


CONTAINERS = [list, tuple, frozenset, in_dict, in_payload, lambda items: OmniRequest(metadata={"a": items})]


@pytest.mark.parametrize("wrap", CONTAINERS)
def test_deep_values_are_refused_by_their_sender(wrap: Any) -> None:
    with pytest.raises(CodecError, match=r"^payload.*nested too deeply"):
        encode(nested(wrap, 400))
    with pytest.raises(CodecError, match=r"^payload\['here'\].*nested too deeply"):
        encode({"here": nested(wrap, 400), "there": 1})
    assert decode(encode(nested(wrap, 15))) == nested(wrap, 15)


def test_deep_keys_are_refused_by_their_sender() -> None:
    with pytest.raises(CodecError, match=r"payload key \(tuple\)\[1\].*nested too deeply"):
        encode({(1, nested(tuple, 400)): 2})


@pytest.mark.parametrize("wrap", [list, tuple, frozenset])
def test_the_deepest_value_that_is_sent_can_be_decoded(wrap: Any) -> None:
    """In a process of its own: an overflow of the C stack would end it."""
    code = (
        "from omni_core.protocol.codec import decode, encode\n"
        "from omni_core.protocol.structure import MAX_DEPTH\n"
        f"value = {wrap.__name__}([])\n"
        f"for _ in range(MAX_DEPTH - 1): value = {wrap.__name__}([value])\n"
        "assert decode(encode(value)) == value\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


@pytest.mark.parametrize("bad", [{"end": object()}, [Point(1, 2)]])
def test_one_bad_value_among_many_is_found_fast(bad: Any) -> None:
    many = {index: (index if index % 2 else str(index)) for index in range(200_000)}
    begin = time.process_time()
    with pytest.raises(CodecError, match=r"payload\['data'\]\[200000\]\S+: a "):
        encode({"data": {**many, 200_000: bad}})
    assert time.process_time() - begin < 1.5


def test_too_many_values_are_refused_at_once_and_named() -> None:
    begin = time.process_time()
    with pytest.raises(CodecError, match=r"payload\['data'\]: more than 1,000,000 values"):
        encode({"small": [1] * 100, "data": [0] * (MAX_NODES + 1)})
    bomb: list[Any] = []
    for _ in range(50):
        bomb = [bomb, bomb]
    with pytest.raises(CodecError, match=r"more than 1,000,000 values"):
        encode(bomb)
    assert time.process_time() - begin < 3


def test_values_that_take_long_to_encode_are_large() -> None:
    assert not is_large(StagePayload("r", OmniRequest(), {"ids": list(range(10_000))}))
    assert not is_large(np.zeros(10_000_000))
    assert is_large({"x": [(index,) for index in range(LARGE_NODES)]})


def test_integers_of_any_length_arrive() -> None:
    for value in (10**6000, -(10**6000), 2**64, -(2**63) - 1):
        assert decode(encode(value)) == value


@register
@attrs.define
class _KeywordOnly:
    _first: int
    second: int = attrs.field(kw_only=True)


def test_keyword_only_and_private_fields_of_a_registered_class_are_restored() -> None:
    value = _KeywordOnly(1, second=2)
    assert decode(encode(value)) == value
    assert decode(encode([value, (value,)])) == [value, (value,)]


def test_a_value_that_is_too_deep_to_be_measured_is_named_by_its_path() -> None:
    value: Any = {}
    for _ in range(100):
        value = [value, 1]
    with pytest.raises(CodecError, match=r"payload\['deep'\]\[0\].*nested too deeply"):
        is_large({"deep": value})


LONG = [
    "x" * (LARGE_BYTES + 1),
    b"x" * (LARGE_BYTES + 1),
    bytearray(LARGE_BYTES + 1),
    {"x" * (LARGE_BYTES + 1): 1},
    {"x": [("y", {1: b"x" * LARGE_BYTES})]},
    ["x" * 1000] * (LARGE_BYTES // 1000 + 1),
    StagePayload("r", OmniRequest({"x": "x" * (LARGE_BYTES + 1)}), None),
    memoryview(np.zeros((2, LARGE_BYTES), np.uint8)),
]


@pytest.mark.parametrize("value", LONG, ids=lambda each: type(each).__name__)
def test_long_texts_and_bytes_are_large(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_large(value)
    monkeypatch.setattr(structure, "MAX_BYTES", LARGE_BYTES // 2)
    with pytest.raises(CodecError, match=r"payload.*: [\d,]+ bytes of text and bytes, at most 524,288; send an array"):
        encode(value)


def test_what_is_too_long_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structure, "MAX_BYTES", 1000)
    value = {"short": "x" * 10, "deep": [1, ("y", {"long": b"z" * 991})]}
    with pytest.raises(CodecError, match=r"^payload\['deep'\]\[1\]\[1\]\['long'\]: 1,015 bytes of text and bytes"):
        encode(value)
    value["deep"][1][1]["long"] = b"z" * 900  # type: ignore[index]
    assert decode(encode(value)) == value


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (msgpack.ExtType(10, b""), "payload"),
        ({"x": [1, msgpack.ExtType(7, b"")]}, r"payload\['x'\]\[1\]"),
        ({msgpack.ExtType(1, b"\x90"): 1}, r"payload key .*"),
        ({(1, (msgpack.ExtType(6, b"\x90"),))}, r"payload\[0\]\[1\]\[0\]"),
        (TextChunk(msgpack.ExtType(10, b"")), r"payload\.text"),  # type: ignore[arg-type]
    ],
)
def test_extension_types_of_a_user_are_refused(value: Any, path: str) -> None:
    with pytest.raises(CodecError, match=rf"^{path}: a msgpack.ExtType cannot be sent$"):
        encode(value)
    with pytest.raises(CodecError, match=rf"^{path}: a msgpack.ExtType cannot be sent$"):
        is_large(value)


SHAPES = [
    [[0], 50_000_000],
    [[[0]] * 1000, 2**31],
    [-1, 4],
    [2.0],
    [True],
    "8",
    8,
    None,
    {"8": 1},
    [b"8"],
    [2**63] * 64,
    [2**63] * 1_000_000,
    [1] * 65,
]


@pytest.mark.parametrize("code", [7, 8, 9])
@pytest.mark.parametrize("shape", few(SHAPES, 2), ids=lambda each: repr(each)[:20])
def test_the_shape_of_an_array_is_only_a_claim(shape: Any, code: int) -> None:
    begin = time.process_time()
    with pytest.raises(CodecError):
        decode(msgpack.packb(msgpack.ExtType(code, msgpack.packb(["int8", shape, b""]))))
    assert time.process_time() - begin < 3


def test_extension_types_in_each_other_do_not_overflow_the_stack() -> None:
    document = b"\x90"
    for _ in range(2000):
        document = msgpack.packb(msgpack.ExtType(1, document))
    with pytest.raises(CodecError, match="nested too deeply"):
        decode(document)


def test_a_large_document_is_not_copied_into_the_message_that_carries_it() -> None:
    body, _ = encode_whole({"text": "x" * 1_000_000})
    message = encode_split(SubmitMessage("r", "s", body, False))
    assert len(message.header) < 200
    assert message.nbytes > 1_000_000
    got = decode(message.header, memoryview(message.joined()))
    assert decode(got.body) == {"text": "x" * 1_000_000}
    again = encode_split(got)  # as it is handed on
    assert decode(decode(again.header, memoryview(again.joined())).body) == {"text": "x" * 1_000_000}
    assert decode(decode(encode(got)).body) == {"text": "x" * 1_000_000}
