"""The relay contract's own code: options, settings, and errors of missing capabilities."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import field, frozen
from attrs.validators import in_

from omni_core.errors import ConfigError, RelayError
from omni_core.relay import Relay, RelayOperation, RelayOptions


@frozen
class Settings:
    protocol: str = field(default="tcp", validator=in_(("tcp", "rdma")))


class Minimal(Relay):
    """A relay with the required methods only."""

    async def put_async(
        self, tensor: Any, request_id: str | None = None, dst_rank: int | None = None
    ) -> RelayOperation:
        raise NotImplementedError

    async def get_async(self, metadata: Any, dest_tensor: Any, request_id: str | None = None) -> RelayOperation:
        raise NotImplementedError

    def cleanup(self, request_id: str) -> None:
        return

    def close(self) -> None:
        return


def test_the_pool_is_as_large_as_its_credits() -> None:
    assert RelayOptions(slot_size_mb=3, credits=5).pool_bytes == 15 * 2**20


def test_settings_become_the_backends_class() -> None:
    assert RelayOptions(settings={"protocol": "rdma"}).read_settings(Settings) == Settings("rdma")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"protocl": "tcp"}, r"relay\.settings\.protocl: .*did you mean 'protocol'"),
        ({"x": 1}, r"relay\.settings\.x: .*protocol"),
        ({"protocol": "udp"}, r"relay\.settings: .*protocol"),
    ],
)
def test_settings_that_are_not_valid_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RelayOptions(settings=settings).read_settings(Settings)


async def test_capabilities_that_a_relay_lacks_are_errors_that_say_so() -> None:
    relay = Minimal()
    assert (relay.has_empty, relay.has_view, relay.bytes_outlive_sender) == (False, False, False)
    assert relay.reserve(10) is None
    assert relay.statistics() == {}
    with pytest.raises(RelayError, match=r"Minimal has no empty\(\)"):
        await relay.empty(10)
    with pytest.raises(RelayError, match=r"no get_view\(\)"):
        relay.get_view(None)
    with pytest.raises(RelayError, match=r"no reserve\(\)"):
        relay.commit(b"")
