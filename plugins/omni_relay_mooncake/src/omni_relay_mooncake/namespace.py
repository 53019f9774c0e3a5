"""Runs calls inside a network namespace. A socket and a new thread inherit the namespace of the thread that creates
them.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from omni_core.api import RelayError

_CLONE_NEWNET = 0x40000000
_NAMED = Path("/run/netns")


class NetworkNamespace:
    """Open the namespace of a name (``ip netns add NAME``) or of a path.

    Raises:
        RelayError: it does not exist, or this process may not open it.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        path = Path(name) if "/" in name else _NAMED / name
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise RelayError(
                f"relay.settings.network_namespace: {path} cannot be opened ({error.strerror}); make it with: "
                f"ip netns add {name} && ip -n {name} link set lo up"
            ) from error
        self._libc = ctypes.CDLL(None, use_errno=True)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Enter the namespace in this thread for the duration of the context."""
        before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._enter(self._descriptor)
            try:
                yield
            finally:
                self._enter(before)
        finally:
            os.close(before)

    def _enter(self, descriptor: int) -> None:
        if self._libc.setns(descriptor, _CLONE_NEWNET) != 0:
            reason = os.strerror(ctypes.get_errno())
            raise RelayError(
                f"the network namespace {self._name!r} cannot be entered ({reason}): that takes CAP_SYS_ADMIN. "
                f"Without it, start the whole pipeline inside: ip netns exec {self._name} omni ..."
            )

    def close(self) -> None:
        os.close(self._descriptor)
