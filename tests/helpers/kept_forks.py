"""Keeps the fork server of a pipeline for the next one of the same test run, so that not every test imports PyTorch (2 s).

Tests of the server itself, and of what is left when a pipeline has ended, use the real one.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping
from types import SimpleNamespace

import pytest
from attrs import frozen

from omni_core.processes.process import interpreter, with_defaults
from omni_torch.processes.forks import server

_TEST = "PYTEST_CURRENT_TEST"


@frozen
class _Kept:
    process: subprocess.Popen[bytes]
    connection: socket.socket
    place: tuple[dict[str, str], str, list[str]]
    imported: set[str]


_kept: list[_Kept] = []
"""One at most."""


def kept_pids() -> set[int]:
    """Return the pid of the server that waits for the next pipeline."""
    return {each.process.pid for each in _kept}


def end_kept() -> None:
    """End the server that waits."""
    while _kept:
        old = _kept.pop()
        old.connection.close()
        old.process.kill()
        old.process.wait()


class KeptForkServer(server.ForkServer):
    """A server that is taken from the last pipeline, if it has the same environment and folder, and is left for the next."""

    def start(self, defaults: Mapping[str, str]) -> None:
        if self._connection is None and _kept:
            if (
                _kept[0].place == (_without_test(defaults), os.getcwd(), interpreter())
                and _kept[0].process.poll() is None
            ):
                old = _kept.pop()
                self._process, self._connection, self._place = old.process, old.connection, old.place
                self._imported = old.imported
                asyncio.get_running_loop().add_reader(old.connection, self._read)
            else:
                end_kept()
        super().start(defaults)

    def close(self) -> None:
        process, connection, place = self._process, self._connection, self._place
        in_main = threading.current_thread() is threading.main_thread()  # it ends with the thread that has started it
        if process is None or connection is None or place is None or not in_main or self._waiting or self._problem:
            super().close()
            return
        asyncio.get_running_loop().remove_reader(connection)
        self._connection = None
        end_kept()
        _kept.append(_Kept(process, connection, place, self._imported))


def _without_test(defaults: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of new processes without what pytest changes before every test."""
    return {name: value for name, value in with_defaults(defaults).items() if name != _TEST}


@pytest.fixture(autouse=True)
def kept_fork_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pipelines of this folder's tests share a fork server."""
    monkeypatch.setattr(server, "with_defaults", _without_test)
    monkeypatch.setattr("omni_core.machines.local.FORK_SERVER", SimpleNamespace(load=lambda: KeptForkServer))


@pytest.fixture(autouse=True, scope="session")
def no_server_is_left() -> Iterator[None]:
    yield
    end_kept()
