"""Earlier answers by id: chats refer to spoken ones by ``{"audio": {"id": ...}}``, responses to items by ``item_reference``."""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict

from attrs import define, field


@define
class EarlierAnswers:
    """Keeps texts for ``seconds``, at most ``most`` of them; each is readable with the key that it was made for.

    The pipeline reads its own spoken answers as text, so that the sound need not be kept.
    """

    seconds: float
    most: int
    _kept: OrderedDict[str, tuple[str, str, float]] = field(factory=OrderedDict, init=False)

    def begin(self) -> tuple[str, int]:
        """Return the id of a new spoken answer, and the Unix time until which it can be used."""
        return f"audio_{secrets.token_hex(12)}", int(time.time() + self.seconds)

    def keep(self, identity: str, owner: str, text: str) -> None:
        """Keep the text of a finished answer."""
        now = time.time()
        self._kept[identity] = (owner, text, now + self.seconds)
        while self._kept and (len(self._kept) > self.most or next(iter(self._kept.values()))[2] <= now):
            self._kept.popitem(last=False)

    def find(self, identity: str, owner: str) -> str | None:
        """Return a text; ``None`` if there is none of this id for this owner, or it has expired."""
        whose, text, until = self._kept.get(identity, ("", "", 0.0))
        return text if whose == owner and until > time.time() else None

    def clear(self) -> int:
        """Forget all; return how many there were."""
        count = len(self._kept)
        self._kept.clear()
        return count
