"""Operations with replaceable implementations: a reference in PyTorch, and the installed kernels that may run in its place.

An :class:`Operation` is called like the function that it wraps; the caller does not know which implementation runs. The launch
spec of a process lists the installed kernels; the choice is made once per operation, kind of device and dtype.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from omni_core.api import KernelComponent, PluginError, load
from omni_core.runtime_api import KernelSpec, works
from omni_torch.operations.installed_kernels import installed, on_install

if TYPE_CHECKING:
    import torch

    from omni_torch.operations.comparison import Comparison

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")
Examples = Callable[["torch.dtype", "torch.Generator"], list[tuple[Any, ...]]]


class Operation(Generic[P, R]):
    """A function of tensors, the first of which says the device and the dtype.

    Attributes:
        name: as kernels name it.
        reference: the implementation in PyTorch, right on every device and in float64.
        writes: names of the arguments that it changes, which are outputs like those that it returns. It changes no others.
        examples: arguments to compare implementations on: ``(dtype, generator) -> [arguments, ...]``, on the generator's device.
    """

    def __init__(self, name: str, reference: Callable[P, R], examples: Examples, writes: Sequence[str] = ()) -> None:
        self.name, self.reference, self.examples, self.writes = name, reference, examples, frozenset(writes)
        self.__doc__ = reference.__doc__
        self._chosen: dict[tuple[str, torch.dtype], Callable[P, R]] = {}
        on_install(self.forget)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if not installed(self.name):
            return self.reference(*args, **kwargs)
        first: Any = args[0]
        key = first.device.type, first.dtype
        chosen = self._chosen.get(key)
        if chosen is None:
            chosen = self._chosen[key] = self.choose(*key)
        try:
            return chosen(*args, **kwargs)
        except Exception as error:
            spec = next((each for each in installed(self.name) if load(each.target) is chosen), None)
            if spec is None:
                raise
            raise PluginError(
                f"kernel {spec.name!r} of plugin {spec.plugin} failed in operation {self.name!r}: {type(error).__name__}: "
                f"{error}; OMNI_DISABLE_PLUGINS={spec.plugin.split()[0]} computes without it"
            ) from error

    def choose(self, device: str, dtype: torch.dtype) -> Callable[P, R]:
        """Return the implementation for a kind of device and a dtype: the best kernel that can work here, else the reference."""
        name = str(dtype).removeprefix("torch.")
        for spec in installed(self.name):
            if spec.device == device and (not spec.dtypes or name in spec.dtypes):
                try:
                    reason = _problem(spec)
                    if reason is None:
                        kernel: Callable[P, R] = load(spec.target)
                        return kernel
                    logger.info("kernel %s of %s is not used: %s", spec.name, self.name, reason)
                except Exception as error:
                    logger.warning(
                        "kernel %s of %s is not used, because %s: %s", spec.name, self.name, type(error).__name__, error
                    )
        return self.reference

    def replaced(self, device: str, dtype: torch.dtype) -> bool:
        """Return True if calls for this kind of device and dtype run a kernel. A caller that has a faster way than the reference
        asks before it calls.
        """
        if not installed(self.name):
            return False
        key = device, dtype
        if key not in self._chosen:
            self._chosen[key] = self.choose(*key)
        return self._chosen[key] is not self.reference

    def compare(self, component: KernelComponent) -> Iterator[Comparison]:
        """Compare the kernel of a component with this operation's reference (:func:`omni_torch.operations.comparison.compare`)."""
        from omni_torch.operations.comparison import compare

        return compare(self, component)

    def forget(self) -> None:
        """Choose anew at the next call."""
        self._chosen.clear()


def _problem(spec: KernelSpec) -> str | None:
    missing = [name for name in spec.requires if find_spec(name) is None]
    if missing:
        return f"module {missing[0]!r} is not installed"
    answer: str | None = None if spec.probe is None else load(spec.probe)()
    return None if works(answer) else answer


def operation(
    name: str, *, examples: Examples, writes: Sequence[str] = ()
) -> Callable[[Callable[P, R]], Operation[P, R]]:
    """Make the decorated function the reference of the operation ``name``; calls of it run the operation."""

    def wrap(reference: Callable[P, R]) -> Operation[P, R]:
        return Operation(name, reference, examples, writes)

    return wrap
