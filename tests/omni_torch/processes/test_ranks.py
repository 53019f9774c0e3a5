"""The ranks' inboxes: messages in, published messages out, and the same items on every rank."""

from __future__ import annotations

import random
import stat
from pathlib import Path
from typing import Any

import pytest

from omni_core.errors import CodecError
from omni_core.machines.placing import with_rendezvous
from omni_core.processes.run_directory import run_directory
from omni_core.protocol.messages import OmniRequest, StagePayload
from omni_core.protocol.specs import ProcessSpec, StageSpec
from omni_core.scheduling.base import IncomingMessage, MessageQueue, OutgoingMessage
from omni_core.scheduling.streaming import StreamingScheduler
from omni_torch.processes.ranks import (
    DISAGREEMENT_SECONDS,
    ErrorOutbox,
    Follower,
    FollowerInbox,
    ItemMessage,
    LeaderInbox,
    RankAgreement,
    WorkMessage,
)


def item(name: str, data: Any = None) -> IncomingMessage:
    return IncomingMessage(name, "new_request", StagePayload(name, OmniRequest(), data))


def names(items: list[IncomingMessage]) -> list[str]:
    return [each.request_id for each in items]


class Rank:
    """A scheduler's part in this: it drops the items of aborted requests."""

    def __init__(self, inbox: Any) -> None:
        self.inbox = inbox
        self.aborted: list[str] = []

    def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)
        self.inbox().remove(lambda message: message.request_id == request_id)


class Pair:
    """Rank 0, one follower, and what was published."""

    def __init__(self) -> None:
        self.published: list[Any] = []
        self.leader_rank, self.follower_rank = Rank(lambda: self.leader), Rank(lambda: self.follower)
        self.leader = LeaderInbox("s", self.published.append, self.leader_rank.abort)
        self.follower = FollowerInbox(self.follower_rank.abort)

    def deliver(self) -> None:
        messages, self.published[:] = list(self.published), []
        for message in messages:
            self.follower.feed(message)


def test_a_follower_gets_what_the_leader_took() -> None:
    pair = Pair()
    for name in "abc":
        pair.leader.put(item(name, {"n": name}))
    assert names(pair.leader.drain(2)) == ["a", "b"]
    assert names(pair.leader.drain()) == ["c"]
    assert names(pair.leader.drain()) == []
    pair.deliver()
    first = pair.follower.drain()
    assert names(first) == ["a", "b"]
    assert first[0].data.data == {"n": "a"}
    assert names(pair.follower.drain()) == ["c"]
    assert pair.follower.drain() == []


def test_an_item_is_encoded_and_published_once_and_not_by_the_look() -> None:
    pair = Pair()
    pair.leader.put(item("a"))
    assert [type(each) for each in pair.published] == [ItemMessage]
    pair.leader.drain()
    assert pair.published[1:] == [WorkMessage("s", [1], moment=pair.leader.moment)]


def test_an_item_that_cannot_be_sent_fails_alone() -> None:
    pair = Pair()
    pair.leader.put(item("a"))
    with pytest.raises(CodecError):
        pair.leader.put(item("bad", object()))
    pair.leader.put(item("b"))
    assert names(pair.leader.drain()) == ["a", "b"]
    pair.deliver()
    assert names(pair.follower.drain()) == ["a", "b"]


def test_an_item_that_could_not_be_published_is_not_queued() -> None:
    pair = Pair()

    def broken(message: Any) -> None:
        raise OSError("no way")

    publish, pair.leader._publish = pair.leader._publish, broken
    with pytest.raises(OSError, match="no way"):
        pair.leader.put(item("a"))
    pair.leader._publish = publish
    assert pair.leader.drain() == []
    assert pair.published == [WorkMessage("s", [], [1], moment=pair.leader.moment)]


def test_aborts_have_a_place_in_the_order() -> None:
    pair = Pair()
    for name in "aba":
        pair.leader.put(item(name))
    pair.leader.request_abort("a")
    assert names(pair.leader.drain()) == ["b"]
    assert pair.published[-1] == WorkMessage("s", [2], [1, 3], ["a"], moment=pair.leader.moment)
    pair.deliver()
    assert names(pair.follower.drain()) == ["b"]
    assert pair.leader_rank.aborted == pair.follower_rank.aborted == ["a"]
    assert not pair.follower._arrived


def test_a_read_of_the_inbox_waits_for_its_items() -> None:
    pair = Pair()
    pair.leader.put(item("a"))
    pair.leader.drain()
    first, look = pair.published
    pair.follower.feed(look)
    assert not pair.follower._has_look()
    pair.follower.feed(first)
    assert names(pair.follower.drain()) == ["a"]


def test_one_message_may_be_queued_twice() -> None:
    pair = Pair()
    wake = IncomingMessage("", "stream_done")
    pair.leader.put(wake)
    pair.leader.put(wake)
    assert len(pair.leader.drain()) == 2
    pair.deliver()
    assert len(pair.follower.drain()) == 2


def test_a_held_inbox_gives_nothing_on_any_rank() -> None:
    pair = Pair()
    pair.leader.put(item("a"))
    pair.leader.hold(True)
    assert pair.leader.drain() == []
    pair.leader.hold(False)
    assert names(pair.leader.drain()) == ["a"]
    pair.deliver()
    assert pair.follower.drain() == []
    assert names(pair.follower.drain()) == ["a"]


def test_any_order_of_puts_reads_and_aborts_gives_the_same_on_both_ranks() -> None:
    for seed in range(50):
        chance, pair = random.Random(seed), Pair()
        looks: list[list[str]] = []
        for n in range(100):
            match chance.randrange(4):
                case 0 | 1:
                    pair.leader.put(item(f"r{n % 17}"))
                case 2:
                    pair.leader.request_abort(f"r{chance.randrange(17)}")
                case 3:
                    looks.append(names(pair.leader.drain(chance.choice([None, 1, 3]))))
        # Items and looks travel by different threads.
        items = [each for each in pair.published if isinstance(each, ItemMessage)]
        for each in [*(each for each in pair.published if isinstance(each, WorkMessage)), *items]:
            pair.follower.feed(each)
        assert [names(pair.follower.drain()) for _ in looks] == looks
        assert pair.leader_rank.aborted == pair.follower_rank.aborted
        assert len(pair.follower._arrived) == len(pair.leader)


def test_a_wait_that_times_out_ends_on_every_rank() -> None:
    """A scheduler whose wait for more of a batch times out continues without on all ranks."""
    pair = Pair()
    pair.leader.put(item("a"))
    assert pair.leader.get() is not None
    assert pair.leader.get(timeout=0.001) is None
    pair.leader.put(item("b"))
    assert pair.leader.get() is not None
    pair.deliver()
    assert [each and each.request_id for each in (pair.follower.get(), pair.follower.get(0.001))] == ["a", None]
    last = pair.follower.get()
    assert last is not None
    assert last.request_id == "b"


def test_every_rank_has_the_moments_of_rank_0() -> None:
    pair, moments = Pair(), list[float]()
    for name in "abc":
        pair.leader.put(item(name))
        pair.leader.drain()
        moments.append(pair.leader.moment)
    assert pair.leader.get(timeout=0.001) is None
    moments.append(pair.leader.moment)
    assert moments == sorted(set(moments))
    pair.deliver()
    for moment in moments[:3]:
        assert len(pair.follower.drain()) == 1
        assert pair.follower.moment == moment
    assert pair.follower.get(0.001) is None
    assert pair.follower.moment == moments[3]


def test_a_closed_follower_waits_for_nothing() -> None:
    inbox = FollowerInbox(lambda request_id: None)
    inbox.close()
    assert inbox.get() is None


async def test_a_follower_that_cannot_read_an_item_ends_its_stage() -> None:
    class Idle(StreamingScheduler[None]):
        def new_state(self, request_id: str, request: OmniRequest | None) -> None: ...

        def on_chunk(self, state: None, chunk: Any, metadata: dict[str, Any] | None) -> None: ...

        def finish(self, request_id: str, state: None) -> None: ...

    deaths: list[str] = []
    follower = Follower(StageSpec(name="s"), Idle(), 1, lambda error: None, lambda: deaths.append("s"))
    follower.take(ItemMessage("s", 1, b"\xc1"))
    assert deaths == ["s"]


@pytest.mark.parametrize("is_told", [False, True])
async def test_a_follower_whose_scheduler_returns_by_itself_ends_its_stage(is_told: bool) -> None:
    class Returns:
        def __init__(self) -> None:
            self.inbox: Any = None
            self.outbox: Any = None

        def start(self) -> None:
            if is_told:
                self.inbox.get()

        def stop(self) -> None:
            self.inbox.close()

        def abort(self, request_id: str) -> None: ...

    deaths: list[str] = []
    follower = Follower(StageSpec(name="s"), Returns(), 1, lambda error: None, lambda: deaths.append("s"))
    follower.start()
    if is_told:
        follower.stop()
    follower.join(10.0)
    assert deaths == ([] if is_told else ["s"])


def test_errors_are_reported() -> None:
    told: list[tuple[str, str]] = []
    outbox: MessageQueue[OutgoingMessage] = ErrorOutbox(lambda *error: told.append(error))
    outbox.put(OutgoingMessage("a", "result", 1))
    outbox.put(OutgoingMessage("b", "error", ValueError("bad")))
    assert told == [("b", "ValueError")]
    assert names(outbox.drain()) == ["a", "b"]  # type: ignore[arg-type]


# --- ranks that fail alone -------------------------------------------------------------------------------------------
def test_ranks_that_fail_together_agree() -> None:
    agreement = RankAgreement(3)
    assert agreement.failed(1, "r", "ValueError", 0.0) == DISAGREEMENT_SECONDS
    assert agreement.failed(0, "r", "ValueError", 1.0) == DISAGREEMENT_SECONDS
    assert agreement.failed(2, "r", "ValueError", 2.0) is None
    assert agreement.check(100.0) is None


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_fails_alone_ends_the_stage(rank: int) -> None:
    agreement = RankAgreement(2)
    due = agreement.failed(rank, "r", "OutOfMemoryError", 1.0)
    assert due == 1.0 + DISAGREEMENT_SECONDS
    assert agreement.check(due - 0.1) is None
    reason = agreement.check(due)
    assert reason is not None
    assert f"'r' has failed on rank {rank} (OutOfMemoryError)" in reason


# --- rendezvous ------------------------------------------------------------------------------------------------------
def test_ranks_meet_in_the_private_folder_of_the_run(run_folder: Path) -> None:
    folder = run_directory(str(run_folder))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    ranks = [
        ProcessSpec(
            name=f"s_tp{rank}",
            stages=[StageSpec(name="s", factory="m:f")],
            endpoint=f"ipc://{folder}/{3 + rank}.sock",
            coordinator_endpoint="ipc://c",
            stage_endpoints={},
            rank=rank,
        )
        for rank in range(2)
    ]
    seen = set()
    for launch in range(3):
        addresses = {each.stages[0].injected["tp_rendezvous"] for each in with_rendezvous(ranks, launch)}
        (address,) = addresses
        assert address == f"file://{folder}/3.ranks{launch}"
        seen.add(address)
    assert len(seen) == 3
    assert with_rendezvous(ranks[:1], 0) == ranks[:1]
    folder.rmdir()
