"""A launcher that starts the host servers of its run by commands, and again when they are gone."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import suppress

from omni_core.api import ConfigError, Grant, LauncherOptions, Need, StartupError, did_you_mean
from omni_core.runtime_api import join_address
from omni_launchers.hosts.curve import SILENCE_SECONDS, CurveKeys
from omni_launchers.hosts.host import Host
from omni_launchers.hosts.launcher import JoinedHosts
from omni_launchers.remote.server_command import ServerCommand, ServerEndedError

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 8.0
"""Seconds between two attempts to start the server of a host that is lost: the first pause, doubled up to the longest."""


class StartedHosts(JoinedHosts):
    """Runs ``omni hosts join`` on each host of the config by a command, with keys that are made for the run.

    The keys go over the command's standard input, which then stays open: its end ends the server there, whatever becomes of this side.

    Args:
        address: of this machine, as the hosts reach it; by default ``endpoints.address``.
        silence: seconds without a sign of a host after which it counts as lost.
    """

    def __init__(self, options: LauncherOptions, address: str | None = None, silence: float = SILENCE_SECONDS) -> None:
        endpoints, name = options.config.endpoints, options.config.resolved_launcher.name
        for field, value in (("accept", endpoints.accept), ("key_file", endpoints.key_file)):
            if value is not None:
                raise ConfigError(
                    f"endpoints.{field}: no effect with the launcher {name!r}, which starts its hosts with keys of its own; leave it out"
                )
        for host in options.config.hosts:
            raise ConfigError(f"hosts.{host}: no effect with the launcher {name!r}; leave it out")
        address = endpoints.address or address
        if address is None:
            raise ConfigError(
                f"endpoints.address: required by the launcher {name!r}: the address by which its hosts reach this one"
            )
        super().__init__(options, CurveKeys.new(), address, silence=silence)
        self._commands = {name: ServerCommand(name, self.command(name), self._keys.text()) for name in self._hosts}
        self._starting = {name: asyncio.Lock() for name in self._hosts}

    @staticmethod
    def check_names(options: LauncherOptions, **settings: Iterable[str]) -> None:
        """Raise a ConfigError for a host in a setting on which no stage runs."""
        known = sorted({name for stage in options.config.stages for name in stage.hosts})
        for setting, names in settings.items():
            for name in names:
                if name not in known:
                    hint = did_you_mean(name, known, listing="there are")
                    raise ConfigError(f"launcher.settings.{setting}.{name}: no stage runs on such a host{hint}")

    async def add(self, need: Need) -> None:
        """Take a unit on a host whose server was started, or on this machine."""
        if need.host is not None and need.host not in self._hosts:
            raise StartupError(
                f"{need.unit}: no server was started on {need.host!r}{did_you_mean(need.host, self._hosts)}"
            )
        await super().add(need)

    @abstractmethod
    def command(self, host: str) -> Sequence[str]:
        """Return the command that runs :meth:`join` on a host, with this process's standard input as its own."""

    def join(self, host: str, address: str | None = None) -> list[str]:
        """Return the arguments of ``omni`` on a host. ``address``: of the host; by default that towards this machine."""
        listen = [] if address is None else ["--listen", join_address(address, 0)]
        return ["hosts", "join", self.address, "--key", "-", "--as", host, *listen]

    def missing(self, name: str) -> str:
        return "its server has not been started"

    async def acquire(self, needs: Sequence[Need]) -> None:
        """Start every host. Raises StartupError: one cannot be started."""
        self._claim(needs)
        starting = [asyncio.ensure_future(self._start(host)) for host in self._hosts.values()]
        try:
            await asyncio.gather(*starting)
        finally:
            for each in starting:
                each.cancel()
            await asyncio.gather(*starting, return_exceptions=True)

    async def place(self, unit: str) -> Grant:
        name = self._needs[unit].host
        if name is None:
            return Grant(self.here)
        host, pause = self._hosts[name], FIRST_PAUSE
        async with self._starting[name]:
            while not host.is_open:
                try:
                    await self._start(host)
                except ServerEndedError as error:
                    host.problem = str(error)
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, LONGEST_PAUSE)
        return Grant(await host.machine())

    async def _start(self, host: Host) -> None:
        """Start the server of a host and open the run there.

        Raises:
            StartupError: the host refuses the run. ServerEndedError: the command has ended instead.
        """
        command = self._commands[host.name]
        host.address = None
        await command.start()
        opening, ended = asyncio.ensure_future(host.machine()), asyncio.ensure_future(command.ended())
        try:
            await asyncio.wait([opening, ended], return_when=asyncio.FIRST_COMPLETED)
            if not opening.done():
                raise ended.result()
            await opening
        finally:
            opening.cancel()
            ended.cancel()
            if not host.is_open:
                await command.stop()

    def _lost(self, endpoint: str, reason: str) -> None:
        """End the server of a host that is lost: what starts there next is another one."""
        super()._lost(endpoint, reason)
        for host in self._hosts.values():
            if host.endpoint == endpoint and not host.is_open:
                host.address = None
                self._commands[host.name].abandon()

    async def release(self) -> None:
        if self._is_released:
            return
        await super().release()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*(command.stop() for command in self._commands.values()))
