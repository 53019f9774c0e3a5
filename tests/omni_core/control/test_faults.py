"""Tasks that fail are heard of, loops that others rely on go on, and faults of others do not fill the log."""

from __future__ import annotations

import asyncio
import logging

import pytest

from omni_core.control import faults
from omni_core.control.faults import Sparing, kept_up, watched
from omni_core.control.lanes import Tasks


async def fails(text: str = "no room") -> None:
    await asyncio.sleep(0)
    raise LookupError(text)


async def raises(error: BaseException) -> None:
    raise error


async def test_a_task_that_fails_is_logged_while_it_is_held(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[BaseException] = []
    failed = watched(fails(), "the reader", heard.append)
    await asyncio.wait([failed])
    await asyncio.sleep(0)
    assert [str(error) for error in heard] == ["no room"]
    [record] = caplog.records
    assert record.getMessage().startswith("the reader has failed: LookupError: no room\nTraceback")
    assert record.levelname == "ERROR"


async def test_the_owner_ends_a_task_and_hears_nothing(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[BaseException] = []
    task = watched(asyncio.sleep(3600), "the reader", heard.append)
    done = watched(asyncio.sleep(0, "answer"), "another", heard.append)
    assert await done == "answer"
    task.cancel()
    await asyncio.wait([task])
    await asyncio.sleep(0)
    assert (heard, caplog.records) == ([], [])


async def test_tasks_beside_an_owner_are_watched(caplog: pytest.LogCaptureFixture) -> None:
    tasks = Tasks()
    tasks.start(fails())
    await asyncio.wait(tasks)
    await asyncio.sleep(0)
    assert [record.getMessage().partition("\n")[0] for record in caplog.records] == [
        "fails has failed: LookupError: no room"
    ]
    assert not tasks


async def test_a_loop_that_fails_begins_again_until_it_returns(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(faults, "LONGEST_PAUSE", 0.004)
    begun = 0

    async def read() -> None:
        nonlocal begun
        begun += 1
        if begun < 6:
            raise ValueError(begun)

    await kept_up(read, "the reading")
    assert begun == 6
    assert [record.getMessage().partition("\n")[0] for record in caplog.records] == [
        f"the reading has failed, and begins again in {pause} s" for pause in (0.001, 0.002, 0.004, 0.004, 0.004)
    ]


async def test_a_loop_is_ended_by_its_owner_also_in_a_pause() -> None:
    task = kept_up(fails, "the reading")
    await asyncio.sleep(0.02)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


def test_records_of_one_kind_are_bounded_and_those_left_out_are_counted(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(faults.time, "monotonic", lambda: clock[0])
    logger = logging.getLogger("test.sparing")
    logger.addFilter(Sparing(most=3, seconds=10.0))
    for number in range(1000):
        logger.warning("junk %d", number)
    logger.warning("another kind")
    assert [record.getMessage() for record in caplog.records] == ["junk 0", "junk 1", "junk 2", "another kind"]
    caplog.clear()
    clock[0] += 10.0
    for number in range(2):
        logger.warning("junk %d", number)
    clock[0] += 10.0
    logger.warning("junk %d", 2)
    assert [record.getMessage() for record in caplog.records] == ["junk 0 (997 more were left out)", "junk 1", "junk 2"]


async def test_a_failure_of_any_class_is_logged_without_its_code(
    hostile: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[BaseException] = []
    failed = watched(raises(hostile), "the reader", heard.append)
    await asyncio.wait([failed])
    await asyncio.sleep(0)
    assert len(heard) == 1
    [record] = caplog.records
    assert record.getMessage().startswith("the reader has failed: Hostile: ")
    assert record.exc_info is None
