"""A pull relay whose engine does not start."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from omni_core.errors import RelayError
from omni_core.relay.base import RelayOptions
from omni_relay_kit.memory import Memory
from omni_relay_kit.pull_relay import PulledRelay, Read


class NoEngine(PulledRelay):
    """Counts the attempts to open it."""

    opened = 0

    def open_engine(self) -> None:
        self.opened += 1
        raise RelayError("no engine; pip install one")

    def register(self, memory: Memory) -> None:
        raise AssertionError

    def peer_address(self) -> list[Any]:
        raise AssertionError

    def begin_read(self, peer: Any, remote: Any, local: Memory, offset: int, nbytes: int, key: int) -> Any:
        raise AssertionError

    def is_read(self, read: Read) -> bool:
        raise AssertionError

    def acknowledged(self) -> Iterable[int]:
        raise AssertionError

    def close_engine(self) -> None:
        raise AssertionError


@pytest.mark.parametrize("sends", [True, False])
async def test_an_engine_that_does_not_start_is_found_when_the_relay_is_opened(sends: bool) -> None:
    relay = NoEngine(RelayOptions(slot_size_mb=1))
    with pytest.raises(RelayError, match="no engine; pip install one"):
        relay.open(sends=sends)
    relay.close()


async def test_cleanup_and_close_open_nothing_and_a_failed_put_holds_nothing() -> None:
    relay = NoEngine(RelayOptions(slot_size_mb=1))
    for put in (lambda: relay.reserve(100, "r"), lambda: relay.empty(100, "r"), lambda: relay.put_async(b"x", "r")):
        with pytest.raises(RelayError, match="no engine"):
            made = put()
            await made  # type: ignore[misc]
    assert relay.opened == 3
    assert relay.statistics() == {"bytes_in_use": 0.0, "slots_in_use": 0.0}
    for _ in range(2):
        relay.cleanup("r")
    relay.close()
    relay.cleanup("r")
    assert relay.opened == 3
