"""A launcher that starts one unit on this machine and on another in turn."""

from __future__ import annotations

from collections import Counter

from omni_core.machines import Grant, LauncherOptions
from omni_launchers.hosts.launcher import HostsLauncher


class Moving(HostsLauncher):
    anywhere = True

    def __init__(self, options: LauncherOptions) -> None:
        super().__init__(options)
        self._there = self._hosts["b"] = self._host("b")
        self._launches: Counter[str] = Counter()

    async def place(self, unit: str) -> Grant:
        self._launches[unit] += 1
        is_there = unit == "total" and self._launches[unit] % 2 == 0
        return Grant(await self._there.machine() if is_there else self.here)
