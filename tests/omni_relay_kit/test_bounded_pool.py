"""The pool's bookkeeping: order of waiting, patience, release of blocks."""

from __future__ import annotations

import asyncio
import time

import pytest

from omni_core.errors import RelayError, RelayFullError
from omni_relay_kit.allocator import GRANULE
from omni_relay_kit.bounded_pool import Block, BoundedPool, Patience

SIZE = 4 * GRANULE


@pytest.fixture
def pool() -> BoundedPool:
    return BoundedPool(SIZE, "owner")


async def turns() -> None:
    """Let every task run as far as it can."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_blocks_are_counted_and_given_back(pool: BoundedPool) -> None:
    block = await pool.allocate(100, "r")
    assert (len(pool), pool.bytes_in_use, pool.get(block.key), pool.at(block.offset)) == (1, GRANULE, block, block)
    assert pool.of("r") == [block]
    pool.free(block)
    pool.free(block)
    assert (len(pool), pool.bytes_in_use, pool.get(block.key)) == (0, 0, None)


async def test_memory_is_given_in_the_order_of_asking(pool: BoundedPool) -> None:
    first = await pool.allocate(SIZE, "first")
    got: list[str] = []

    async def ask(name: str, nbytes: int) -> Block:
        block = await pool.allocate(nbytes, name)
        got.append(name)
        return block

    large = asyncio.ensure_future(ask("large", SIZE))
    small = asyncio.ensure_future(ask("small", 1))
    await turns()
    assert pool.try_allocate(1, "late") is None, "nothing overtakes what waits"
    pool.free(first)
    await turns()
    assert got == ["large"], "the small one fits only when the large one is gone"
    pool.free(await large)
    await small
    assert got == ["large", "small"]


async def test_the_first_in_line_keeps_its_place_until_there_is_enough(pool: BoundedPool) -> None:
    blocks = [await pool.allocate(GRANULE, "x") for _ in range(4)]
    large = asyncio.ensure_future(pool.allocate(2 * GRANULE, "large"))
    small = asyncio.ensure_future(pool.allocate(GRANULE, "small"))
    await turns()
    pool.free(blocks[0])
    await turns()
    assert not large.done()
    assert not small.done()
    pool.free(blocks[1])
    await turns()
    assert large.done()
    pool.free(blocks[2])
    await small


@pytest.mark.parametrize("patience", [None, Patience()])
async def test_a_cancelled_allocation_lets_the_next_try(patience: Patience | None) -> None:
    pool = BoundedPool(SIZE, "owner", patience=patience)
    blocks = [await pool.allocate(GRANULE, "x") for _ in range(4)]
    large = asyncio.ensure_future(pool.allocate(SIZE, "large"))
    small = asyncio.ensure_future(pool.allocate(GRANULE, "small"))
    await turns()
    pool.free(blocks[0])
    await turns()
    large.cancel()
    await asyncio.wait_for(small, 1)


async def test_an_impossible_size_is_rejected_at_once(pool: BoundedPool) -> None:
    with pytest.raises(RelayError, match=r"process 'owner'.*slot_size_mb.*sending stage"):
        await pool.allocate(SIZE + 1, "r")


@pytest.mark.full
async def test_a_request_does_not_wait_for_its_own_blocks() -> None:
    pool = BoundedPool(SIZE, "owner", patience=Patience(holding=0.02, stuck=60))
    await pool.allocate(SIZE, "holder")
    other = asyncio.ensure_future(pool.allocate(1, "other"))
    begin = time.monotonic()
    with pytest.raises(RelayFullError):
        await pool.allocate(1, "holder")
    assert time.monotonic() - begin < 1
    assert not other.done()
    other.cancel()


@pytest.mark.full
async def test_a_stuck_pool_is_waited_for_for_a_bounded_time() -> None:
    pool = BoundedPool(SIZE, "owner", patience=Patience(stuck=0.2, still_stuck=0.05))
    blocks = [await pool.allocate(2 * GRANULE, name) for name in ("a", "b")]
    begin = time.monotonic()
    waiting = [asyncio.ensure_future(pool.allocate(2 * GRANULE, f"w{number}")) for number in range(3)]
    await asyncio.sleep(0.1)
    pool.free(blocks[0])  # a block was released: the others wait anew
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(results[0], Block)
    assert [type(result) for result in results[1:]] == [RelayFullError, RelayFullError]
    assert 0.25 < time.monotonic() - begin < 2


async def test_waiting_for_a_blocks_end(pool: BoundedPool) -> None:
    block = await pool.allocate(1, "r")
    waiting = asyncio.ensure_future(pool.until_freed(block))
    await turns()
    assert pool.is_waited_for
    assert not waiting.done()
    pool.free(block)
    await asyncio.wait_for(waiting, 1)
    await asyncio.wait_for(pool.until_freed(block), 1)


async def test_what_readers_released_is_freed_before_each_attempt() -> None:
    released: list[Block] = []
    waits: list[int] = []

    def prepare() -> bool:
        while released:
            pool.free(released.pop())
        return len(pool) < 2

    pool = BoundedPool(SIZE, "owner", prepare=prepare, on_wait=lambda: waits.append(1))
    blocks = [await pool.allocate(1, "r") for _ in range(2)]
    assert pool.try_allocate(1, "r") is None, "no more than two"
    assert not waits
    waiting = asyncio.ensure_future(pool.allocate(1, "r"))
    await turns()
    assert waits
    released.append(blocks[0])
    pool.wake_next()
    await asyncio.wait_for(waiting, 1)


async def test_closing_fails_pending_allocations(pool: BoundedPool) -> None:
    block = await pool.allocate(SIZE, "r")
    waiting = asyncio.ensure_future(pool.allocate(1, "w"))
    ending = asyncio.ensure_future(pool.until_freed(block))
    await turns()
    pool.close()
    with pytest.raises(RelayError, match="closed"):
        await waiting
    await asyncio.wait_for(ending, 1)
    with pytest.raises(RelayError, match="closed"):
        await pool.allocate(1, "late")
