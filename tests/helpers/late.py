"""A launcher of hosts whose connections take a while to be made, as between machines that are far apart."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from attrs import evolve

from omni_core.machines import LauncherOptions
from omni_launchers.hosts.curve import CurveLink, CurveNetwork, of_process
from omni_launchers.hosts.launcher import HostsLauncher

SECONDS = 0.3


class LateLink:
    """A link that takes nothing in its first moments."""

    def __init__(self, link: CurveLink) -> None:
        self._link = link
        self._from = time.monotonic() + SECONDS

    def write(self, parts: Sequence[memoryview]) -> int:
        if time.monotonic() < self._from:
            raise BlockingIOError
        return self._link.write(parts)

    def when_writable(self, callback: Callable[[], None] | None) -> None:
        self._link.when_writable(callback)

    def close(self) -> None:
        self._link.close()


def late(options: dict[str, str], listener: int | None) -> CurveNetwork:
    network: Any = of_process(options, listener)
    opened = network.open
    network.open = lambda address, on_lost: LateLink(opened(address, on_lost))
    made: CurveNetwork = network
    return made


class Late(HostsLauncher):
    def __init__(self, options: LauncherOptions) -> None:
        super().__init__(options)
        assert self.network_spec is not None
        self.network_spec = evolve(self.network_spec, target="late:late")
