"""The bytes of bodies that all requests in progress hold together: a limit for each of them says nothing of their sum."""

from __future__ import annotations

from collections import Counter

from attrs import define, field

from omni_serve.errors import ApiError
from omni_serve.limits import Admission
from omni_serve.settings import Limits


@define(eq=False)
class BodyBudget:
    """Counts the bytes of bodies by key. A whole body fits in always, if there is no other.

    Attributes:
        held: bytes.
    """

    _admission: Admission
    _limits: Limits
    held: int = 0
    of_key: Counter[str] = field(factory=Counter)

    def check(self, key: str, size: int) -> None:
        """Raise ApiError 503 if there is no room for ``size`` bytes."""
        body = self._limits.body_mib * 2**20
        most = max(self._limits.bodies_mib * 2**20, body)
        of_key = max(most * self._admission.key_share, body)
        if self.held + size > most or self.of_key[key] + size > of_key:
            raise ApiError(
                503,
                "The bodies of requests in progress take as much memory as they may.",
                code="overloaded",
                retry_after=2,
            )


@define(eq=False)
class Held:
    """What one request holds of the budget."""

    _budget: BodyBudget
    key: str = ""
    size: int = 0

    def check(self, size: int) -> None:
        """Raise ApiError 503 if there is no room for a body that is about to come."""
        self._budget.check(self.key, size)

    def take(self, size: int) -> None:
        """Hold ``size`` bytes more. Raises ApiError 503."""
        self._budget.check(self.key, size)
        self._budget.held += size
        self._budget.of_key[self.key] += size
        self.size += size

    def give_back(self) -> None:
        """Hold nothing more."""
        self._budget.held -= self.size
        self._budget.of_key[self.key] -= self.size
        if not self._budget.of_key[self.key]:
            del self._budget.of_key[self.key]
        self.size = 0
