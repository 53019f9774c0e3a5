"""The requests of a stage: their beginning and end, late messages, and what they wait for."""

from __future__ import annotations

from omni_core.protocol.messages import OmniRequest, StagePayload
from omni_core.stage.active_requests import DONE, PAYLOAD, ActiveRequest, Requests
from omni_core.stage.fan_in import FanIn


def test_the_first_message_begins_a_request_and_later_ones_find_it() -> None:
    now = [5.0]
    requests = Requests(clock=lambda: now[0])
    active = requests.enter("r")
    assert active is not None
    now[0] = 9.0
    assert requests.enter("r") is active
    assert requests.get("r") is active
    assert active.since == 5.0
    assert (len(requests), list(requests)) == (1, ["r"])


def test_messages_after_the_end_are_late() -> None:
    requests = Requests()
    active = requests.enter("r")
    assert requests.end("r") is active
    assert requests.end("r") is None
    assert requests.enter("r") is None
    assert requests.get("r") is None
    requests.end("never seen")
    assert requests.enter("never seen") is None


def test_ends_are_remembered_up_to_a_bound() -> None:
    requests = Requests(remembered_ends=2)
    for name in ("a", "b", "c"):
        requests.end(name)
    assert requests.enter("b") is None
    assert requests.enter("c") is None
    assert requests.enter("a") is not None


def test_arrivals_are_known_after_the_end() -> None:
    requests = Requests()
    active = requests.enter("r")
    assert active is not None
    active.note("a", PAYLOAD, None)
    active.note("a", DONE, [["b"], []])
    active.note("c", DONE, None)
    expected = {"a": (PAYLOAD | DONE, [["b"], []]), "c": (DONE, None)}
    assert requests.arrivals("r") == expected
    requests.end("r")
    assert requests.arrivals("r") == expected
    assert requests.arrivals("unknown") == {}


def test_chunks_are_numbered_by_target() -> None:
    active = ActiveRequest("r", 0.0)
    assert [active.count_chunk(target) for target in ("b", "b", "c", "b")] == [0, 1, 0, 2]


def test_payloads_carry_the_request_without_inputs() -> None:
    request = OmniRequest(params={"seed": 1})
    active = ActiveRequest("r", 0.0, request)
    assert active.payload(5) == StagePayload("r", request, 5)
    assert active.payload(StagePayload("other", OmniRequest(inputs="heavy"), 5)) == StagePayload("r", request, 5)
    assert ActiveRequest("r", 0.0).payload(5) == StagePayload("r", OmniRequest(), 5)


def test_missing_inputs_of_a_request_are_reported() -> None:
    active = ActiveRequest("r", 0.0)
    assert active.waits_for([]) == ["has it queued or computes"]
    assert active.waits_for(["talker"]) == [
        "waits for the end of the stream from 'talker'",
        "has it queued or computes",
    ]
    active.note("talker", DONE, None)
    assert active.waits_for(["talker"]) == ["has it queued or computes"]
    active.fan_in = FanIn("join", ["words", "tone", "image"], None, lambda payloads: next(iter(payloads.values())))
    active.fan_in.add("words", active.payload(1))
    assert active.waits_for([]) == ["waits for 'tone'", "waits for 'image'"]
    active.fan_in, active.sending_to = None, "speak"
    assert active.waits_for([]) == ["sending to 'speak'"]


def test_only_the_active_sources_of_a_fan_in_are_waited_for() -> None:
    active = ActiveRequest("r", 0.0)
    active.fan_in = FanIn("join", ["words", "tone", "image"], lambda *_: ["words", "tone"], lambda _: active.payload(1))
    active.fan_in.add("words", active.payload(1))
    assert active.waits_for([]) == ["waits for 'tone'"]
