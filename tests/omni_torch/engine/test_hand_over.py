"""Keys and values that one stage computes and another goes on with: the bits of one that computes all itself, and nothing left."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve
from engine_harness import Driven
from hand_over_stages import create_runner
from toy_model import KV_HEADS, LAYERS, WIDTH, ToyModel, ToyRunner

from omni_core.client import AsyncPipe, open_async
from omni_core.config.schema import EndpointsConfig, PipelineConfig, StageConfig
from omni_core.errors import ConfigError, InvalidRequestError, RequestAbortedError, RequestFailedError
from omni_core.model_runner import KVLayout
from omni_core.protocol.messages import OmniRequest, StagePayload
from omni_core.scheduling.base import IncomingMessage
from omni_torch.engine.key_values import KeyValues, gathered
from omni_torch.engine.scheduler import EngineScheduler
from omni_torch.loop.autoregressive import LoopedScheduler
from omni_torch.processes.tensor_parallel import TensorParallel

SHORT, LONG = list(range(1, 12)), [each % 90 for each in range(3, 403)]  # in a message, and by the relay


@pytest.fixture
def engines(engine: Callable[..., Driven]) -> Iterator[Any]:
    """Makes engines by the name of their stage, which hold nothing after the test."""
    made: list[Driven] = []

    def make(stage: str, **options: Any) -> Driven:
        made.append(engine(create_runner(stage), **options))
        return made[-1]

    yield make
    for each in made:
        assert each.resting()


def put(engine: Driven, name: str, data: dict[str, Any]) -> None:
    engine.scheduler.inbox.put(IncomingMessage(name, "new_request", StagePayload(name, OmniRequest(), data)))


def computed(engine: Driven, data: dict[str, Any]) -> dict[str, Any]:
    put(engine, "r", data)
    message = engine.collect(1)["r"]
    assert message.type == "result", message.data
    result: dict[str, Any] = message.data
    return result


def asked(ids: list[int], **more: Any) -> dict[str, Any]:
    return {"ids": ids, "tokens": {"first": 6, "second": 9, "third": 5, "all": 20, "two": 15}, **more}


def same(one: KeyValues, other: KeyValues) -> bool:
    assert one.hidden is not None
    assert other.hidden is not None
    tensors = ((one.keys, other.keys), (one.values, other.values), (one.hidden, other.hidden))
    return (one.ids, one.next_position) == (other.ids, other.next_position) and all(
        torch.equal(mine, theirs) for mine, theirs in tensors
    )


@pytest.mark.parametrize("prompt", [SHORT, LONG], ids=["short", "long"])
@pytest.mark.parametrize("options", [{}, {"prefix_cache": False, "chunk_size": 7}], ids=["cached", "chunks"])
def test_what_goes_on_elsewhere_is_what_goes_on_here(engines: Any, prompt: list[int], options: dict[str, Any]) -> None:
    whole = computed(engines("two", **options), asked(prompt))
    first = computed(engines("first", **options), asked(prompt))
    given = first["key_values"]
    assert (given.positions, given.keys.shape) == (len(prompt) + 5, (LAYERS, len(prompt) + 5, KV_HEADS, WIDTH))
    assert given.ids == prompt + first["made"][:-1]
    second = computed(engines("second", **options), first)
    assert second["made"] == whole["made"]
    assert same(second["key_values"], whole["key_values"])


def test_requests_together_and_preempted_ones_are_what_they_are_alone(engines: Any) -> None:
    first, tight = engines("first"), engines("second", kv_blocks=14, max_running=3)
    prompts = [[seed, *SHORT[: seed + 4]] for seed in range(6)]
    given = [computed(first, asked(prompt)) for prompt in prompts]
    alone = [computed(engines("two"), asked(prompt)) for prompt in prompts]
    for number, data in enumerate(given):
        put(tight, f"r{number}", data)
    found = tight.collect(len(given))
    assert tight.statistics()["preemptions"] > 0
    for number, expected in enumerate(alone):
        assert found[f"r{number}"].data["made"] == expected["made"]
        assert torch.allclose(found[f"r{number}"].data["key_values"].keys, expected["key_values"].keys, atol=1e-5)


def test_rotary_positions_go_on_where_they_were(engines: Any) -> None:
    given = computed(engines("first"), asked(SHORT, delta=7))
    assert given["key_values"].next_position == given["key_values"].positions + 7
    whole, second = computed(engines("two"), asked(SHORT, delta=7)), computed(engines("second"), given)
    assert second["made"] == whole["made"] != computed(engines("two"), asked(SHORT))["made"]
    assert same(second["key_values"], whole["key_values"])


def test_equal_ids_do_not_mean_equal_keys_and_values(engines: Any) -> None:
    given, second = computed(engines("first"), asked(LONG)), engines("second")
    expected = computed(second, given)["made"]
    plain = computed(second, {**given, "ids": [*given["key_values"].ids, *given["ids"]], "key_values": None})["made"]
    assert plain == expected, "computed here from the same ids"
    other = evolve(given["key_values"], values=-given["key_values"].values)
    assert computed(second, {**given, "key_values": other})["made"] != expected
    assert computed(second, given)["made"] == expected
    assert second.statistics()["reused_positions"] == 3 * given["key_values"].positions


def test_what_is_exported_is_a_copy(engines: Any) -> None:
    first = engines("first", kv_blocks=110)
    given = computed(first, asked(LONG))["key_values"]
    before = evolve(given, keys=given.keys.clone(), values=given.values.clone(), hidden=given.hidden.clone())
    computed(first, asked(LONG[::-1]))
    assert same(given, before)


def test_a_request_that_fails_or_is_aborted_leaves_no_block(engines: Any) -> None:
    first, second = engines("first"), engines("second")
    given = computed(first, asked(LONG))
    put(second, "bad", {**given, "fails": "second"})
    assert isinstance(second.collect(1)["bad"].data, InvalidRequestError)
    put(second, "long", {**given, "holds": "second", "streams": "second"})
    while not second.streamed:
        message = second.scheduler.outbox.get(10)
        assert message is not None
        second.streamed.append(message)
    second.scheduler.abort("long")
    assert second.resting()
    runner: Any = second.scheduler._runner
    assert not runner.past, "the keys and values of ended requests are dropped"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda past: evolve(past, keys=past.keys[:1], values=past.values[:1]), "1 layers of 2 heads of 8 float32"),
        (
            lambda past: past.to("cpu", torch.float64),
            "2 layers of 2 heads of 8 float64 .* has 2 layers of 2 heads of 8 float32",
        ),
        (lambda past: evolve(past, hidden=None), "hidden states of width 0 were handed over; this stage needs 32"),
        (lambda past: evolve(past, ids=[]), "16 positions were handed over, and the prompt has 1"),
    ],
    ids=["layers", "dtype", "hidden", "positions"],
)
def test_keys_and_values_that_do_not_fit_are_refused_by_name(engines: Any, change: Any, message: str) -> None:
    given, second = computed(engines("first"), asked(SHORT)), engines("second")
    put(second, "r", {**given, "key_values": change(given["key_values"])})
    with pytest.raises((ConfigError, InvalidRequestError), match=f"key_values: .*{message}"):
        raise second.collect(1)["r"].data
    assert computed(second, given)["made"]


def test_a_scheduler_that_cannot_is_refused_at_the_start() -> None:
    from omni_torch.loop.autoregressive import AutoregressiveLoop

    with pytest.raises(ConfigError, match="HandingRunner hands over keys and values, and LoopedScheduler cannot"):
        AutoregressiveLoop(create_runner("first"), LoopedScheduler(), 100)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"tp_size: 2, but HandingRunner\.parallel has 1 ranks"):
        EngineScheduler(create_runner("first"), tp_size=2)
    runner = ToyRunner(ToyModel())
    EngineScheduler(runner, kv_blocks=4)
    with pytest.raises(ConfigError, match="hands_over must be true"):
        runner.export_key_values(None)  # type: ignore[arg-type]


# --- ranks ---------------------------------------------------------------------------------------------------------------
class Gathering(TensorParallel):
    """A rank 0 that is given what the others send."""

    def __init__(self, parts: list[torch.Tensor]) -> None:
        super().__init__(0, len(parts))
        self.parts = parts

    def gather(self, part: torch.Tensor) -> list[torch.Tensor] | None:
        return self.parts


@pytest.mark.parametrize(("size", "heads"), [(1, 4), (2, 4), (4, 4), (4, 2), (8, 2)])
def test_ranks_share_heads_out_and_gather_them_again(size: int, heads: int) -> None:
    whole = KeyValues(torch.randn(3, 5, heads, 2), torch.randn(3, 5, heads, 2), [1] * 5, 5)
    layout = KVLayout(3, max(1, heads // size), 2, torch.float32)
    shares = [whole.share(TensorParallel(rank, size), layout) for rank in range(size)]
    for rank, share in enumerate(shares):
        assert share.keys.shape[2] == layout.kv_heads
        assert torch.equal(share.values[:, :, 0], whole.values[:, :, rank * heads // size])
    assert torch.equal(gathered(shares[0].keys, Gathering([each.keys for each in shares]), heads), whole.keys)


def test_heads_that_ranks_cannot_share_are_refused() -> None:
    whole = KeyValues(torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 4), [0, 0], 2)
    with pytest.raises(ConfigError, match=r"3 heads of 4 float32 were handed over; .* 1 layers of 4 heads"):
        whole.share(TensorParallel(0, 2), KVLayout(1, 2, 4, torch.float32))
    with pytest.raises(ConfigError, match="the 2 ranks of this stage hold 6"):
        whole.share(TensorParallel(0, 2), KVLayout(1, 3, 4, torch.float32))


# --- pipelines -----------------------------------------------------------------------------------------------------------
def pipeline(folder: Path, *ranks: int, separate: bool = True) -> PipelineConfig:
    """A chain of stages with so many ranks each."""
    names = ["first", "second", "third"][: len(ranks)]
    stages = [
        StageConfig(
            name=name,
            model_runner="hand_over_stages:create_runner",
            scheduler="engine",
            factory_args={"max_context": 512, "kv_blocks": 300, "block_size": 4},
            tp_size=size,
            process=None if size > 1 else name if separate else "one",
            next=following,
            terminal=following is None,
        )
        for name, size, following in zip(names, ranks, [*names[1:], None], strict=True)
    ]
    return PipelineConfig(model_path="none", stages=stages, endpoints=EndpointsConfig(str(folder)))


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads()))  # the same kernels there as here


async def running(client: AsyncPipe, stage: str) -> bool:
    """Return whether a stage computes a request, on its rank 0 where it has several."""
    counters = await client.statistics()
    return any(
        values.get("running", 0) > 0
        for process, owners in counters.items()
        if process.split("_tp")[0] == stage
        for values in owners.values()
    )


async def rests(client: AsyncPipe) -> None:
    """Return when nothing is left of any request: every block is free, and so is every place of every relay."""
    while True:
        left = {
            f"{process}/{owner}.{name}": value
            for process, counters in (await client.statistics()).items()
            for owner, values in counters.items()
            for name, value in {
                **values,
                "used_blocks": values.get("total_blocks", 0) - values.get("free_blocks", 0),
            }.items()
            if value and name.endswith(("used_blocks", "pending", "slots_in_use", "bytes_in_use", "running", "waiting"))
        }
        if not left:
            return
        await asyncio.sleep(0.02)


@pytest.fixture
async def chain(run_folder: Path, importable: None) -> AsyncIterator[AsyncPipe]:
    async with open_async(pipeline(run_folder, 2, 1, 2)) as client:
        yield client


async def test_two_ranks_to_one_to_two_are_bit_for_bit_one_stage(chain: AsyncPipe, engines: Any) -> None:
    whole = engines("all")
    for prompt in (SHORT, LONG):
        found = (await asyncio.wait_for(chain.submit(OmniRequest(asked(prompt))), 60))["third"]
        expected = computed(whole, asked(prompt))
        assert found["made"] == expected["made"]
        assert same(found["key_values"], expected["key_values"])
    for stage in ("first", "second", "third"):  # on every rank: none has gone on alone
        with pytest.raises(RequestFailedError, match=f"as asked, in {stage}"):
            await asyncio.wait_for(chain.submit(OmniRequest(asked(LONG, fails=stage))), 60)
        task = asyncio.create_task(chain.submit(OmniRequest(asked(LONG, holds=stage)), f"held-{stage}"))
        while not await running(chain, stage):
            await asyncio.sleep(0.005)
        await chain.abort(f"held-{stage}")
        with pytest.raises(RequestAbortedError):
            await task
    again = (await asyncio.wait_for(chain.submit(OmniRequest(asked(LONG))), 60))["third"]
    assert again["made"] == expected["made"]
    await asyncio.wait_for(rests(chain), 30)


@pytest.mark.parametrize(
    "separate", [pytest.param(False, marks=pytest.mark.full), True], ids=["one-process", "separate"]
)
async def test_one_rank_to_one_and_a_consumer_that_is_gone(
    run_folder: Path, importable: None, engines: Any, separate: bool
) -> None:
    whole = engines("two")
    async with open_async(pipeline(run_folder, 1, 1, separate=separate)) as client:
        prompts = [SHORT, LONG, *([seed, *LONG[:150]] for seed in range(4))]
        found = await asyncio.gather(*(client.submit(OmniRequest(asked(prompt))) for prompt in prompts))
        for prompt, each in zip(prompts, found, strict=True):
            assert each["second"]["made"] == computed(whole, asked(prompt))["made"]
        alone = (await client.submit(OmniRequest(asked(LONG))))["second"]
        assert same(alone["key_values"], computed(whole, asked(LONG))["key_values"])
        held = OmniRequest(asked(LONG, holds="second", streams="second"))
        with pytest.raises(RequestFailedError, match=r"0\.5 s"):
            await client.submit(evolve(held, timeout=0.5))
        await asyncio.wait_for(rests(client), 30)
        if not separate:
            return
        consumer = client.process_ids["second"]
        with pytest.raises(RequestFailedError, match="second"):
            async for _ in client.stream(held):
                with suppress(ProcessLookupError):
                    os.kill(consumer, signal.SIGKILL)
        await asyncio.wait_for(rests(client), 30)
