"""The relays of one process."""

from __future__ import annotations

import pytest

from omni_core.errors import RelayError
from omni_core.protocol.specs import RelaySpec
from omni_core.relay.base import RelayOptions
from omni_core.relay.table import Relays
from omni_relay_shm.relay import ShmRelay

SPEC = RelaySpec("omni_relay_shm.relay:ShmRelay", {"slot_size_mb": 1})


async def test_a_peer_is_reached_by_the_relay_of_its_edge() -> None:
    relays = Relays({"one": SPEC, "two": SPEC}, {"ipc://a": "one", "ipc://b": "two"})
    name, relay = relays.towards("ipc://b")
    assert (name, relays.named("two")) == ("two", relay)
    assert relays.device_towards("ipc://a") == "cpu"
    relays.close()


async def test_an_unreachable_peer_is_an_error_that_names_it() -> None:
    relays = Relays({}, {})
    with pytest.raises(RelayError, match="ipc://elsewhere"):
        relays.towards("ipc://elsewhere")
    with pytest.raises(RelayError, match="'shm', which this process was started without"):
        relays.named("shm")
    assert relays.device_towards("ipc://elsewhere") == "cpu"
    assert relays.statistics() == {}


async def test_statistics_are_added_up_and_cleanup_reaches_all() -> None:
    relays = Relays({"one": SPEC, "two": SPEC}, {"ipc://a": "one", "ipc://b": "two"})
    relays.open()
    for name in ("one", "two"):
        await relays.named(name).put_async(b"x" * 5000, "r")
    assert relays.statistics()["slots_in_use"] == 2
    relays.cleanup("r")
    assert relays.statistics() == {"bytes_in_use": 0, "slots_in_use": 0}
    relays.close()


async def test_a_peer_that_moves_is_reached_by_another_relay_which_is_built_then() -> None:
    relays = Relays({"near": SPEC}, {"ipc://a": "near"}, {"far": SPEC})
    relays.open()
    assert list(relays._relays) == ["near"]
    relays.place("ipc://a", "far")
    name, relay = relays.towards("ipc://a")
    assert (name, relay) == ("far", relays.named("far"))
    relays.place("ipc://a", None)
    with pytest.raises(RelayError, match="without a relay that reaches ipc://a"):
        relays.towards("ipc://a")
    relays.close()


class Sent(ShmRelay):
    """Records how it was opened."""

    def open(self, *, sends: bool) -> None:
        opened.append(sends)


opened: list[bool] = []


class Broken(Sent):
    def open(self, *, sends: bool) -> None:
        raise SystemExit("its library is missing; pip install it")

    def cleanup(self, request_id: str) -> None:
        raise SystemExit("never opened")

    close = statistics = cleanup  # type: ignore[assignment]


class Duck:
    """No subclass of Relay: its `open` is its own."""

    def __init__(self, options: object) -> None:
        pass

    def open(self) -> None:
        raise AssertionError


@pytest.mark.parametrize("towards", [{"ipc://a": "one"}, {}])
async def test_relays_are_opened_at_the_start_and_know_whether_they_send(towards: dict[str, str]) -> None:
    opened.clear()
    relays = Relays({"one": RelaySpec(f"{__name__}:Sent", {"slot_size_mb": 1})}, towards)
    relays.open()
    assert opened == [bool(towards)]
    assert relays.named("one") is relays.named("one")
    Relays({"duck": RelaySpec(f"{__name__}:Duck", {})}, {}).open()


async def test_a_relay_that_cannot_be_opened_is_found_at_the_start() -> None:
    relays = Relays({"one": RelaySpec(f"{__name__}:Broken", {})}, {})
    with pytest.raises(RelayError, match="the relay 'one' cannot work here: SystemExit: its library is missing; pip"):
        relays.open()
    relays.cleanup("r")
    relays.close()


async def test_a_relay_that_fails_to_clean_up_hurts_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    relays = Relays({"one": SPEC, "two": SPEC}, {"ipc://a": "one"})
    relays._relays["bad"] = Broken(RelayOptions())
    await relays.named("two").put_async(b"x" * 5000, "r")
    relays.cleanup("r")
    assert relays.statistics()["slots_in_use"] == 0
    relays.close()
    assert "`cleanup` of the relay 'bad' has failed: SystemExit: never opened" in caplog.text
