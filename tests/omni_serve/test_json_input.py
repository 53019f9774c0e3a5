"""Values of JSON are counted before there are any, whatever its texts are and wherever it is cut."""

from __future__ import annotations

import json
import math
import time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from omni_serve import json_input
from omni_serve.chat import ChatRequest
from omni_serve.errors import ApiError
from omni_serve.json_input import check_texts, check_values, read_json
from omni_serve.settings import Limits

ANYTHING = TypeAdapter(Any)

texts = st.text(st.sampled_from(',:[]{}"\\/ aNé\n\ud800'), max_size=12) | st.sampled_from(
    ["NaN", "Infinity", '\\"', "\\" * 7]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)


def tokens(value: Any) -> int:
    """Return the number of commas, colons and opening brackets outside of strings."""
    if isinstance(value, dict):
        return 1 + len(value) + max(0, len(value) - 1) + sum(map(tokens, value.values()))
    if isinstance(value, list):
        return 1 + max(0, len(value) - 1) + sum(map(tokens, value))
    return 0


@given(values, st.integers(1, 9), st.booleans())
@example(["\\", '\\"', ",,,,"], 1, True)
def test_exactly_what_is_outside_of_strings_counts(value: Any, piece: int, ascii_only: bool) -> None:
    data = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    count = tokens(value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_input, "PIECE_BYTES", piece)
        patch.setattr(json_input, "VALUE_BYTES", math.inf)
        check_values(data, count + 1, 10**6)
        if count:
            with pytest.raises(ApiError, match=f"more than {count - 1} values"):
                check_values(data, count - 1, 10**6)


@given(values, st.integers(1, 9), st.sampled_from(["NaN", "Infinity", "-Infinity"]))
def test_no_numbers_are_found_wherever_they_are_cut(value: Any, piece: int, word: str) -> None:
    data = json.dumps([value, 1]).encode()[:-2] + word.encode() + b"]"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_input, "PIECE_BYTES", piece)
        with pytest.raises(ApiError) as caught:
            check_values(data, 1000, 10**6)
    assert caught.value.code == "invalid_json"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(b"," * 2**20, id="commas"),
        pytest.param(b"[{" * 2**19, id="brackets"),
        pytest.param(b'\\"' * 2**19, id="quotes"),
        pytest.param(b"\\\\" * 2**19, id="escapes"),
        pytest.param(b"NaN" * 2**18, id="NaN"),
        pytest.param(b"QUJD" * 2**18, id="base64"),
    ],
)
def test_texts_of_any_kind_are_one_value(text: bytes) -> None:
    check_values(b'{"a":"%b","b":"%b"}' % (text, text), 10, 2**21)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b'{"input":[' + b"{}," * 2**20 + b"{}]}", id="objects"),
        pytest.param(b"[" + b"[]," * 2**20 + b"[]]", id="lists"),
        pytest.param(b"[" + b"1," * 2**20 + b"1]", id="numbers"),
        pytest.param(b"[" + b'"",' * 2**20 + b'""]', id="texts"),
        pytest.param(b'""' * 2**20, id="quotes"),
        pytest.param(b"{" + b",".join(b'"%d":1' % n for n in range(2**17)) + b"}", id="keys"),
        pytest.param(b"[" * 2**20, id="depth"),
        pytest.param(b"[" + b"9" * 2**22 + b"]", id="digits"),
        pytest.param(b"[" + b",".join([b"9" * 4000] * 1000) + b"]", id="long numbers"),
    ],
)
def test_many_values_are_refused_at_once(data: bytes) -> None:
    """Without a look at the rest: the work does not grow with the body."""
    begun = time.process_time()
    with pytest.raises(ApiError, match="more than 50000 values") as caught:
        check_values(data, 50_000, 10**6)
    assert (caught.value.status, caught.value.code) == (413, "too_many_values")
    assert time.process_time() - begun < 0.5  # an idle machine: 0.02


@pytest.mark.parametrize("piece", [1009, 2**17])
@pytest.mark.parametrize(
    ("texts", "fits"),
    [
        pytest.param([b"a" * 2**20], True, id="media"),
        pytest.param([b"QUJD" * 14 + b"QUJ\\/"] * 2**13, True, id="media with escaped slashes"),
        pytest.param([b"\\u4e2d" * 50_000, b"a" * 2**20], True, id="a text beside media"),
        pytest.param(["😀".encode() * 50_000, b"a" * 2**20], True, id="letters beside media"),
        pytest.param([b"a" * 2**20 + "😀".encode()], False, id="a letter at the end"),
        pytest.param(["é".encode() + b"a" * 2**20], False, id="a letter at the begin"),
        pytest.param([b"\\ud83d\\ude00" + b"a" * 2**20], False, id="an escaped letter at the begin"),
        pytest.param([b"a" * 2**20 + b"\\u4e2d"], False, id="an escaped letter at the end"),
        pytest.param([b"\\n" * 2**18], False, id="line breaks"),
        pytest.param([b"\\n" * 100] * 2**12, False, id="line breaks in many texts"),
        pytest.param([b"\\\\" * 50_000], True, id="backslashes"),
    ],
)
def test_long_texts_that_are_no_media_are_refused(
    texts: list[bytes], fits: bool, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_input, "PIECE_BYTES", piece)
    data = b"[" + b",".join(b'"%b"' % each for each in texts) + b"]"
    if fits:
        check_values(data, 10_000, 50_000)
    else:
        with pytest.raises(ApiError, match="over the limit of 50000 characters") as caught:
            check_values(data, 10_000, 50_000)
        assert caught.value.status == 413


@pytest.mark.asyncio
@pytest.mark.parametrize("data", [b"{", b'{"a', b"\\", b'"\\', b"", b'\xff"', b"[1,]", b"nul"])
async def test_what_is_no_json_is_told_by_the_parser(data: bytes) -> None:
    with pytest.raises(ValidationError, match="Invalid JSON"):
        await read_json(data, ANYTHING.validate_json, Limits())


@pytest.mark.asyncio
async def test_large_json_is_read_in_a_thread() -> None:
    import threading

    threads = []

    def parse(data: bytes | bytearray) -> Any:
        threads.append(threading.current_thread() is threading.main_thread())
        return ANYTHING.validate_json(data)

    for size in (10, json_input.INLINE_BYTES):
        assert await read_json(b'"' + b"x" * size + b'"', parse, Limits()) == "x" * size
    assert threads == [True, False]


@pytest.mark.parametrize("begin", [b"[", b'{"[[":'])
def test_json_is_not_deeper_than_a_request_may_be_on_its_way(begin: bytes) -> None:
    end = b"]" if begin == b"[" else b"}"
    most = begin * json_input.DEPTH + b"1" + end * json_input.DEPTH
    check_values(b"[%b,%b]" % (most[len(begin) : -1], b"[]," * 100 + b"1"), 10**4, 10**6)
    with pytest.raises(ApiError, match="nested too deeply") as caught:
        check_values(b"[%b]" % most, 10**4, 10**6)
    assert caught.value.status == 400


def test_texts_beside_the_media_are_bounded() -> None:
    long = "x" * 1000
    check_texts({"messages": [{"content": long}], "a": "x"}, ["messages"], 100)
    for rest in ({"a": long}, {"a": ["x" * 60, {"b": "x" * 60}]}, {"a": {"messages": long}}):
        with pytest.raises(ApiError, match="beside messages") as caught:
            check_texts({"messages": [], **rest}, ["messages"], 100)
        assert caught.value.status == 413
    asked = ChatRequest.model_validate({"model": "m", "messages": [{"content": long}], "stop": long})
    with pytest.raises(ApiError):
        check_texts(asked, ["messages"], 100)
    check_texts(asked, ["messages"], 1001)


def test_long_keys_are_refused_everywhere() -> None:
    for where in ({"k" * 1001: 1}, {"messages": [{"k" * 1001: 1}]}):
        with pytest.raises(ApiError, match="1001 characters") as caught:
            check_texts(where, ["messages"], 10_000)
        assert len(caught.value.message) < 200
