"""Conformance suite of schedulers whose input may come as a stream: those of entry stages of pipelines with ``input_streams``."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from omni_core.api import IncomingMessage, OmniRequest, OutgoingMessage, Scheduler, StagePayload
from omni_testing.scheduler import PATIENCE, Harness


class StreamedInputConformance:
    """Subclass it, say how the scheduler is made and what its input is, and pytest runs every test.

    Attributes:
        cuts: ways in which an input is cut into chunks.
    """

    cuts = 8

    def make(self) -> Scheduler:
        """Return a new scheduler, not started."""
        raise NotImplementedError

    def pieces(self, number: int) -> list[Any]:
        """Return the smallest chunks of an input, at least two; different for every number."""
        raise NotImplementedError

    def join(self, pieces: list[Any]) -> Any:
        """Return consecutive chunks, at least one, as one chunk."""
        raise NotImplementedError

    def bad(self) -> Any:
        """Return a chunk that fails its request."""
        raise NotImplementedError

    def request(self) -> OmniRequest:
        """Return what is known before the first chunk."""
        return OmniRequest(stream=True)

    def same(self, one: Any, other: Any) -> bool:
        """Return whether two results are equal."""
        return bool(one == other)

    def test_every_cut_of_the_input_gives_the_same_result(self) -> None:
        with self._running() as harness:
            results = [self._whole(harness, f"cut{cut}", self._cut(1, random.Random(cut))) for cut in range(self.cuts)]
            results.append(self._whole(harness, "pieces", self.pieces(1)))
            results.append(self._whole(harness, "whole", [self.join(self.pieces(1))]))
            assert all(result.type == "result" for result in results), [result.data for result in results]
            assert all(self.same(results[0].data, result.data) for result in results), "the cut changes the result"

    def test_inputs_side_by_side_give_what_they_give_alone(self) -> None:
        with self._running() as harness:
            alone = [self._whole(harness, f"alone{number}", self.pieces(number)) for number in (1, 2)]
            for number in (1, 2):
                self._open(harness, f"both{number}")
            for step in range(max(len(self.pieces(1)), len(self.pieces(2)))):
                for number in (1, 2):
                    for chunk in self.pieces(number)[step : step + 1]:
                        self._put(harness, f"both{number}", "stream_chunk", chunk)
            for number in (1, 2):
                self._put(harness, f"both{number}", "stream_done")
                assert self.same(harness.ended(f"both{number}").data, alone[number - 1].data), (
                    "another input changes it"
                )

    def test_no_result_comes_twice_and_an_empty_input_ends(self) -> None:
        with self._running() as harness:
            self._whole(harness, "empty", [])
            self._whole(harness, "r", self.pieces(1))
            self._whole(harness, "after", self.pieces(2))
            for name in ("empty", "r", "after"):
                assert [each.type for each in harness.of(name)][-1] in ("result", "error")
                assert sum(each.type != "stream" for each in harness.of(name)) == 1

    def test_a_bad_chunk_fails_its_request_alone(self) -> None:
        with self._running() as harness:
            self._open(harness, "good")
            self._open(harness, "bad")
            self._put(harness, "bad", "stream_chunk", self.bad())
            for chunk in self.pieces(1):
                self._put(harness, "good", "stream_chunk", chunk)
            self._put(harness, "good", "stream_done")
            assert harness.ended("bad").type == "error"
            assert harness.ended("good").type == "result"

    def test_an_abandoned_input_leaves_nothing(self) -> None:
        with self._running() as harness:
            names = [f"r{number}" for number in range(20)]
            for name in names:
                self._open(harness, name)
                self._put(harness, name, "stream_chunk", self.pieces(1)[0])
            self._whole(harness, "before", self.pieces(1))  # by then the others have begun
            for name in names:
                harness.scheduler.abort(name)
            assert self._whole(harness, "after", self.pieces(1)).type == "result"
            assert not [each for name in names for each in harness.of(name) if each.type != "stream"]
            numbers: dict[str, float] = getattr(harness.scheduler, "statistics", dict)()
            left = {name: number for name, number in numbers.items() if name in ("waiting", "running") and number}
            assert not left, f"left over: {left}"

    @contextmanager
    def _running(self) -> Iterator[Harness]:
        harness = Harness(self.make(), lambda request_id, chunk: self._message(request_id, "stream_chunk", chunk))
        try:
            yield harness
        finally:
            harness.scheduler.stop()
            harness.thread.join(PATIENCE)

    def _message(self, request_id: str, kind: Any, data: Any = None) -> IncomingMessage:
        return IncomingMessage(request_id, kind, data, None, None, self.request().without_inputs())

    def _put(self, harness: Harness, request_id: str, kind: Any, data: Any = None) -> None:
        harness.scheduler.inbox.put(self._message(request_id, kind, data))

    def _open(self, harness: Harness, request_id: str) -> None:
        self._put(harness, request_id, "new_request", StagePayload(request_id, self.request(), None))

    def _whole(self, harness: Harness, request_id: str, chunks: list[Any]) -> OutgoingMessage:
        self._open(harness, request_id)
        for chunk in chunks:
            self._put(harness, request_id, "stream_chunk", chunk)
        self._put(harness, request_id, "stream_done")
        return harness.ended(request_id)

    def _cut(self, number: int, choice: random.Random) -> list[Any]:
        """Return the input in chunks of random lengths."""
        pieces, chunks = self.pieces(number), []
        while pieces:
            count = choice.randint(1, len(pieces))
            chunks.append(self.join(pieces[:count]))
            pieces = pieces[count:]
        return chunks
