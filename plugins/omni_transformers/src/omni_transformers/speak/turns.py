"""Turns and random numbers of a request, where a model's own code draws from the global generators and calls nobody back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

import torch
from transformers.generation import BaseStreamer

from omni_transformers.calls.lines import in_turns

_here = threading.local()
_watched: WeakSet[torch.nn.Module] = WeakSet()
"""Models are shared by the stages of a process; each is watched once."""


def report(value: Any = None) -> None:
    """Report a value of the call that :func:`reported` runs in this thread, and let others have their turn; elsewhere, do nothing."""
    given = getattr(_here, "report", None)
    if given is not None:
        given(value)


def reported(call: Callable[[], Any]) -> Generator[Any, None, Any]:
    """Run a call as a generator of what it reports with :func:`report`, wherever in the model that is."""

    def run(given: Callable[[Any], None]) -> Any:
        _here.report = given
        return call()

    return in_turns(run)


def watch(module: torch.nn.Module) -> bool:
    """Return whether a module is to get hooks: nobody has asked before."""
    first = module not in _watched
    _watched.add(module)
    return first


def turn_after(*modules: torch.nn.Module) -> None:
    """Let other requests have their turn after each forward of a module, in calls that :func:`reported` runs."""
    for module in modules:
        if watch(module):
            module.register_forward_hook(lambda *_: report())


def report_results(owner: torch.nn.Module, method: str, value: Callable[[Any], Any]) -> None:
    """Report a value of each result of a method of a model, in calls that :func:`reported` runs.

    Args:
        value: takes the result.
    """
    if not watch(owner):
        return
    inner = getattr(owner, method)

    def watched(*args: Any, **kwargs: Any) -> Any:
        result = inner(*args, **kwargs)
        report(value(result))
        return result

    setattr(owner, method, watched)


class Frames(BaseStreamer):
    """A streamer of ``generate()`` that reports what it is given, in calls that :func:`reported` runs."""

    def put(self, value: torch.Tensor) -> None:
        report(value)

    def end(self) -> None:
        """Nothing: the call ends."""


class Noise:
    """The random numbers of one request. Code in ``with noise():`` draws them, whatever drew in between.

    Args:
        seed: ``None``: a random one.
        device: also draws from this one's generator, if it is a GPU.
    """

    def __init__(self, seed: int | None, device: str | torch.device = "cpu") -> None:
        self._gpus = [torch.device(device)] if torch.device(device).type == "cuda" else []
        with self._kept():
            if seed is None:
                torch.seed()
            else:
                torch.manual_seed(seed)
            self._save()

    def like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the next normal numbers, as ``torch.randn_like`` draws them."""
        with self():
            return torch.randn_like(tensor)

    def copy(self) -> Noise:
        """Return one that draws the same numbers from here on."""
        made = object.__new__(Noise)
        made._gpus, made._states = self._gpus, self._states
        return made

    def _kept(self) -> Any:
        return torch.random.fork_rng(self._gpus, device_type="cuda")

    def _save(self) -> None:
        self._states = [torch.get_rng_state(), *(torch.cuda.get_rng_state(each) for each in self._gpus)]

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self._kept():
            torch.set_rng_state(self._states[0])
            for device, state in zip(self._gpus, self._states[1:], strict=True):
                torch.cuda.set_rng_state(state, device)
            try:
                yield
            finally:
                self._save()
