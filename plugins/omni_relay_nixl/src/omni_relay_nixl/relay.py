"""The NIXL relay: remote reads through UCX, or another backend of NIXL's, from the sender's registered pool.

The metadata of an agent travels with the metadata of a put, 500 bytes, and is loaded once per peer. NIXL's progress
thread is off, because it would use a core per idle agent. A reader rings the doorbell of a sender on its own host
instead.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
from collections.abc import Iterator
from typing import Any

from attrs import field, frozen
from attrs.validators import instance_of

from omni_core.api import PeerDiedError, RelayError, RelayOptions
from omni_relay_kit.liveness import Incarnation
from omni_relay_kit.memory import Memory
from omni_relay_kit.pull_relay import PulledRelay, Read
from omni_relay_nixl.doorbell import Doorbell
from omni_relay_nixl.plugin import BUILDS, NOT_INSTALLED

_KEY_BYTES = 8

_ROUNDS = 20
"""Doorbell rounds between two processes for one read; after them only the poller drives a long read."""


@frozen
class NixlSettings:
    """``relay.settings`` of the nixl relay.

    Attributes:
        backend: NIXL's backend that moves the bytes.
    """

    backend: str = field(default="UCX", validator=instance_of(str))


class NixlRelay(PulledRelay):
    """See the module."""

    eager_seconds = 0.002

    def __init__(self, options: RelayOptions) -> None:
        super().__init__(options)
        self._settings = options.read_settings(NixlSettings)
        self._name = f"{options.namespace}-{options.owner}-{os.getpid()}-{id(self):x}"
        self._incarnation = Incarnation.of_this_process()
        self._agent: Any = None
        self._registered: list[Any] = []
        self._metadata: bytes | None = None
        self._peers: dict[str, str] = {}
        self._bell: Doorbell | None = None
        self._rounds: dict[str, int] = {}

    def open_engine(self) -> None:
        api = _nixl()
        self._bell = Doorbell(self.options.directory, f"nixl-{self.token.hex()[:16]}.bell", self.look, self._answered)
        logging.getLogger("nixl").setLevel(logging.WARNING)
        backend = self._settings.backend
        try:
            self._agent = api.nixl_agent(
                self._name, api.nixl_agent_config(enable_prog_thread=False, backends=[backend])
            )
        except Exception as error:
            raise RelayError(f"NIXL cannot start its backend {backend}: {error}") from error
        if backend not in self._agent.backends:
            offered = ", ".join(self._agent.get_plugin_list())
            raise RelayError(f"relay.settings.backend: this NIXL has no backend {backend!r}; it has: {offered}")

    def register(self, memory: Memory) -> None:
        kind, device = _place(memory.device)
        try:
            region = self._agent.register_memory([(memory.address, memory.size, device, "")], kind)
        except Exception as error:
            raise RelayError(
                f"NIXL cannot register {memory.size >> 20} MiB on {memory.device} ({error}); lower relay.slot_size_mb or "
                "relay.credits, or raise the limit on locked memory (ulimit -l)"
            ) from error
        self._registered.append(region)
        self._metadata = None

    def peer_address(self) -> list[Any]:
        if self._metadata is None:
            self._metadata = self._agent.get_agent_metadata()
        assert self._bell is not None
        return [self._name, self._incarnation.plain(), self._metadata, self._bell.path]

    def begin_read(self, peer: list[Any], remote: list[Any], local: Memory, offset: int, nbytes: int, key: int) -> Any:
        name, incarnation, metadata, bell = peer
        agent = self._agent
        try:
            if name not in self._peers:
                Incarnation(*incarnation).check(name)
                self._peers[name] = _text(agent.add_remote_agent(metadata))
            here, device = _place(local.device)
            mine = agent.get_xfer_descs([(local.address + offset, nbytes, device)], here)
            there, device = _place(remote[1])
            theirs = agent.get_xfer_descs([(remote[0], nbytes, device)], there)
            handle = agent.initialize_xfer("READ", mine, theirs, self._peers[name], key.to_bytes(_KEY_BYTES, "little"))
            if agent.transfer(handle) == "ERR":
                raise RelayError(f"NIXL cannot read from {name}")
        except RelayError:
            raise
        except Exception as error:
            raise self._failure(name, error) from error
        if Incarnation(*incarnation).is_here:
            self._rounds[bell] = _ROUNDS
            self._ring(bell, tell=True)
        else:
            self.hurry()
        return handle

    def _ring(self, bell: str, *, tell: bool) -> None:
        assert self._bell is not None
        self._bell.ring(bell, tell=tell)

    def _answered(self, bell: str) -> None:
        """Handle a peer's answer: poll too, and repeat while a read makes progress."""
        self.look()
        left = self._rounds.pop(bell, 0)
        if left and any(read.peer[3] == bell for read in self.reads):
            self._rounds[bell] = left - 1
            self._ring(bell, tell=True)

    def acknowledge(self, read: Read) -> None:
        """Ask the peer to poll, because the acknowledgement travels with the read."""
        self._ring(read.peer[3], tell=False)

    def is_read(self, read: Read) -> bool:
        name, incarnation, _, _ = read.peer
        try:
            state = self._agent.check_xfer_state(read.handle)
        except Exception as error:
            raise self._failure(name, error) from error
        if state == "PROC":
            if read.is_late:
                Incarnation(*incarnation).check(name)
            return False
        if state != "DONE":
            raise self._failure(name, RuntimeError(f"the state of the read is {state}"))
        return True

    def give_up(self, read: Read) -> bool:
        try:
            read.handle.release()
        except Exception:  # it is being cancelled
            return False
        return True

    def acknowledged(self) -> Iterator[int]:
        for notices in self._agent.get_new_notifs().values():
            for notice in notices:
                yield int.from_bytes(notice, "little")

    def close_engine(self) -> None:
        for region in self._registered:
            with contextlib.suppress(Exception):
                self._agent.deregister_memory(region)
        self._registered.clear()
        self._agent = None
        if self._bell is not None:
            self._bell.close()

    def _failure(self, name: str, error: Exception) -> RelayError:
        """Return the error of a read from an agent. A dead agent is removed."""
        if "DISCONNECT" not in str(error).upper() and "DISCONNECT" not in type(error).__name__.upper():
            return RelayError(f"NIXL cannot read from {name}: {type(error).__name__}: {error}")
        with contextlib.suppress(Exception):
            self._agent.remove_remote_agent(self._peers.pop(name, name))
        return PeerDiedError(f"{name}, which held the bytes, has ended: {error}")


def _nixl() -> Any:
    """Import NIXL's Python interface, of whichever build is installed."""
    for build in BUILDS:
        with contextlib.suppress(ImportError):
            return importlib.import_module(f"{build}._api")
    raise RelayError(NOT_INSTALLED)


def _place(device: str) -> tuple[str, int]:
    """Return NIXL's name for a kind of memory, and its device's number."""
    return ("DRAM", 0) if device == "cpu" else ("VRAM", int(device.partition(":")[2] or 0))


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name
