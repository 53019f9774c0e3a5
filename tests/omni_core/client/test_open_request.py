"""Requests whose input is sent while their outputs are read, through whole pipelines."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import word_stages as words
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

import omni_core as omni
from omni_core.control.back_pressure import MOST_INPUT_CHUNKS
from omni_core.interface import Interface
from omni_core.protocol.outputs import AudioChunk, TextChunk


async def until(condition: Any) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


async def test_words_are_counted_while_they_come(run_folder: Path) -> None:
    async with omni.open_async(words.word_pipeline(run_folder)) as pipe:
        async with pipe.open_request(request_id="r") as request:
            await request.send(TextChunk("one tw"))
            assert (await anext(request)).data == 2
            await request.send(TextChunk("o three"))
            assert (await anext(request)).data == 3
            await request.finish()
            await request.finish()
            assert await request.results() == {"count": 3}
        # Whole: the stage gets the end of a stream at once.
        assert await pipe.submit(omni.OmniRequest("ignored"), "whole") == {"count": 0}
        with pytest.raises(omni.InvalidRequestError, match="input of this request is finished"):
            await request.send(TextChunk("more"))
        with pytest.raises(
            omni.InvalidRequestError, match=r"must be TextChunk \(text\) or AudioChunk \(audio\), is dict"
        ):
            await request.send({"pixels": np.zeros(3)})


async def test_large_chunks_travel_too(run_folder: Path) -> None:
    async with omni.open_async(words.word_pipeline(run_folder)) as pipe, pipe.open_request() as request:
        for _ in range(5):
            await request.send(AudioChunk(np.zeros(2_000_000, np.float32), 16_000))
        await request.finish()
        assert await request.results() == {"count": 5}


async def test_a_slow_stage_slows_the_sender(run_folder: Path) -> None:
    async with omni.open_async(words.word_pipeline(run_folder, delay=0.002)) as pipe, pipe.open_request() as request:
        most = 0
        for number in range(6 * MOST_INPUT_CHUNKS):
            await request.send(TextChunk(f"{number} "))
            most = max(most, number + 1 - request.chunks_taken)
        assert most <= MOST_INPUT_CHUNKS
        await request.finish()
        assert await request.results() == {"count": 6 * MOST_INPUT_CHUNKS}


async def test_a_stage_that_has_enough_lets_the_sender_wait(run_folder: Path) -> None:
    async with omni.open_async(words.word_pipeline(run_folder)) as pipe, pipe.open_request() as request:
        await request.send(TextChunk("hold "))
        assert (await anext(request)).data == 1

        async def write() -> None:
            for number in range(2 * MOST_INPUT_CHUNKS):
                await request.send(TextChunk(f"{number} "))
            await request.finish()

        writing = asyncio.create_task(write())
        for number in range(MOST_INPUT_CHUNKS):  # the stage takes them, and tells nobody
            assert (await anext(request)).data == number + 2
        await until(lambda: not request._input.has_room)
        taken = request.chunks_taken
        assert taken <= 1
        async with pipe.open_request() as other:
            await other.send(TextChunk("go "))
            await other.finish()
            await other.results()
        assert await request.results() == {"count": 2 * MOST_INPUT_CHUNKS + 1}
        await writing


async def test_what_was_streamed_before_a_failure_is_read_before_it(run_folder: Path) -> None:
    async with omni.open_async(words.word_pipeline(run_folder)) as pipe, pipe.open_request() as request:
        for number in range(20):
            await request.send(TextChunk(f"{number} "))
        await request.send(TextChunk("fail"))
        await until(lambda: request._tracked.is_over)
        heard = []
        with pytest.raises(omni.RequestFailedError, match="a word that fails"):
            async for event in request:
                heard.append(event.data)
        assert heard == list(range(1, 21))


async def test_a_source_that_cannot_wait_drops_what_the_stage_is_too_slow_for(run_folder: Path) -> None:
    async with omni.open_async(words.word_pipeline(run_folder, delay=0.02)) as pipe, pipe.open_request() as request:
        await request.send(TextChunk("first "))  # waits until the request itself was sent
        sent = [await request.offer(TextChunk("word ")) for _ in range(20)]
        assert not all(sent)
        assert await request.offer(TextChunk("last "), most_waiting=MOST_INPUT_CHUNKS)
        with pytest.raises(omni.InvalidRequestError, match="must be TextChunk"):
            await request.offer(1)
        with pytest.raises(omni.InvalidRequestError, match="most_waiting: must be a whole number above 0, is 0"):
            await request.offer(TextChunk("never "), most_waiting=0)
        await request.finish()
        assert await request.results() == {"count": 2 + sum(sent)}
        with pytest.raises(omni.InvalidRequestError, match="is finished"):
            await request.offer(TextChunk("more"))


async def test_a_chunk_that_the_stage_takes_too_late_ends_its_request(run_folder: Path) -> None:
    async with omni.open_async(words.word_pipeline(run_folder, delay=0.3)) as pipe:
        async with pipe.open_request(chunk_timeout=0.05) as request:
            with pytest.raises(omni.RequestTimeoutError, match=r"a chunk of its input .* timeout of 0\.05 s"):
                while True:  # what comes while the stage computes waits for it
                    await request.send(TextChunk("word "))
        with pytest.raises(omni.InvalidRequestError, match="chunk_timeout: must be a number of seconds"):
            pipe.open_request(chunk_timeout=0)


async def test_a_killed_stage_tells_each_of_its_streams_what_it_has_taken(run_folder: Path) -> None:
    async with omni.open_async(words.word_pipeline(run_folder, retries=1)) as pipe:
        live = [pipe.open_request() for _ in range(20)]
        for number, request in enumerate(live):
            for _ in range(number):
                await request.send(TextChunk("word "))
                await anext(request)
        last = pipe.open_request()  # it has sent nothing, so it goes on in the next process
        os.kill(pipe.health()["count"]["pids"][0], signal.SIGKILL)
        for number, request in enumerate(live[1:], 1):
            told = rf"signal 9.*; {number} of {number} chunks of its input were taken"
            with pytest.raises(omni.RequestFailedError, match=told):
                await request.results()
            assert request.chunks_taken == number
        for request in (live[0], last):
            await request.send(TextChunk("one two"))
            await request.finish()
            assert await request.results() == {"count": 2}


async def test_a_stage_that_fails_or_dies_fails_the_request_and_its_sender(run_folder: Path) -> None:
    config = words.word_pipeline(run_folder, retries=1)
    async with omni.open_async(config) as pipe:
        for word, error in (("fail", "ValueError: a word that fails"), ("die", "ProcessDied")):
            async with pipe.open_request() as request:
                await request.send(TextChunk("one "))
                assert (await anext(request)).data == 1
                await request.send(TextChunk(word))
                with pytest.raises(omni.RequestFailedError, match=error):
                    await request.results()
                with pytest.raises(omni.RequestFailedError, match=error):
                    await request.send(TextChunk("two"))
                assert request.chunks_taken >= 1
        async with pipe.open_request() as request:  # the stage serves again
            await request.send(TextChunk("one two "))
            await request.finish()
            assert await request.results() == {"count": 2}


async def test_abandoned_and_aborted_requests_leave_nothing(run_folder: Path) -> None:
    async with omni.open_async(words.word_pipeline(run_folder)) as pipe:
        for number in range(1_000):
            request = pipe.open_request()
            await request.send(TextChunk("one "))
            if number % 2:
                await request.aclose()
            await asyncio.sleep(0)  # one that was dropped is aborted in the next turn of the event loop
        del request
        gc.collect()
        await until(lambda: pipe._runner.coordinator.in_flight == 0)

        async def left() -> float:
            numbers = (await pipe.statistics())["count"]["count"]
            return numbers["in_flight"] + numbers["running"] + numbers["waiting"]

        async with asyncio.timeout(20):
            while await left():  # the scheduler drops a request when its running step has ended
                pass


async def test_a_reader_is_told_that_its_request_was_aborted(run_folder: Path) -> None:
    async with omni.open_async(words.word_pipeline(run_folder)) as pipe:
        async with pipe.open_request() as request:
            reading = asyncio.create_task(request.results())
            await asyncio.sleep(0)
        with pytest.raises(omni.RequestAbortedError):
            await reading


async def test_a_pipeline_that_takes_no_streams_says_so(run_folder: Path) -> None:
    async with omni.open_async(words.word_pipeline(run_folder, interface=Interface())) as pipe:
        with pytest.raises(omni.InvalidRequestError, match="takes no input as a stream"):
            pipe.open_request()
        assert pipe._runner.coordinator.in_flight == 0


def test_every_cut_of_an_input_gives_the_same_result(run_folder: Path) -> None:
    text = "a few words, and more of them: \u00e4 \U0001f600 end "
    with omni.open(words.word_pipeline(run_folder)) as pipe:

        @settings(max_examples=60, deadline=None, database=None)
        @given(cuts=st.lists(st.integers(0, len(text)), max_size=len(text)).map(sorted))
        def check(cuts: list[int]) -> None:
            with pipe.open_request() as request:
                for begin, end in pairwise([0, *cuts, len(text)]):
                    request.send(TextChunk(text[begin:end]))
                request.finish()
                *partial, last = request
            assert last.data == len(text.split())
            assert [event.data for event in partial] == [len(text[:end].split()) for end in [*cuts, len(text)]]

        check()


async def test_the_chunks_of_an_input_go_to_one_replica(run_folder: Path) -> None:
    config = words.word_pipeline(run_folder)
    config.stages[0] = evolve(config.stages[0], replicas=2)
    async with omni.open_async(config) as pipe:
        live = [pipe.open_request() for _ in range(4)]
        for _ in range(5):
            for request in live:
                await request.send(TextChunk("word "))
        for request in live:
            await request.finish()
            assert await request.results() == {"count": 5}
        completed = [
            process["count"]["completed"] for process in (await pipe.statistics()).values() if "count" in process
        ]
        assert completed == [2, 2]


def test_threads_send_and_read(run_folder: Path) -> None:
    with omni.open(words.word_pipeline(run_folder)) as pipe:
        with pipe.open_request() as request:

            def write() -> None:
                for number in range(3 * MOST_INPUT_CHUNKS):
                    request.send(TextChunk(f"{number} "))
                request.finish()

            writing = threading.Thread(target=write)
            writing.start()
            *partial, whole = list(request)
            writing.join(20)
            assert [event.data for event in partial] == list(range(1, 3 * MOST_INPUT_CHUNKS + 1))
            assert (whole.data, whole.final) == (3 * MOST_INPUT_CHUNKS, True)
        opened = pipe.open_request(request_id="dropped")
        assert (
            opened.offer(TextChunk("one"), MOST_INPUT_CHUNKS) or opened.chunks_taken == 0
        )  # dropped if it has not begun
        del opened
        gc.collect()
        with pipe.open_request() as request:
            request.finish()
            assert request.results() == {"count": 0}
        assert pipe._pipe._runner.coordinator.in_flight == 0
