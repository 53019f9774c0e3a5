"""Compares a kernel with its reference: the error on random inputs, and the speed of each."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import signature
from timeit import Timer
from typing import Any

import torch
from attrs import frozen
from torch.utils.benchmark import timer as clock

from omni_core.api import KernelComponent, PluginError, did_you_mean, load
from omni_torch.operations.kernels import Operation

BOUNDS = {"float32": 1e-5, "float16": 1e-3, "bfloat16": 8e-3}
"""The largest ``|out - reference| / |reference|`` allowed, in Euclidean norms: about twice the rounding of the result,
plus errors of sums.
"""


ROUNDS, FEWEST_ROUNDS = 9, 3
"""The number of pairs of measurements, reference and kernel in turn, of a speed; and of one whose calls take long."""


@frozen
class Comparison:
    """The comparison of one kernel in one dtype.

    Attributes:
        dtype: its name.
        error: the largest of all examples' and outputs' relative errors; infinite for NaN, and for integers that differ.
        bound: the largest error that is allowed.
        fault: a violation other than the values: another shape, or a change of an argument that the operation does not write.
        speeds: the time of the reference over that of the kernel, over all examples: the quartiles of several measurements.
        shapes: of the tensors of the largest example.
    """

    dtype: str
    error: float
    bound: float
    fault: str | None = None
    speeds: tuple[float, float, float] | None = None
    shapes: str = ""

    @property
    def good(self) -> bool:
        return self.fault is None and self.error <= self.bound

    def __str__(self) -> str:
        if self.fault is not None:
            return f"{self.dtype}: {self.fault}"
        speed = ""
        if self.speeds is not None:
            low, median, high = self.speeds
            speed = f"; {median:.2f} times as fast as PyTorch ({low:.2f} to {high:.2f}, up to {self.shapes})"
        return f"{self.dtype}: error {self.error:.1e}, allowed {self.bound:.0e}{speed}"


class ContractViolation(Exception):
    """A kernel violates its operation's contract in another way than by its values."""


def compare(operation: Operation[..., Any], component: KernelComponent, seconds: float = 0.2) -> Iterator[Comparison]:
    """Compare a kernel with its reference, which computes in float64, on the kernel's device in each of its dtypes.

    Args:
        seconds: approximate measuring time of each.

    Raises:
        PluginError: the operation is not the kernel's, or a dtype cannot be compared.
    """
    if operation.name != component.operation:
        raise PluginError(
            f"its reference {component.reference!r} is not an Operation called {component.operation!r}, as its component says"
        )
    kernel = load(component.target)
    for name in component.dtypes or tuple(BOUNDS):
        if name not in BOUNDS:
            raise PluginError(
                f"its dtype {name!r} cannot be compared{did_you_mean(name, BOUNDS, listing='those that can')}"
            )
        generator = torch.Generator(component.device).manual_seed(0)
        examples = operation.examples(getattr(torch, name), generator)
        with torch.inference_mode():
            try:
                error = max(relative_error(operation, kernel, example) for example in examples)
            except ContractViolation as fault:
                yield Comparison(name, float("inf"), BOUNDS[name], str(fault))
                continue
            speeds = _speeds(operation.reference, kernel, examples, seconds)
        yield Comparison(name, error, BOUNDS[name], None, speeds, _shapes(max(examples, key=_elements)))


def relative_error(operation: Operation[..., Any], kernel: Any, arguments: tuple[Any, ...]) -> float:
    """Return the largest relative error of the tensors that a kernel returns and writes for ``arguments``, which are
    not changed.
    """
    given, exact = [_copy(each) for each in arguments], [_double(each) for each in arguments]
    outputs, expected = _tensors(kernel(*given)), _tensors(operation.reference(*exact))
    if [each.shape for each in outputs] != [each.shape for each in expected]:
        shown = [" and ".join(str([*each.shape]) for each in some) for some in (outputs, expected)]
        raise ContractViolation(f"it returns {shown[0]}, the reference {shown[1]} (for {_shapes(arguments)})")
    pairs = list(zip(outputs, expected, strict=True))
    names = signature(operation.reference).parameters
    for name, before, after, right in zip(names, arguments, given, exact, strict=False):
        if name in operation.writes:
            # Elements that neither changed would hide an error in those that either did.
            touched = (after != before) | (right != before)
            pairs.append((after[touched], right[touched]))
        elif isinstance(before, torch.Tensor) and not torch.equal(before, after):
            raise ContractViolation(f"it changes its argument {name!r}, which the operation does not write")
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


def _shapes(arguments: tuple[Any, ...]) -> str:
    return " x ".join(str([*each.shape]) for each in arguments if isinstance(each, torch.Tensor))


def _elements(arguments: tuple[Any, ...]) -> int:
    return sum(each.numel() for each in arguments if isinstance(each, torch.Tensor))


def _speeds(reference: Any, kernel: Any, examples: list[tuple[Any, ...]], seconds: float) -> tuple[float, float, float]:
    """Return the quartiles of the ratio of times, with one thread of PyTorch. Both are measured in turn, so that other load on the machine
    affects both alike.
    """
    timers = [_timer(function, examples) for function in (reference, kernel)]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        once = [each.timeit(1) for each in timers]
        calls = [max(1, int(seconds / ROUNDS / each)) for each in once]
        rounds = min(ROUNDS, max(FEWEST_ROUNDS, int(2 * seconds / sum(once))))
        ratios = []
        for _ in range(rounds):
            theirs, ours = (timer.timeit(count) / count for timer, count in zip(timers, calls, strict=True))
            ratios.append(theirs / ours)
        ratios.sort()
    finally:
        torch.set_num_threads(threads)
    return ratios[rounds // 4], ratios[rounds // 2], ratios[-1 - rounds // 4]


def _timer(function: Any, examples: list[tuple[Any, ...]]) -> Timer:
    """Return a timer of one call with each example, by a clock that waits for the GPU."""

    def call() -> None:
        for example in examples:
            function(*example)

    return Timer(call, timer=clock)
