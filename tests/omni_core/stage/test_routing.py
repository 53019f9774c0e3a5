"""Routing: every decision about where a stage's outputs go."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from omni_core.errors import ConfigError
from omni_core.protocol.messages import OmniRequest, StagePayload
from omni_core.protocol.specs import StageSpec
from omni_core.stage.active_requests import ActiveRequest
from omni_core.stage.routing import Route, Routing

HERE = __name__
ACTIVE = ActiveRequest("r", 0.0, OmniRequest())


def answer(request_id: str, payload: StagePayload) -> Any:
    """A route_fn, or a stream_done_to_fn: returns the payload's choice."""
    return payload.data["answer"]


def only_words(payload: StagePayload) -> Any:
    return {"words": payload.data["words"]}


def same(payload: StagePayload) -> StagePayload:
    return payload


def spec(**fields: Any) -> StageSpec:
    return StageSpec(name="a", factory="m:f", **fields)


def route(
    spec: StageSpec, data: Any = None, chunks: dict[str, int] | None = None, local: Collection[str] = ()
) -> Route:
    active = ActiveRequest("r", 0.0, OmniRequest(), chunks_sent=chunks or {})
    return Routing(spec, local).of_result(active, active.payload(data))


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """This module under its name, which pytest's importlib mode does not register for references."""
    import sys

    monkeypatch.setitem(sys.modules, "routing_functions", sys.modules[HERE])


def test_without_functions_a_result_goes_to_next_and_ends_every_stream() -> None:
    made = route(spec(next=["b", "c"], stream_to=["c", "d"]), 5, {"c": 3})
    assert [(target, payload.data) for target, payload in made.payloads] == [("b", 5), ("c", 5)]
    assert made.streams == ["c", "d"]
    assert made.handed_to is None


@pytest.mark.parametrize(("chosen", "targets"), [("b", ["b"]), (["c", "b"], ["c", "b"]), (("b",), ["b"])])
def test_route_fn_chooses_out_of_next(chosen: Any, targets: list[str]) -> None:
    made = route(spec(next=["b", "c"], route_fn="routing_functions:answer"), {"answer": chosen})
    assert [target for target, _ in made.payloads] == targets
    assert made.handed_to == [targets, []]


@pytest.mark.parametrize("chosen", ["x", [], None, ["b", "b"], ["b", "x"], 5, {"b": 1}, [["b"]]], ids=repr)
def test_a_wrong_route_is_an_error_that_names_stage_answer_and_choice(chosen: Any) -> None:
    with pytest.raises(ConfigError, match=r"stages\[a\].route_fn returned .* stages out of \['b', 'c'\], each once"):
        route(spec(next=["b", "c"], route_fn="routing_functions:answer"), {"answer": chosen})


@pytest.mark.parametrize("chosen", [[], ["d"], "d"], ids=repr)
def test_stream_done_to_fn_chooses_out_of_stream_to(chosen: Any) -> None:
    fields: dict[str, Any] = {"next": ["b"], "stream_to": ["b", "d"], "stream_done_to_fn": "routing_functions:answer"}
    made = route(spec(**fields), {"answer": chosen})
    assert made.streams == (["d"] if chosen else [])
    assert made.handed_to == [["b"], made.streams]
    with pytest.raises(ConfigError, match=r"stages\[a\].stream_done_to_fn returned 'x'"):
        route(spec(**fields), {"answer": "x"})


def test_a_stream_that_would_never_end_is_an_error_that_names_both_stages() -> None:
    fields: dict[str, Any] = {"next": ["b"], "stream_to": ["b", "d"], "stream_done_to_fn": "routing_functions:answer"}
    with pytest.raises(ConfigError, match=r"stage 'a' streamed chunks to 'd', which .*stream_done_to_fn leaves out"):
        route(spec(**fields), {"answer": ["b"]}, {"d": 1})
    assert route(spec(**fields), {"answer": ["d"]}, {"d": 1}).streams == ["d"]


def test_chunks_go_to_their_target_or_to_all() -> None:
    routing = Routing(spec(next=["b"], stream_to=["c", "d"]), ())
    assert routing.of_chunk(ACTIVE, None) == ["c", "d"]
    assert routing.of_chunk(ACTIVE, "d") == ["d"]
    with pytest.raises(ConfigError, match=r"for 'b', which stages\[a\].stream_to does not name; it names \['c', 'd'\]"):
        routing.of_chunk(ACTIVE, "b")


def test_a_chunk_without_any_possible_target_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"stage 'a' streams chunks, but .*stages\[a\].stream_to names no stage"):
        Routing(spec(next=["b"]), ()).of_chunk(ACTIVE, None)


WRITES = {"voice": [["audio"], ["text"]], "both": [["audio", "text"], []]}
"""Of a stage that writes: a voice behind it, and a part that answers in whatever is asked for."""


@pytest.mark.parametrize(
    ("modalities", "needed"),
    [(["text"], ["both"]), (["audio"], ["voice", "both"]), (None, ["voice", "both"]), (["image"], ["voice", "both"])],
)
def test_parts_that_answer_in_nothing_that_is_wanted_get_nothing(
    modalities: list[str] | None, needed: list[str]
) -> None:
    composed = {"params": {}, "metadata": {}, "modalities": modalities}
    active = ActiveRequest("r", 0.0, OmniRequest(composed=composed))
    routing = Routing(spec(next=["voice", "both"], stream_to=["voice", "both"], terminal=True, answers=WRITES), ())
    assert routing.of_chunk(active, "voice") == needed[:-1]
    found = routing.of_result(active, active.payload("text"))
    assert [target for target, _ in found.payloads] == found.streams == needed
    assert found.handed_to == (None if len(needed) == 2 else [needed, needed])


def test_projections_make_the_payload_of_their_target() -> None:
    projections = {"b": "routing_functions:only_words", "c": "routing_functions:same"}
    made = route(spec(next=["b", "c", "d"], project_payload=projections), {"words": 1, "tone": 2})
    assert {target: payload.data for target, payload in made.payloads} == {
        "b": {"words": 1},
        "c": {"words": 1, "tone": 2},
        "d": {"words": 1, "tone": 2},
    }
    assert {(payload.request_id, id(payload.request)) for _, payload in made.payloads} == {
        ("r", id(made.payloads[0][1].request))
    }


@pytest.mark.parametrize("data", [{"a": [1]}, [[1]]], ids=["dict", "list"])
def test_local_targets_get_a_container_each_that_shares_its_values(data: Any) -> None:
    first, second = (payload.data for _, payload in route(spec(next=["b", "c"]), data, local=["b", "c"]).payloads)
    assert first == second
    assert first is not second
    assert next(iter(first.values() if isinstance(first, dict) else first)) is next(
        iter(second.values() if isinstance(second, dict) else second)
    )


def test_stages_of_other_processes_share_a_payload_that_no_local_stage_gets() -> None:
    targets = ["remote", "local", "far", "here"]
    made = route(spec(next=targets), {"a": [1]}, local=["local", "here"])
    remote, local, far, here = (payload for _, payload in made.payloads)
    assert remote is far
    assert len({id(each.data) for each in (remote, local, here)}) == 3
    assert remote.data == local.data == here.data
