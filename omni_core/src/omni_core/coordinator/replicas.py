"""The choice of the replicas that serve a request: in turn, by load, or the same one for equal keys while it lives.

A *slot* is the place of a replica in the config, which decides its devices. The unit in it may be replaced, and then has another number.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import count

from attrs import define, field, frozen

from omni_core.errors import ConfigError
from omni_core.protocol.messages import OmniRequest


@define
class Load:
    """The requests that one replica has now.

    Attributes:
        replica: its number.
        requests: those placed on it that have not ended.
        work: the work that is expected of them together.
        placed: requests that were ever placed on it.
    """

    replica: int
    requests: int = 0
    work: float = 0.0
    placed: int = 0


Balance = Callable[[OmniRequest, Sequence[Load]], int]
"""Chooses a replica: ``(request, loads) -> its number``, of those that serve now. Equal loads come in the order of their slots."""


def least_busy(request: OmniRequest, loads: Sequence[Load]) -> int:
    """Choose the replica with the fewest requests; of several, the one that was used least."""
    return min(loads, key=lambda load: (load.requests, load.placed)).replica


def least_work(request: OmniRequest, loads: Sequence[Load]) -> int:
    """Choose the replica of whose requests the least work is expected."""
    return min(loads, key=lambda load: (load.work, load.requests, load.placed)).replica


BALANCES: Mapping[str, Balance | None] = {"turns": None, "least_busy": least_busy, "cost": least_work}
"""The values of ``StageConfig.balance`` that need no reference."""


def expected_work(request: OmniRequest) -> float:
    """Return the characters of the texts of a request, and one for the request itself."""
    inputs = request.inputs
    texts = inputs.get("messages") or inputs.get("prompt") if isinstance(inputs, dict) else inputs
    return 1.0 + _characters(texts)


def _characters(value: object) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, list | tuple):
        return sum(map(_characters, value))
    return _characters(value.get("content", value.get("text"))) if isinstance(value, dict) else 0


@frozen
class ReplicatedGroup:
    """A process group of which there are several, or may be: its stages, and how one of them is chosen.

    Attributes:
        affinity_key: the metadata key that keeps requests together.
        balance: the choice for others; ``None``: in turn.
        work: the expected work of a request.
    """

    name: str
    stages: list[str]
    affinity_key: str | None = None
    balance: Balance | None = None
    work: Callable[[OmniRequest], float] = expected_work
    turns: count[int] = field(factory=count)


class ReplicaChoice:
    """Chooses for every replicated group. Called by the coordinator once per attempt, so that all senders agree.

    Args:
        groups: the replicated process groups.
        available: the replicas of a group that may be chosen now: slot to number. Where there are none, the first is chosen: a request
            that never reaches the group is served, and one that does fails there, with the reason of the failed stage.
    """

    def __init__(self, groups: Sequence[ReplicatedGroup], available: Callable[[str], Mapping[int, int]]) -> None:
        self._groups = {group.name: group for group in groups}
        self._available = available
        self._loads: dict[tuple[str, int], Load] = {}
        self._held: dict[str, list[tuple[Load, float]]] = {}

    def add(self, group: ReplicatedGroup) -> None:
        """Choose for this group too from now on; requests of before are its replica number 0's."""
        self._groups.setdefault(group.name, group)

    def drop(self, group: str, replica: int) -> None:
        """Forget a replica that has ended."""
        self._loads.pop((group, replica), None)

    def place(self, attempt_id: str, request: OmniRequest) -> dict[str, int]:
        """Return the replica number of every stage of a replicated group.

        Raises:
            Exception: what a ``balance`` or ``work_fn`` raises.
        """
        placement: dict[str, int] = {}
        held = []
        for group in self._groups.values():
            replicas = self._available(group.name) or {0: 0}
            key = request.metadata.get(group.affinity_key) if group.affinity_key is not None else None
            work = 0.0
            if key is not None:
                slot = max(replicas, key=lambda slot: _weight(f"{group.name}\0{key}\0{slot}"))
                chosen = replicas[slot]
            elif group.balance is None:
                chosen = [*replicas.values()][next(group.turns) % len(replicas)]
            else:
                chosen = group.balance(request, [self._load(group.name, number) for number in replicas.values()])
            if chosen not in replicas.values():
                raise ConfigError(f"balance of {group.name}: it chose {chosen!r}; there are {[*replicas.values()]}")
            if group.balance is not None:
                work = float(group.work(request))
                if not 0 <= work < math.inf:  # it would spoil the sums of all
                    raise ConfigError(f"work_fn of {group.name}: it returned {work}; it must be a number from 0 on")
                held.append((self._load(group.name, chosen), work))
            placement.update(dict.fromkeys(group.stages, chosen))
        for load, work in held:
            load.requests, load.work, load.placed = load.requests + 1, load.work + work, load.placed + 1
        if held:
            self._held[attempt_id] = held
        return placement

    def left(self, attempt_id: str) -> None:
        """Take in the end of an attempt."""
        for load, work in self._held.pop(attempt_id, ()):
            load.requests, load.work = load.requests - 1, load.work - work if load.requests > 1 else 0.0

    def _load(self, group: str, replica: int) -> Load:
        return self._loads.setdefault((group, replica), Load(replica))


def _weight(text: str) -> bytes:
    """Rendezvous hashing: when a replica goes, only the keys that it had move."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
