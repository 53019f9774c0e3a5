"""Calls of one decoder by the ``generate()`` of several requests, computed as a batch over the engine's paged cache."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, finalize

import torch
from attrs import define

from omni_core.api import RequestTooLargeError
from omni_torch.api import PagedSequences
from omni_transformers.calls.lines import Line
from omni_transformers.calls.packed import Packed, Untaken, cache_of
from omni_transformers.calls.stacked import Row, Stacked

logger = logging.getLogger(__name__)

LONGEST = 4096
"""Positions of a sequence, where the model does not say, and of what an encoder makes of a recording."""


@define(eq=False)
class Call:
    """A call of the decoder.

    Attributes:
        name: of its sequence.
        arguments: of the decoder, by name.
        positions: ``[count]``.
        hidden: the decoder's output, ``[1, count, hidden]``, when it is ``done``.
        logits: of the last position, ``[1, 1, vocab]``; ``None``: its model computes them.
    """

    name: str
    arguments: dict[str, torch.Tensor]
    positions: torch.Tensor
    done: bool = False
    hidden: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    error: BaseException | None = None

    @property
    def count(self) -> int:
        """The number of its positions."""
        return len(self.positions)

    @property
    def shape(self) -> tuple[Any, ...]:
        """Calls of one shape are computed together."""
        if all(each.shape[:2] == (1, self.count) for each in self.arguments.values()):
            return tuple(sorted((name, *each.shape[2:]) for name, each in self.arguments.items()))
        return (id(self),)


class Calls:
    """Computes the calls of a decoder that come from :class:`Line` s. One thread calls it, and the requests' threads, one at a time.

    Args:
        packed: the decoder.
        stacked: second networks, which compute while no call of the decoder does: so all requests are at the decoder at one time.
        running: requests at one time.
        kv_cache_mb: as of :class:`PagedSequences`.
    """

    def __init__(
        self, packed: Packed, stacked: Sequence[Stacked], running: int, kv_cache_mb: int | None = None
    ) -> None:
        self._packed, self._stacked = packed, stacked
        longest = packed.context or LONGEST
        if packed.layout.memory:
            longest += packed.remembered or LONGEST
        self._sequences = PagedSequences(packed.layout, packed.device, longest, running, kv_cache_mb)
        self._caches: WeakKeyDictionary[Any, str | None] = WeakKeyDictionary()  # None: the model computes with it
        self._named: dict[Line, list[str]] = {}
        self._dropped: list[str] = []
        self._count = 0
        self._told: set[str] = set()
        self.gpus = [packed.device] if packed.device.type == "cuda" else []
        self.steps = self.rows = self.alone = 0

    @contextmanager
    def taken_from(self, line: Line) -> Iterator[None]:
        """Take the calls of a request; in its thread."""
        with ExitStack() as stack:
            stack.enter_context(self._packed.decoder.instead(partial(self._called, line)))
            if self._packed.head is not None:
                stack.enter_context(self._packed.head.instead(partial(self._logits, line)))
            for each in self._stacked:
                stack.enter_context(each.door.instead(partial(self._row, line, each)))
            yield

    def forget(self, line: Line) -> None:
        """Drop the sequences of a request that has ended."""
        for name in self._named.pop(line, ()):
            self._sequences.end(name)

    def compute(self, lines: list[Line]) -> None:
        """Compute the calls of requests for which the cache has room."""
        while self._dropped:
            self._sequences.end(self._dropped.pop())
        if rows := [line.call for line in lines if isinstance(line.call, Row)]:
            for stack in _grouped(rows):
                self._compute_rows(stack)
            return
        calls = [line.call for line in lines if isinstance(line.call, Call)]
        try:
            planned = set(self._sequences.plan({call.name: call.count for call in calls}))
        except BaseException as error:
            # Such as a lack of memory for what is put aside: the end of the newest request makes room.
            newest = max(calls, key=lambda call: int(call.name))
            newest.error, newest.done = error, True
            return
        for group in _grouped([call for call in calls if call.name in planned]):
            self._compute(group)

    def _compute_rows(self, rows: list[Row]) -> None:
        try:
            rows[0].stacked.compute(rows)
        except BaseException as error:
            if len(rows) == 1:
                rows[0].error, rows[0].done = error, True
            for row in rows if len(rows) > 1 else ():
                self._compute_rows([row])

    @staticmethod
    def _row(line: Line, stacked: Stacked, given: dict[str, Any]) -> Any:
        """Compute a call of a second network, in a thread of its request."""
        row = stacked.row(given)
        if row is None:
            return stacked.door.run(**given)
        line.wait(row)
        if row.error is not None:
            error, row.error = row.error, None
            raise error
        return row.output

    def _compute(self, calls: list[Call]) -> None:
        names, lengths = [call.name for call in calls], [call.count for call in calls]
        try:
            with torch.inference_mode():
                attention = self._sequences.attention(names, lengths)
                arguments = {
                    name: torch.cat([call.arguments[name] for call in calls], 1) if len(calls) > 1 else each
                    for name, each in calls[0].arguments.items()
                }
                positions = torch.cat([call.positions for call in calls])
                hidden, logits = self._packed.run(arguments, positions, attention, lengths)
        except BaseException as error:
            if len(calls) == 1:
                calls[0].error, calls[0].done = error, True
                return
            logger.warning("a batch of %d calls failed (%s); each runs alone", len(calls), type(error).__name__)
            for call in calls:
                self._compute([call])
            return
        self._sequences.computed(names, lengths)
        self.steps += 1
        self.rows += len(calls)
        for number, (call, part) in enumerate(zip(calls, hidden.split(lengths), strict=True)):
            call.hidden, call.done = part.unsqueeze(0), True
            if logits is not None:
                call.logits = logits[number].view(1, 1, -1)

    def _called(self, line: Line, given: dict[str, Any]) -> Any:
        """Compute a call of the decoder, in a thread of its request."""
        cache = cache_of(given)
        if cache is not None and cache not in self._caches:
            self._caches[cache] = self._begun(line, given, cache)
        name = None if cache is None else self._caches[cache]
        if cache is None or name is None:
            self.alone += cache is not None
            return self._packed.decoder.run(**given)
        call = self._call(name, given, cache.get_seq_length())
        line.wait(call)
        if call.error is not None:
            error, call.error = call.error, None
            raise error
        line.ready = call
        assert call.hidden is not None
        own = getattr(cache, "self_attention_cache", cache)
        empty = call.hidden.new_zeros(1, 1, call.count, 1)
        own.update(empty, empty, 0)  # the loop reads its length
        return self._packed.output(call.hidden, cache, given)

    def _begun(self, line: Line, given: dict[str, Any], cache: Any) -> str | None:
        """Begin the sequence of a first call, and return its name; ``None`` if the model must compute it itself."""
        try:
            memory = self._packed.memory(given, cache)
        except Untaken as untaken:
            if str(untaken) not in self._told:
                self._told.add(str(untaken))
                logger.info("%s computes alone: %s", type(self._packed.decoder.module).__name__, untaken)
            return None
        self._count += 1
        name = str(self._count)
        self._sequences.begin(name, memory)
        self._named.setdefault(line, []).append(name)
        finalize(cache, self._dropped.append, name)
        return name

    def _call(self, name: str, given: dict[str, Any], seen: int) -> Call:
        arguments, positions = self._packed.arguments(given, seen)
        mask = given.get("attention_mask")
        if mask is not None and not bool(mask.all()):
            raise RuntimeError(
                "the model hides positions that it has written, which its cache here cannot; choose backend=steps"
            )
        most = self._sequences.capacity
        if (needed := self._sequences.length(name) + len(positions)) > most:
            raise RequestTooLargeError(
                f"the request has {needed} positions; the KV cache of this stage holds {most}; raise kv_cache_mb"
            )
        return Call(name, arguments, positions)

    def _logits(self, line: Line, given: dict[str, Any]) -> Any:
        """Return the logits that were computed with the decoder's output, if they are those of this input of the head."""
        call: Call | None = line.ready
        head = self._packed.head
        assert head is not None
        [hidden] = given.values()
        if call is not None and call.logits is not None and call.hidden is not None:
            last = call.hidden[:, -1:]
            if hidden.shape == last.shape and hidden.data_ptr() == last.data_ptr():
                return call.logits
            if hidden.dim() == 2 and hidden.shape == last[:, 0].shape and hidden.data_ptr() == last.data_ptr():
                return call.logits[:, 0]
        return head.run(hidden)


_Asked = TypeVar("_Asked", Call, Row)


def _grouped(calls: list[_Asked]) -> list[list[_Asked]]:
    """Return calls by their shapes."""
    groups: defaultdict[tuple[Any, ...], list[_Asked]] = defaultdict(list)
    for call in calls:
        groups[call.shape].append(call)
    return list(groups.values())
