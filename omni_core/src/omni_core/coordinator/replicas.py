"""The choice of the replicas that serve a request: in turn, or the same one for equal keys while it lives."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from itertools import count

from attrs import field, frozen

from omni_core.protocol.messages import OmniRequest


@frozen
class ReplicatedGroup:
    """A process group of which there are several: its stages, and the metadata key that keeps requests together."""

    name: str
    stages: list[str]
    affinity_key: str | None = None
    turns: count[int] = field(factory=count)


class ReplicaChoice:
    """Chooses for every replicated group. Called by the coordinator once per attempt, so that all senders agree.

    Args:
        groups: the replicated process groups.
        available: the replicas of a group that may be chosen now. Where there are none, the first is chosen: a request
            that never reaches the group is served, and one that does fails there, with the reason of the failed stage.
    """

    def __init__(self, groups: list[ReplicatedGroup], available: Callable[[str], list[int]]) -> None:
        self._groups = groups
        self._available = available

    def __call__(self, request: OmniRequest) -> dict[str, int]:
        """Return the replica number of every replicated stage."""
        placement = {}
        for group in self._groups:
            replicas = self._available(group.name) or [0]
            key = request.metadata.get(group.affinity_key) if group.affinity_key is not None else None
            if key is None:
                chosen = replicas[next(group.turns) % len(replicas)]
            else:
                chosen = max(replicas, key=lambda replica: _weight(f"{group.name}\0{key}\0{replica}"))
            placement.update(dict.fromkeys(group.stages, chosen))
        return placement


def _weight(text: str) -> bytes:
    """Rendezvous hashing: when a replica goes, only the keys that it had move."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
