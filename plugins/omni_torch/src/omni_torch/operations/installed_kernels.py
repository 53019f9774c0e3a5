"""The kernels of this process, by operation, as its launch spec lists them. Imports no torch.

The core only carries the list. ``omni_torch.operations.kernels`` defines operations and chooses among their kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from omni_core.runtime_api import KernelSpec

_installed: dict[str, list[KernelSpec]] = {}
_listeners: list[Callable[[], None]] = []


def install(kernels: Mapping[str, Sequence[KernelSpec]]) -> None:
    """Replace the kernels of this process, by operation, and tell every listener."""
    _installed.clear()
    for name, specs in kernels.items():
        _installed[name] = sorted(specs, key=lambda spec: (-spec.priority, spec.name))
    for listener in _listeners:
        listener()


def installed(operation: str) -> Sequence[KernelSpec]:
    """Return the kernels of an operation, the highest priority first; empty if there are none."""
    return _installed.get(operation, ())


def on_install(listener: Callable[[], None]) -> None:
    """Call ``listener`` whenever the kernels of this process are replaced."""
    _listeners.append(listener)
