"""Events as bytes, and the shapes of values, which say nothing of their content."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

from omni_capsules.events import Event, nbytes_of, read, shape_of
from omni_core.errors import CodecError
from omni_core.protocol.codec import encode
from omni_core.protocol.messages import OmniRequest, StagePayload


def test_events_are_read_as_they_were_written() -> None:
    events = [Event("begin", detail={"attempt": "r"}), Event("chunk", 7, "", "a", None, b"x", b"y", "int", 1)]
    record = b"".join(event.frame() for event in events)
    assert list(read(record)) == events
    for cut in range(len(events[0].frame()), len(record)):  # the process died while it wrote
        assert list(read(record[:cut])) == events[:1]


@pytest.mark.parametrize("value", [{"a": 1}, [1, 2], ["begin", *[0] * 9], None])
def test_what_is_no_event_is_an_error(value: Any) -> None:
    document = encode(value)
    with pytest.raises(CodecError):
        list(read(struct.pack("<I", len(document)) + document))


@pytest.mark.parametrize(
    ("value", "shape"),
    [
        (None, "NoneType"),
        ("secret", "str[6]"),
        ({"ids": np.zeros((2, 3), np.int64), "text": "secret"}, "{ids: int64[2x3], text: str[6]}"),
        ([1, 2, 3], "list[3] of int"),
        ((1.0, "a"), "tuple[2] of float | str[1]"),
        ([[[[["deep"]]]]], "list[1] of list[1] of list[1] of list[1] of list"),
    ],
)
def test_shapes_name_types_and_sizes_only(value: Any, shape: str) -> None:
    assert shape_of(value) == shape


def test_a_long_shape_is_cut() -> None:
    assert len(shape_of({f"name{n}" * 20: {"inner": n} for n in range(12)})) == 400


def test_the_expected_size_is_near_that_of_the_encoded_value() -> None:
    value = StagePayload("r", OmniRequest({"text": "x" * 5000}), {"rows": np.zeros(2000, np.float32), "ids": [1] * 100})
    assert 0.9 < nbytes_of(value) / len(encode(value)) < 1.2
