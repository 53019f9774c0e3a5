"""A request that misbehaves, in any place and any way, fails alone: soon, with its stage, its error and a message."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen
from fault_harness import SOON, Watched, branching, right_branching, right_streaming, streaming, watched
from pipelines import make_pipeline

from omni_core.client import AsyncPipe, open_async
from omni_core.config.schema import StageConfig
from omni_core.errors import InvalidRequestError, RequestFailedError
from omni_core.protocol.messages import OmniRequest

RAISES = [
    ("exception", "ValueError", "a bad request"),
    ("exit", "SystemExit", "3"),
    ("interrupt", "KeyboardInterrupt", ""),
    ("memory", "MemoryError", "too much"),
    ("recursion", "RecursionError", "recursion"),
    ("mute", "Mute", "no message"),
    ("long", "ValueError", "x{1000}.*cut"),
    ("exits in str", "ExitsInStr", "__str__ raised SystemExit"),
    ("interrupts in repr", "InterruptsInRepr", "raised KeyboardInterrupt"),
    ("nameless", "Nameless", "still a message"),
    ("broken syntax error", "SyntaxError", "broken|no message"),
    ("surrogates", "ValueError", r"\? cannot be encoded"),
    ("invalid", "InvalidRequestError", "does not like it"),
]
UNSENDABLE = [
    ("object", "CodecError", r"\['deep'\]\[1\]\['here'\].*builtins.object cannot be sent"),
    ("namedtuple", "CodecError", r"\['pair'\].*Pair cannot be sent"),
    ("dataclass", "CodecError", r"\['held'\].*Holder cannot be sent"),
    ("itself", "CodecError", "contains itself"),
]

BRANCHING = [
    *((place, place, *kind) for place in ("start", "work", "left") for kind in RAISES),
    *(("work", "route_fn", *kind) for kind in RAISES),
    *(("work", "project_payload", *kind) for kind in RAISES),
    *(("join", "wait_for_fn", *kind) for kind in RAISES),
    *(("join", "merge_fn", *kind) for kind in RAISES),
    *(("join", "join", *kind) for kind in RAISES),
    *(
        ("work", "route_fn", kind, "ConfigError", "route_fn returned")
        for kind in ("unknown", "empty", "none", "number", "twice")
    ),
    *(("join", "wait_for_fn", kind, "ConfigError", "wait_for_fn returned") for kind in ("unknown", "empty", "number")),
    ("join", "wait_for_fn", "none", "ConfigError", "wait_for_fn returned None for every"),
    *(("start", "start", *kind) for kind in UNSENDABLE),
    *(("left", "left", *kind) for kind in UNSENDABLE),
    *(("join", "join", *kind) for kind in UNSENDABLE),
    ("join", "left", "unknown class", "CodecError", "only_the_sender_knows.Secret.*not registered"),
    ("work", "start", "trap", "CodecError", "SystemExit: a trap"),
    ("join", "left", "trap", "CodecError", "SystemExit: a trap"),
    ("join", "join", "trap", "CodecError", "SystemExit: a trap"),
]
MUST_LEAVE_THE_PROCESS = {"unknown class", "trap", *(kind for kind, *_ in UNSENDABLE)}
"""These are harmless between stages of one process, where nothing is encoded."""

STREAMING = [
    *(("produce", "stream_done_to_fn", *kind) for kind in RAISES),
    *(
        ("produce", "stream_done_to_fn", kind, "ConfigError", "stream_done_to_fn returned")
        for kind in ("unknown", "none", "number")
    ),
    ("produce", "produce", "bad target", "ConfigError", "stream_to does not name"),
    *(("produce", "produce", *kind) for kind in UNSENDABLE),
    ("consume", "produce", "unknown class", "CodecError", "not registered"),
    ("consume", "produce", "trap", "CodecError", "SystemExit: a trap"),
    *(("consume", "consume", *kind) for kind in RAISES),
]


@frozen
class Case:
    """A request that must fail: the stage that reports it, and the error."""

    stage: str
    place: str
    kind: str
    error_type: str
    message: str

    async def fails(self, client: AsyncPipe, number: int) -> None:
        request = OmniRequest({"n": number, "poison": {"at": self.place, "kind": self.kind}})
        with pytest.raises(RequestFailedError, match=f"(?s){self.message}") as caught:
            await asyncio.wait_for(client.submit(request), SOON)
        assert (caught.value.stage, caught.value.error_type) == (self.stage, self.error_type), self


@pytest.mark.parametrize(
    "together", [False, pytest.param(True, marks=pytest.mark.full)], ids=["own processes", "one process"]
)
@pytest.mark.parametrize(
    ("make", "right", "rows"),
    [(branching, right_branching, BRANCHING), (streaming, right_streaming, STREAMING)],
    ids=["branching", "streaming"],
)
async def test_a_misbehaving_request_fails_alone(
    folder: Path, make: Any, right: Any, rows: Any, together: bool
) -> None:
    cases = [Case(*row) for row in rows]
    if together:
        cases = [case for case in cases if case.place in ("join", "consume") or case.kind not in MUST_LEAVE_THE_PROCESS]
    async with watched(make(folder, together), right) as (pipeline, load):
        for case in cases:
            await case.fails(pipeline.client, 0)
        await pipeline.remember()
        async with load.running():
            for case in cases:
                await case.fails(pipeline.client, 1)
        assert not load.failed
        await pipeline.as_before()


async def test_an_invalid_request_has_its_own_error_class(folder: Path) -> None:
    async with open_async(branching(folder)) as client:
        poison = {"at": "left", "kind": "invalid"}
        with pytest.raises(InvalidRequestError, match="does not like it") as caught:
            await client.submit(OmniRequest({"n": 1, "poison": poison}), "mine")
        assert (caught.value.stage, caught.value.request_id) == ("left", "mine")


@pytest.mark.parametrize("together", [False, True], ids=["own processes", "one process"])
async def test_a_request_that_kills_its_process_fails_alone(folder: Path, together: bool) -> None:
    """31 good requests and a killer, with one retry each: only the killer fails, and its resubmission runs alone."""
    config = branching(folder, together, retries=1)
    killer = {"n": 100, "poison": {"at": "work", "kind": "die"}}
    async with open_async(config) as client:
        assert right_branching(0, await client.submit(OmniRequest({"n": 0})))
        sleep = {"start": 0.02}
        good = [asyncio.create_task(client.submit(OmniRequest({"n": n, "sleep": sleep}))) for n in range(1, 17)]
        bad = asyncio.create_task(client.submit(OmniRequest(killer)))
        good += [asyncio.create_task(client.submit(OmniRequest({"n": n, "sleep": sleep}))) for n in range(17, 32)]
        with pytest.raises(RequestFailedError, match="ProcessDied") as caught:
            await bad
        assert caught.value.stage is not None
        assert all(right_branching(n, answer) for n, answer in enumerate(await asyncio.gather(*good), 1))
        retried = (await client.statistics())["coordinator"]["requests"]["retried"]

        bad = asyncio.create_task(client.submit(OmniRequest(killer)))
        await asyncio.sleep(0)
        good = [asyncio.create_task(client.submit(OmniRequest({"n": n}))) for n in range(8)]
        with pytest.raises(RequestFailedError, match="ProcessDied"):
            await bad
        assert all(right_branching(n, answer) for n, answer in enumerate(await asyncio.gather(*good)))
        assert (await client.statistics())["coordinator"]["requests"]["retried"] == retried, "it had no company"


@pytest.mark.full
async def test_a_failed_request_frees_its_shared_memory(folder: Path) -> None:
    """Tests reference counts, with garbage collection off: no error may be in a cycle with the payload that caused it."""
    config = make_pipeline(
        folder,
        StageConfig(name="make", factory="fault_stages:vector", process="make", next="use"),
        StageConfig(name="use", factory="fault_stages:careless", process="use", terminal=True),
    )
    async with open_async(config) as client:
        for kind, *_ in RAISES:
            with pytest.raises(RequestFailedError):
                await client.submit(OmniRequest({"n": 1, "nbytes": 1_000_000, "poison": kind}))
            await Watched(client).rest()


async def test_data_that_looks_like_codec_internals_stays_data(folder: Path) -> None:
    lookalikes: list[Any] = [
        {"_tensor_placeholder": 0},
        {"__ext__": [7, b"x"]},
        {"relay_metadata": ["slot", 1], "header": b"\x93", "is_stream": True},
        {"request_id": "r", "error": {"stage": "work"}},
        "omni_core.protocol.process_messages.ShutdownMessage",
        ["omni_core.protocol.messages.AbortMessage", "r"],
    ]
    async with watched(branching(folder), right_branching) as (pipeline, load):
        async with load.running():
            for each in lookalikes:
                answer = await pipeline.client.submit(OmniRequest({"n": 1, "look": each}))
                assert answer["join"]["look"] == each
        assert not load.failed
