"""A kernel beside its reference: how far apart they are on random inputs, and how long each takes."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import signature
from typing import Any

import torch
from attrs import frozen
from torch.utils.benchmark import Timer

from omni_core.errors import PluginError
from omni_core.hookspecs import KernelComponent
from omni_core.references import load
from omni_torch.kernels import Operation

BOUNDS = {"float32": 1e-5, "float16": 1e-3, "bfloat16": 8e-3}
"""What ``|out - reference| / |reference|`` may be, in Euclidean norms: about twice a rounding of the result, and sums' errors."""


@frozen
class Comparison:
    """One kernel in one dtype.

    Attributes:
        dtype: its name. error: the largest of all examples' and outputs' relative errors; infinite for wrong shapes, for NaN, and
            where an argument was changed that the operation does not write, and for whole numbers that are not the same.
        bound: what it may be. speed: the time of the reference over that of the kernel, over all examples.
    """

    dtype: str
    error: float
    bound: float
    speed: float

    @property
    def good(self) -> bool:
        return self.error <= self.bound

    def __str__(self) -> str:
        return (
            f"{self.dtype}: error {self.error:.1e}, allowed {self.bound:.0e}; {self.speed:.2f} times as fast as PyTorch"
        )


def compare(component: KernelComponent, seconds: float = 0.2) -> Iterator[Comparison]:
    """Compare a kernel with its reference, which computes in float64, on the kernel's device in each of its dtypes.

    Args:
        seconds: how long to measure each, at least.

    Raises:
        PluginError: its reference is no operation, or another one's.
    """
    assert component.reference is not None
    operation, kernel = load(component.reference), load(component.target)
    if not isinstance(operation, Operation) or operation.name != component.operation:
        raise PluginError(
            f"its reference {component.reference!r} is not an Operation called {component.operation!r}, as its component says"
        )
    for name in component.dtypes or tuple(BOUNDS):
        if name not in BOUNDS:
            raise PluginError(f"its dtype {name!r} cannot be compared; those that can: {', '.join(BOUNDS)}")
        generator = torch.Generator(component.device).manual_seed(0)
        examples = operation.examples(getattr(torch, name), generator)
        with torch.inference_mode():
            error = max(relative_error(operation, kernel, example) for example in examples)
            speed = _time(operation.reference, examples, seconds) / _time(kernel, examples, seconds)
        yield Comparison(name, error, BOUNDS[name], speed)


def relative_error(operation: Operation[..., Any], kernel: Any, arguments: tuple[Any, ...]) -> float:
    """The largest relative error of what a kernel returns and writes for ``arguments``, which stay as they are."""
    given, exact = [_copy(each) for each in arguments], [_double(each) for each in arguments]
    outputs, expected = _tensors(kernel(*given)), _tensors(operation.reference(*exact))
    if [each.shape for each in outputs] != [each.shape for each in expected]:
        return float("inf")
    pairs = list(zip(outputs, expected, strict=True))
    names = signature(operation.reference).parameters
    for name, before, after, right in zip(names, arguments, given, exact, strict=False):
        if name in operation.writes:
            # What neither touched would hide an error in what either did.
            touched = (after != before) | (right != before)
            pairs.append((after[touched], right[touched]))
        elif isinstance(before, torch.Tensor) and not torch.equal(before, after):
            return float("inf")
    return max(_distance(out, right) for out, right in pairs)


def _distance(out: torch.Tensor, right: torch.Tensor) -> float:
    if not out.is_floating_point():
        return 0.0 if torch.equal(out, right) else float("inf")
    distance = float((out.double() - right).norm() / right.norm().clamp(min=1e-300))
    return distance if distance == distance else float("inf")


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _double(value: Any) -> Any:
    value = _copy(value)
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def _tensors(output: Any) -> list[torch.Tensor]:
    return [output] if isinstance(output, torch.Tensor) else list(output)


def _time(function: Any, examples: list[tuple[Any, ...]], seconds: float) -> float:
    """Seconds that one call with each example takes: the median of several measurements, after a first call for each."""

    def call() -> None:
        for example in examples:
            function(*example)

    median: float = Timer("call()", globals={"call": call}).blocked_autorange(min_run_time=seconds).median
    return median
