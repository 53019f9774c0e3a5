"""A vocoder under more load than it can bear, in simulated time: nobody starves, and sound that is being heard is in time."""

from __future__ import annotations

import math

import torch
from attrs import define, field
from hearing import end, frame
from hypothesis import given
from hypothesis import strategies as st

from omni_core.protocol.messages import OmniRequest
from omni_torch.vocoder.scheduler import VocoderScheduler

FRAME_SECONDS, RATE = 0.08, 25
"""Of sound in a frame, which is two samples."""


@define
class Slow:
    """A vocoder whose passes take simulated time, and a listener of every request."""

    seconds_per_frame: float
    now: float = 0.0
    passes: list[list[int]] = field(factory=list)
    device, sample_rate, codebooks, codebook_size = torch.device("cpu"), RATE, 1, 64

    def begin(self) -> None:
        """Keep nothing of a stream."""

    def decode(self, work: list[tuple[None, torch.Tensor]]) -> list[torch.Tensor]:
        self.passes.append([len(frames) for _, frames in work])
        self.now += 0.002 + self.seconds_per_frame * sum(self.passes[-1])
        return [torch.zeros(2 * len(frames)) for _, frames in work]


@define
class Talk:
    """A vocoder's scheduler that gets whole requests at given moments."""

    vocoder: Slow
    scheduler: VocoderScheduler[None]
    heard: dict[str, list[tuple[float, float]]] = field(factory=dict)
    ended: list[str] = field(factory=list)

    @classmethod
    def of(
        cls,
        seconds_per_frame: float,
        policy: str | None = "omni_torch.vocoder.deadlines:Deadlines",
        growth: float | None = None,
    ) -> Talk:
        vocoder = Slow(seconds_per_frame)
        scheduler = VocoderScheduler(vocoder, initial_chunk=4, chunk=24, growth=growth, policy=policy)
        scheduler.clock = lambda: vocoder.now
        return cls(vocoder, scheduler)

    def give(self, name: str, frames: int, *, whole: bool = True) -> None:
        for _ in range(frames):
            self.scheduler.inbox.put(frame(name, torch.zeros(1, dtype=torch.int64)))
        for message in end(name) if whole else []:
            self.scheduler.inbox.put(message)

    def run(self, until: float = math.inf) -> None:
        """Make turns until a moment, or until only a message can bring more."""
        while self.vocoder.now < until and (
            len(self.scheduler.inbox) or self.scheduler.unfinished or self.scheduler.wait is not None
        ):
            waits = 0.0 if len(self.scheduler.inbox) else self.scheduler.wait
            assert waits is not None, "there is work, and the next turn would wait for a message"
            self.vocoder.now += waits
            self.scheduler.wait = 0.0
            self.scheduler.turn()
            for message in self.scheduler.outbox.drain():
                if message.type == "stream":
                    seconds = len(message.data.samples) / RATE
                    self.heard.setdefault(message.request_id, []).append((self.vocoder.now, seconds))
                else:
                    assert message.type == "result"
                    self.ended.append(message.request_id)
        if until < math.inf:
            self.vocoder.now = max(self.vocoder.now, until)

    def late(self) -> float:
        """Return the share of the sound that came when nothing was left to play."""
        late = total = 0.0
        for pieces in self.heard.values():
            played = pieces[0][0]
            for arrival, seconds in pieces:
                late += seconds * (arrival > played)
                played = max(played, arrival) + seconds
                total += seconds
        return late / total


def load(talk: Talk) -> Talk:
    """Give 60 requests of 3 s in 9 s to a vocoder that needs 13 s for them."""
    for number in range(60):
        talk.give(str(number), 38)
        talk.run(0.15 * (number + 1))
    talk.run()
    assert sorted(talk.ended, key=int) == [str(number) for number in range(60)]
    return talk


def test_sound_that_is_heard_is_in_time_where_the_order_of_arrival_makes_it_late() -> None:
    in_order, ours = load(Talk.of(0.0055, None)), load(Talk.of(0.0055))
    assert in_order.late() > 0.1
    assert ours.late() < in_order.late() / 5
    assert ours.vocoder.now < in_order.vocoder.now / 0.95


def test_the_one_that_runs_dry_first_is_first() -> None:
    talk = Talk.of(0.005)
    for name, frames in (("early", 28), ("late", 4)):
        talk.give(name, frames, whole=False)
        talk.run()
    talk.heard.clear()
    for name in ("early", "late"):
        talk.give(name, 24, whole=False)
    talk.run()
    assert list(talk.heard) == ["late", "early"], "early has two seconds in hand"


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.01, 0.2]), st.integers(1, 60)), min_size=1, max_size=6))
def test_passes_are_those_of_the_order_of_arrival_while_nobody_runs_dry(requests: list[tuple[float, int]]) -> None:
    passes = []
    for policy in (None, "omni_torch.vocoder.deadlines:Deadlines"):
        talk = Talk.of(0.0005, policy)
        for number, (gap, frames) in enumerate(requests):
            talk.give(str(number), frames)
            talk.run(talk.vocoder.now + gap)
        talk.run()
        assert talk.late() == 0.0
        passes.append([sorted(each) for each in talk.vocoder.passes])
    assert passes[0] == passes[1]


def test_a_stream_whose_frames_do_not_come_holds_up_nobody() -> None:
    talk = Talk.of(0.01)
    talk.give("stuck", 4, whole=False)
    talk.run(0.05)
    for number in range(5):
        talk.give(str(number), 60)
    talk.run()
    assert sorted(talk.ended) == ["0", "1", "2", "3", "4"]


REQUEST = st.tuples(st.integers(0, 70), st.floats(0.0, 0.5), st.booleans())


@given(st.lists(REQUEST, max_size=12), st.sampled_from([0.0, 0.003, 0.02, 0.1]), st.sampled_from([None, 0.5, 1.0]))
def test_every_request_that_has_come_whole_ends(
    requests: list[tuple[int, float, bool]], cost: float, growth: float | None
) -> None:
    """Whatever the load, and although others stop in the middle; each with all of its sound, the frames in order."""
    talk = Talk.of(cost, growth=growth)
    for number, (frames, gap, whole) in enumerate(requests):
        talk.give(str(number), frames, whole=whole)
        talk.run(talk.vocoder.now + gap)
    talk.run()
    assert sorted(talk.ended, key=int) == [str(number) for number, each in enumerate(requests) if each[2]]
    for number, (frames, _, whole) in enumerate(requests):
        if whole:
            sound = sum(seconds for _, seconds in talk.heard.get(str(number), []))
            assert abs(sound - frames * FRAME_SECONDS) < 1e-6


def gusts(talk: Talk) -> Talk:
    """Give 24 streams at once, again and again. The second pass of each takes longer than the sound of the first one plays."""
    for gust in range(8):
        names = [f"{gust}.{number}" for number in range(24)]
        for name in names:
            talk.give(name, 4, whole=False)
        talk.run(talk.vocoder.now + 0.001)
        for name in names:
            talk.give(name, 16)
        talk.run()
    assert len(talk.ended) == 8 * 24
    return talk


def test_the_first_sound_is_kept_instead_of_smaller_passes() -> None:
    in_order, ours = gusts(Talk.of(0.0015, None)), gusts(Talk.of(0.0015))
    assert in_order.late() > 0.5
    assert ours.late() < in_order.late() / 5, "only what came before anything was known"
    assert [sorted(each) for each in ours.vocoder.passes[2:]] == [sorted(each) for each in in_order.vocoder.passes[2:]]


@define
class Never:
    """A policy that lets no first sound go out, and holds nothing back."""

    def begin(self, request_id: str, request: OmniRequest, now: float) -> None: ...
    def emitted(self, request_id: str, seconds: float, now: float) -> None: ...
    def end(self, request_id: str) -> None: ...
    def due(self, request_id: str, now: float) -> float:
        return now

    def may_wait(self, request_id: str, now: float) -> bool:
        return False

    def starts(self, request_id: str, made: float, needed: float, now: float) -> float:
        return math.inf


def test_a_policy_of_somebody_else_keeps_sound_until_the_request_has_come_whole() -> None:
    talk = Talk.of(0.001, f"{__name__}:Never")
    talk.give("a", 30, whole=False)
    talk.run()
    assert not talk.heard
    talk.give("a", 1)
    talk.run()
    assert [round(seconds / FRAME_SECONDS) for _, seconds in talk.heard["a"]] == [4, 24, 3]
    assert talk.ended == ["a"]


def test_sound_of_a_request_that_stops_goes_out_after_the_patience_at_the_latest() -> None:
    talk = gusts(Talk.of(0.0015))
    begun = talk.vocoder.now
    for number in range(24):
        talk.give(f"stuck {number}", 4, whole=False)
    talk.run()
    assert all(f"stuck {number}" in talk.heard for number in range(24))
    assert talk.vocoder.now <= begun + 31.0


def test_an_aborted_request_sends_nothing_of_what_was_kept() -> None:
    talk = Talk.of(0.001, f"{__name__}:Never")
    talk.give("a", 30, whole=False)
    talk.run()
    talk.scheduler.abort("a")
    talk.run()
    assert not talk.heard
    talk.give("a", 4)
    talk.run()
    assert len(talk.heard["a"]) == 1
