"""Sound that is written down while it comes: equal to the whole, beside others, and bounded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_transformers import checkpoint, recognisers
from tiny_transformers.driving import replies, running
from tiny_transformers.live import KYUTAI, VOXTRAL
from tiny_transformers.tiny_whisper import hear, tone
from tiny_transformers.written import LANGUAGE, reference

from omni_core.api import (
    AudioChunk,
    IncomingMessage,
    InvalidRequestError,
    OmniRequest,
    OutgoingMessage,
    StagePayload,
    Transcript,
)
from omni_testing import StreamedInputConformance
from omni_testing.outputs import check_transcript
from omni_transformers.recognise.live import Live
from omni_transformers.recognise.live_networks import NETWORKS, create_live

assert recognisers
NEMOTRON = "NemotronAsrStreamingForRNNT"
ALL = [
    pytest.param(each, id=each, marks=[] if each in (NEMOTRON, VOXTRAL) else [pytest.mark.full]) for each in NETWORKS
]


@pytest.fixture(scope="module", params=ALL)
def name(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(scope="module")
def scheduler(name: str) -> Iterator[Live]:
    made = create_live(str(checkpoint(name)))
    assert isinstance(made, Live)
    with running(made):
        yield made


def params(name: str, **given: Any) -> dict[str, Any]:
    language = {"language": LANGUAGE[name]} if name in LANGUAGE else {}
    return {"listen": {**language, **given}}


def opened(name: str = "r", **given: Any) -> IncomingMessage:
    """Return the message that begins a live stream of a network that is told nothing else."""
    return IncomingMessage(name, "new_request", StagePayload(name, OmniRequest({"messages": []}, {"listen": given})))


def sent(name: str, samples: np.ndarray, rate: int = 16_000) -> IncomingMessage:
    return IncomingMessage(name, "stream_chunk", AudioChunk(samples, rate))


def ended(scheduler: Live, *names: str) -> dict[str, tuple[list[Any], Any]]:
    """Read until requests have ended; return what each streamed, and its result or error."""
    streamed: dict[str, list[Any]] = {name: [] for name in names}
    ends: dict[str, Any] = {}
    while len(ends) < len(names):
        message: OutgoingMessage | None = scheduler.outbox.get(60)
        assert message is not None, f"{set(names) - set(ends)} have not ended"
        if message.type == "stream":
            streamed[message.request_id].append(message.data)
        else:
            ends[message.request_id] = message.data
    return {name: (streamed[name], ends[name]) for name in names}


def live(scheduler: Live, chunks: list[np.ndarray], rate: int, given: dict[str, Any]) -> Transcript:
    """Return the transcript of a live stream."""
    request = OmniRequest({"messages": []}, given)
    scheduler.inbox.put(IncomingMessage("r", "new_request", StagePayload("r", request)))
    for each in chunks:
        scheduler.inbox.put(sent("r", each, rate))
    scheduler.inbox.put(IncomingMessage("r", "stream_done"))
    [(streamed, result)] = ended(scheduler, "r").values()
    if isinstance(result, BaseException):
        raise result
    check_transcript(streamed, result, given["listen"].get("timestamps", "none"))
    assert isinstance(result, Transcript)
    return result


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cuts=st.lists(st.integers(0, 40_000), max_size=12),
    count=st.integers(1, 40_000),
    rate=st.sampled_from([8_000, 16_000, 48_000]),
)
def test_every_cut_is_written_as_by_transformers(
    scheduler: Live, name: str, cuts: list[int], count: int, rate: int
) -> None:
    samples = tone(2.5, 1)[:count]
    pieces = np.split(samples, sorted(min(each, count) for each in cuts))
    timed = {} if name in (KYUTAI, VOXTRAL) else {"timestamps": "word"}
    made = live(scheduler, pieces, rate, params(name, **timed))
    part = {"type": "audio", "samples": samples, "sample_rate": rate}
    whole = OmniRequest({"messages": [{"role": "user", "content": [part]}]}, params(name, **timed))
    assert replies(scheduler, [whole])[0][1] == made
    if rate == 16_000:
        assert made.text == reference(name, samples)[1].strip()


def test_streams_at_once_are_written_as_alone(scheduler: Live, name: str) -> None:
    sounds = [tone(length, number) for number, length in enumerate((1.0, 2.6, 1.7, 2.6))]
    before = scheduler.statistics()
    alone = [live(scheduler, [each], 16_000, params(name)) for each in sounds]
    between = scheduler.statistics()
    names = [str(number) for number in range(len(sounds))]
    for each in names:
        request = OmniRequest({"messages": []}, params(name))
        scheduler.inbox.put(IncomingMessage(each, "new_request", StagePayload(each, request)))
    for start in range(0, 48_000, 4_000):
        for each, samples in zip(names, sounds, strict=True):
            scheduler.inbox.put(sent(each, samples[start : start + 4_000]))
    for each in names:
        scheduler.inbox.put(IncomingMessage(each, "stream_done"))
    assert [result for _, result in ended(scheduler, *names).values()] == alone
    assert len({each.text for each in alone}) > 1
    after = scheduler.statistics()
    pieces, batches = (
        [later[key] - earlier[key] for earlier, later in ((before, between), (between, after))]
        for key in ("pieces", "batches")
    )
    assert pieces[0] == pieces[1], "something is computed twice"
    assert batches[1] < batches[0] == pieces[0], "nothing is computed together"


def test_words_come_while_the_sound_comes(scheduler: Live, name: str) -> None:
    samples = np.concatenate([tone(2.5, 1), tone(2.5, 2)])
    whole = live(scheduler, [samples], 16_000, params(name))
    request = OmniRequest({"messages": []}, params(name))
    scheduler.inbox.put(IncomingMessage("r", "new_request", StagePayload("r", request)))
    scheduler.inbox.put(sent("r", samples[:60_000]))
    first = scheduler.outbox.get(60)
    assert first is not None
    assert first.data.text
    scheduler.inbox.put(sent("r", samples[60_000:]))
    scheduler.inbox.put(IncomingMessage("r", "stream_done"))
    [(streamed, result)] = ended(scheduler, "r").values()
    assert first.data.text + "".join(each.text for each in streamed) == result.text == whole.text


def made(most: int = 2) -> Live:
    """Return a scheduler that is not started."""
    scheduler = create_live(str(checkpoint(NEMOTRON)), max_running=most)
    assert isinstance(scheduler, Live)
    return scheduler


def test_a_stream_without_sound_computes_nothing_and_waits() -> None:
    scheduler = made()
    scheduler.inbox.put(opened())
    scheduler.inbox.put(sent("r", tone(2.5)))
    assert scheduler.turn()
    while scheduler.unfinished:
        assert scheduler.wait == 0
        assert scheduler.turn()
    assert scheduler.wait is None, "its next turn waits for a message"
    pieces = scheduler.statistics()["pieces"]
    assert pieces == 2
    scheduler.inbox.put(sent("r", np.zeros(1, np.float32)))
    assert scheduler.turn()
    assert scheduler.statistics()["pieces"] == pieces


def test_a_sender_waits_while_a_piece_of_its_sound_is_left() -> None:
    scheduler, held = made(), list[tuple[str, bool]]()
    scheduler.hold_input = lambda name, is_held: held.append((name, is_held))
    scheduler.inbox.put(opened("slow"))
    scheduler.inbox.put(sent("slow", tone(6.0)))
    scheduler.inbox.put(opened("other"))
    scheduler.inbox.put(sent("other", tone(1.0)))
    assert scheduler.turn()
    assert held == [("slow", True)]
    while scheduler.unfinished:
        assert scheduler.turn()
    assert held == [("slow", True), ("slow", False)]


def test_further_requests_wait_for_a_place() -> None:
    scheduler = made()
    for each in ("a", "b", "c"):
        scheduler.inbox.put(opened(each))
        scheduler.inbox.put(sent(each, tone(2.5)))
        scheduler.inbox.put(IncomingMessage(each, "stream_done"))
    assert scheduler.turn()
    assert (scheduler.statistics()["running"], scheduler.statistics()["waiting"]) == (2, 1)
    scheduler.abort("a")
    ended = []
    while len(ended) < 2:  # without a further message
        assert scheduler.turn()
        ended += [each.request_id for each in scheduler.outbox.drain() if each.type == "result"]
    assert ended == ["b", "c"]


def test_a_paused_request_is_heard_no_further() -> None:
    scheduler = made()
    scheduler.inbox.put(opened())
    scheduler.pause("r", True)
    scheduler.inbox.put(sent("r", tone(6.0)))
    assert scheduler.turn()
    assert (scheduler.wait, scheduler.statistics()["pieces"]) == (None, 0)
    scheduler.pause("r", False)
    assert scheduler.turn()
    assert (scheduler.wait, scheduler.statistics()["pieces"]) == (0, 1)


def test_what_is_no_sound_fails_its_request() -> None:
    part = hear(tone(1.0)).inputs
    cases: list[tuple[list[IncomingMessage], str]] = [
        ([opened("rates"), sent("rates", tone(1.0), 8_000), sent("rates", tone(1.0))], "16000 Hz after 8000 Hz"),
        ([opened("empty"), IncomingMessage("empty", "stream_done")], "no sound in it"),
        (
            [
                IncomingMessage("whole", "new_request", StagePayload("whole", OmniRequest(part, {"listen": {}}))),
                sent("whole", tone(1.0)),
            ],
            "takes no further sound",
        ),
    ]
    with running(made()) as scheduler:
        assert isinstance(scheduler, Live)
        for messages, problem in cases:
            for each in messages:
                scheduler.inbox.put(each)
            [(_, error)] = ended(scheduler, messages[0].request_id).values()
            assert isinstance(error, InvalidRequestError)
            assert problem in str(error)


class TestItIsASchedulerOfStreams(StreamedInputConformance):
    """The suite of schedulers whose input may come as a stream."""

    def make(self) -> Live:
        return made(32)

    def pieces(self, number: int) -> list[Any]:
        return [AudioChunk(each, 16_000) for each in np.split(tone(2.4, number), 12)]

    def join(self, pieces: list[Any]) -> Any:
        return AudioChunk(np.concatenate([each.samples for each in pieces]), 16_000)

    def bad(self) -> Any:
        return AudioChunk(np.full(3, np.nan, np.float32), 16_000)

    def request(self) -> OmniRequest:
        return OmniRequest({"messages": []}, {"listen": {}}, stream=True)
