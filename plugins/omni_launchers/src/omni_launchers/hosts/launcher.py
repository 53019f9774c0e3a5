"""The launcher of configs with ``hosts``: hosts that serve are dialled, and others join."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from attrs import field, frozen
from attrs.validators import ge, le

from omni_core.api import ConfigError, Grant, Launcher, LauncherOptions, LocalMachine, Need, StartupError, did_you_mean
from omni_core.runtime_api import ControlPlane, Sparing, split_address
from omni_launchers.hosts import messages, versions
from omni_launchers.hosts.curve import (
    LONGEST_SILENCE_SECONDS,
    SILENCE_SECONDS,
    CurveKeys,
    CurveNetwork,
    open_listener,
    spec_of,
)
from omni_launchers.hosts.host import Host

logger = logging.getLogger(__name__)
logger.addFilter(Sparing())

_CLOSE_SECONDS = 1.0
"""The time that hosts have to hear of the end of a run."""


class JoinedHosts(Launcher):
    """Places the units of each ``host`` there, and the others on the runner's machine: what launchers of hosts share.

    A host with an address is dialled and must be there at the start. One without joins, and is waited for; so is any that was lost.

    Args:
        keys: of the run.
        address: of this machine, as the hosts reach it.
        accept: ``tcp://HOST:PORT``, where hosts join; ``None``: at a free port of ``address``.
        addresses: of hosts to dial, by name.
        refusal: the answer to a host that wants to join; empty: hosts may.
        silence: seconds without a sign of a host, or of a process on it, after which it counts as lost.
    """

    def __init__(
        self,
        options: LauncherOptions,
        keys: CurveKeys,
        address: str,
        accept: str | None = None,
        addresses: Mapping[str, str] | None = None,
        refusal: str = "",
        silence: float = SILENCE_SECONDS,
    ) -> None:
        config = options.config
        self._keys, self._silence = keys, silence
        self._stages = {stage.name: stage.hosts for stage in config.stages}
        self._addresses, self._run = dict(addresses or {}), options.run
        self._needs: dict[str, Need] = {}
        self._refusal = refusal
        self._listener: socket.socket | None = open_listener(address)  # the coordinator's
        try:
            own = open_listener(*split_address(accept)) if accept else open_listener(address)
        except ConfigError as error:
            self._listener.close()
            raise ConfigError(f"endpoints.accept: {error}" if accept else str(error)) from None
        network = CurveNetwork(keys, own, silence)
        self.address = network.address
        """The ``tcp://`` address at which hosts join."""
        self._control = ControlPlane(
            f"ipc://{options.directory}/hosts.sock", self._on_message, network=network, on_lost=self._lost
        )
        self._control.listen()
        self._is_released = False
        self.here: LocalMachine = LocalMachine(options.directory, address, lambda: open_listener(address))
        self.network_spec = spec_of(keys, silence)
        self._versions, self._digest = versions.installed(), versions.digest(config)
        self._hosts = {
            name: self._host(name) for name in sorted({name for stage in config.stages for name in stage.hosts})
        }

    def _host(self, name: str) -> Host:
        run, address = self._run, self._addresses.get(name)
        advice = f"is `omni hosts serve --listen {address} --key FILE` running there, with the same key?"
        of_run = (self._control, self.address, self._versions, self._digest)
        if address is None:
            return Host(run, name, *of_run, missing=self.missing(name), silence=self._silence)
        return Host(run, name, *of_run, address, advice, silence=self._silence)

    def missing(self, name: str) -> str:
        """Return what a host is called in messages before it has joined."""
        return f"it has not joined; there: omni hosts join {self.address} --key FILE --as {name}"

    def network(self) -> CurveNetwork:
        listener, self._listener = self._listener, None
        return CurveNetwork(self._keys, listener, self._silence)

    async def acquire(self, needs: Sequence[Need]) -> None:
        self._claim(needs)
        opening = [self._open(host) for host in self._hosts.values() if host.address is not None]
        for result in await asyncio.gather(*opening, return_exceptions=True):
            if result is not None:
                raise result
        awaited = [host.name for host in self._hosts.values() if not host.is_open]
        if awaited:
            names = ", ".join(awaited)
            logger.warning("waiting for hosts to join at %s: %s (config %s)", self.address, names, self._digest)

    def _claim(self, needs: Sequence[Need]) -> None:
        """Keep the needs. Raises StartupError: one is for a host that no stage has."""
        self._needs = {need.unit: need for need in needs}
        for need in needs:
            if need.host is not None and need.host not in self._hosts:
                raise StartupError(
                    f"{need.unit}: no host is called {need.host!r}{did_you_mean(need.host, self._hosts)}"
                )

    @staticmethod
    async def _open(host: Host) -> None:
        try:
            await host.open()
        except ConnectionError as error:
            raise StartupError(f"hosts.{host.name}: {error}") from None

    async def add(self, need: Need) -> None:
        """Take a unit. Its host may be a further one of ``hosts``, or one that joins."""
        name = need.host
        if name is not None and name not in self._hosts:
            if name not in self._addresses and self._refusal:
                known = {*self._hosts, *self._addresses}
                raise StartupError(f"{need.unit}: no host is called {name!r}{did_you_mean(name, sorted(known))}")
            host = self._hosts[name] = self._host(name)
            if host.address is None:
                logger.warning("waiting for host %r to join at %s (config %s)", name, self.address, self._digest)
            else:
                try:
                    await self._open(host)
                except BaseException:
                    del self._hosts[name]
                    raise
        self._needs[need.unit] = need
        if name is not None:
            for stage in need.stages:  # which `omni hosts join --stage` may name
                self._stages[stage] = list(dict.fromkeys([*self._stages.get(stage, []), name]))

    async def remove(self, unit: str) -> None:
        """Forget a unit. Its host stays open for others."""
        self._needs.pop(unit, None)

    async def place(self, unit: str) -> Grant:
        name = self._needs[unit].host
        return Grant(self.here if name is None else await self._hosts[name].machine())

    def waits_for(self, unit: str) -> str:
        host = self._hosts.get(self._needs[unit].host or "") if unit in self._needs else None
        return f"host {host.name!r} ({host.problem})" if host is not None and host.problem else ""

    def _on_message(self, message: Any) -> None:
        if isinstance(message, get_args(messages.HostMessage)):
            host = self._hosts.get(message.run.split("~", 2)[2])
            if host is not None:
                host.handle(message)
        elif isinstance(message, messages.JoinRun):
            self._join(message)
        else:
            logger.error("a launcher cannot handle a %s", type(message).__name__)

    def _join(self, message: messages.JoinRun) -> None:
        host, problem, final = self._joining(message)
        endpoint = f"joining://{message.address}"
        self._control.peer_is_up(endpoint, message.address)
        self._control.tell(endpoint, messages.JoinAnswer(host.name if host is not None else "", problem, final))
        if host is not None and not problem:
            logger.warning("host %r joins from %s", host.name, message.address)
            host.is_at(message.address)

    def _joining(self, message: messages.JoinRun) -> tuple[Host | None, str, bool]:
        """Return the host that a server joins as, or what hinders that, and if that is final."""
        if self._refusal:
            return None, self._refusal, True
        name = message.host
        if message.stage:
            if message.stage not in self._stages:
                return None, f"no stage is called {message.stage!r}{did_you_mean(message.stage, self._stages)}", True
            found = self._stages[message.stage]
            if not found:
                problem = f"stage {message.stage!r} runs on the host of the runner; set its `host` there to any name"
                return None, problem, True
            name = next((each for each in found if not self._hosts[each].is_open), found[0])
        host = self._hosts.get(name)
        if host is None:
            hint = did_you_mean(name, self._hosts) or f"; there are: {', '.join(self._hosts)}"
            return None, f"no stage runs on a host called {name!r}{hint}", True
        if problem := versions.difference(message.versions, self._versions):
            return host, problem, True
        if message.digest and message.digest != self._digest:
            return host, f"its config has the digest {self._digest}, not {message.digest}", True
        if host.is_open and host.address != message.address:
            return host, f"host {name!r} is there already, at {host.address}", False
        return host, "", False

    def _lost(self, endpoint: str, reason: str) -> None:
        if endpoint.startswith("joining://"):
            self._control.drop(endpoint)
        for host in self._hosts.values():
            if host.endpoint == endpoint:
                host.lost(reason)

    async def release(self) -> None:
        """End the fork server. Tell every other host that the run is over, and wait briefly until it has heard: closing a socket
        drops what it holds.
        """
        if self._is_released:
            return
        self._is_released = True
        self.here.close()
        closing = [each for host in self._hosts.values() if (each := host.close()) is not None]
        if closing:
            await asyncio.wait(closing, timeout=_CLOSE_SECONDS)
        self._control.close()
        if self._listener is not None:
            self._listener.close()


@frozen
class HostsSettings:
    """``launcher.settings`` of the launcher ``hosts``.

    Attributes:
        silence: seconds without a sign of a host, or of a process on it, after which it counts as lost. TCP repeats what was lost at pauses
            that double, so a network that is cut for half of it loses nothing.
    """

    silence: float = field(default=SILENCE_SECONDS, converter=float, validator=[ge(1.0), le(LONGEST_SILENCE_SECONDS)])


class HostsLauncher(JoinedHosts):
    """The launcher ``hosts``: dials the hosts of the config's ``hosts``; others join."""

    def __init__(self, options: LauncherOptions) -> None:
        silence = options.read_settings(HostsSettings).silence
        config, endpoints = options.config, options.config.endpoints
        address = endpoints.address or (split_address(endpoints.accept)[0] if endpoints.accept else None)
        if address is None or endpoints.key_file is None:
            raise ConfigError("endpoints.address and endpoints.key_file: required by the launcher 'hosts'")
        keys = CurveKeys.read(endpoints.key_file)
        refusal = "" if endpoints.accept else "this run accepts no hosts: start it with --accept (endpoints.accept)"
        super().__init__(options, keys, address, endpoints.accept, config.hosts, refusal, silence)
