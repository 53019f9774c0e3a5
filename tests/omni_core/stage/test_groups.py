"""Requests that a stage computes in parts: what goes to the scheduler, and what comes of it."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve

from omni_core.errors import ConfigError, InvalidRequestError
from omni_core.protocol.error_info import describe
from omni_core.protocol.messages import OmniRequest, StagePayload
from omni_core.scheduling.base import IncomingMessage, OutgoingMessage
from omni_core.stage.groups import Groups


def arrival(data: Any = None) -> IncomingMessage:
    payload = StagePayload("r", OmniRequest({"text": "in"}, {"denoise": {"steps": 4}}), data)
    return IncomingMessage("r", "new_request", payload, "before", None, payload.request.without_inputs())


def in_two(payload: StagePayload) -> dict[str, Any]:
    other = evolve(payload.request, params={"denoise": {"steps": 1}})
    return {"main": payload.data, "negative": StagePayload("r", other, "not " + payload.data)}


def test_a_request_becomes_its_parts() -> None:
    main, negative = Groups("encode", in_two).expand(arrival("a dog"))
    assert (main.request_id, main.data.data, main.source) == ("r#main", "a dog", "before")
    assert (negative.request_id, negative.data.data) == ("r#negative", "not a dog")
    assert main.data.request.params == {"denoise": {"steps": 4}}
    assert negative.request is not None
    assert (negative.request.params, negative.request.inputs) == ({"denoise": {"steps": 1}}, None)


def test_without_parts_everything_stays_as_it_is() -> None:
    message, output = arrival(), OutgoingMessage("r", "result", 1)
    for groups in (Groups("encode", None), Groups("encode", lambda payload: None)):
        assert groups.expand(message) == [message]
        assert groups.collect(output) is output
        assert groups.end("r") == ["r"]


def test_results_are_collected_in_the_order_of_the_parts() -> None:
    groups = Groups("encode", in_two)
    groups.expand(arrival("a dog"))
    assert groups.collect(OutgoingMessage("r#negative", "result", StagePayload("r#negative", OmniRequest(), 2))) is None
    assert groups.request_of("r#negative") == "r"
    together = groups.collect(OutgoingMessage("r#main", "result", 1))
    assert together is not None
    assert (together.request_id, list(together.data.items())) == ("r", [("main", 1), ("negative", 2)])


def test_chunks_name_their_part() -> None:
    groups = Groups("encode", in_two)
    groups.expand(arrival("a dog"))
    chunk = groups.collect(OutgoingMessage("r#main", "stream", 1, "next", {"n": 0}))
    assert chunk == OutgoingMessage("r", "stream", 1, "next", {"n": 0, "role": "main"})


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (ValueError("no"), "RuntimeError", "in the part 'negative': ValueError: no"),
        (InvalidRequestError("too long"), "InvalidRequestError", "in the part 'negative': too long"),
        (MemoryError(), "MemoryError", "MemoryError()"),
    ],
)
def test_the_error_of_a_part_is_that_of_the_request(error: Exception, kind: str, text: str) -> None:
    groups = Groups("encode", in_two)
    groups.expand(arrival("a dog"))
    failed = groups.collect(OutgoingMessage("r#negative", "error", error))
    assert failed is not None
    info = describe(failed.data, "encode")
    assert (failed.request_id, failed.type, info.error_type, info.message) == ("r", "error", kind, text)


def test_the_end_of_a_request_is_that_of_its_parts() -> None:
    groups = Groups("encode", in_two)
    groups.expand(arrival("a dog"))
    assert groups.end("r") == ["r#main", "r#negative"]
    assert groups.end("r") == ["r"]
    late = OutgoingMessage("r#main", "result", 1)
    assert groups.collect(late) is late  # of no request: dropped behind this


@pytest.mark.parametrize("returned", [{}, [1], {1: "a"}, {"": "a"}])
def test_what_is_no_group_is_refused(returned: Any) -> None:
    with pytest.raises(ConfigError, match=r"stages\[encode\]\.expand_fn returned .* a payload for each role"):
        Groups("encode", lambda payload: returned).expand(arrival())


def test_the_error_of_a_part_may_be_of_any_class(hostile: BaseException) -> None:
    groups = Groups("encode", in_two)
    groups.expand(arrival("a dog"))
    failed = groups.collect(OutgoingMessage("r#negative", "error", hostile))
    assert failed is not None
    info = describe(failed.data, "encode")
    assert (failed.request_id, info.error_type) == ("r", "RuntimeError")
    assert info.message.startswith("in the part 'negative': Hostile: ")
