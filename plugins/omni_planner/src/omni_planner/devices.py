"""Devices that are not here: how many, how large, and the rates that an estimate takes for them."""

from __future__ import annotations

import re
from typing import Any

from attrs import evolve, fields, frozen

from omni_core.api import ConfigError, did_you_mean, gib, parse_bytes

GIB = 2**30


@frozen
class Accelerator:
    """The rates of a kind of GPU, from its data sheet.

    Attributes:
        memory: bytes.
        flops: FLOPs a second of dense bfloat16 products.
        float32_flops: of float32 ones, without tensor cores.
        bandwidth: bytes a second of its memory.
        link: bytes a second to another GPU of its host, in one direction.
    """

    name: str
    memory: int
    flops: float
    float32_flops: float
    bandwidth: float
    link: float


ACCELERATORS = {
    each.name: each
    for each in (
        Accelerator("l4", 24 * GIB, 121e12, 30.3e12, 0.3e12, 32e9),
        Accelerator("rtx4090", 24 * GIB, 165e12, 82.6e12, 1.008e12, 32e9),
        Accelerator("a100-40", 40 * GIB, 312e12, 19.5e12, 1.555e12, 300e9),
        Accelerator("l40s", 48 * GIB, 362e12, 91.6e12, 0.864e12, 32e9),
        Accelerator("h100", 80 * GIB, 989e12, 67e12, 3.35e12, 450e9),
        Accelerator("a100", 80 * GIB, 312e12, 19.5e12, 2.039e12, 300e9),
        Accelerator("h200", 141 * GIB, 989e12, 67e12, 4.8e12, 450e9),
        Accelerator("b200", 180 * GIB, 2250e12, 75e12, 8.0e12, 900e9),
    )
}


@frozen
class Rates:
    """The constants of an estimate beside those of the accelerator. All of them are printed with a plan.

    Attributes:
        flops_share, bandwidth_share: of the data sheet's rates that our kernels reach.
        kernel: seconds to start one.
        step: processor seconds of a step outside of the device: planning, sampling, messages of its requests.
        row: processor seconds of each request of a step.
        exchange: seconds of a collective of ranks beside its bytes.
        message: processor seconds of a message at each end.
        latency: seconds between them.
        copy: bytes a second of a payload.
        function: processor seconds of a request in a stage without a network.
        spread: of the sizes of requests of one kind, the standard deviation over the mean; 0: all are alike.
    """

    flops_share: float = 0.4
    bandwidth_share: float = 0.6
    kernel: float = 2.5e-6
    step: float = 1.0e-3
    row: float = 20e-6
    exchange: float = 12e-6
    message: float = 100e-6
    latency: float = 50e-6
    copy: float = 8e9
    function: float = 2e-3
    spread: float = 0.7


@frozen
class Fleet:
    """The devices that may be used: hosts, with equal GPUs."""

    hosts: int
    gpus: int
    accelerator: Accelerator

    @classmethod
    def parse(cls, text: str) -> Fleet:
        """Parse ``[HOSTSx]GPUSxSIZE``; SIZE is memory (``80GiB``) or an accelerator (``h100``).

        Raises:
            ConfigError: it is not of that form.
        """
        match = re.fullmatch(r"(?:(\d+)x)?(\d+)x(.+)", text)
        if match is None or not int(match[2]) or match[1] == "0":
            raise ConfigError(f"--devices {text}: write it like 2x80GiB, 2xh100, or with hosts, 100x8x80GiB")
        return cls(int(match[1] or 1), int(match[2]), _accelerator(match[3], text))

    def __str__(self) -> str:
        hosts = f"{self.hosts} hosts of " if self.hosts > 1 else ""
        return f"{hosts}{self.gpus} x {self.accelerator.name} ({gib(self.accelerator.memory)})"


def _accelerator(name: str, text: str) -> Accelerator:
    if name.lower() in ACCELERATORS:
        return ACCELERATORS[name.lower()]
    try:
        nbytes = parse_bytes(name)
    except ConfigError:
        known = ", ".join(ACCELERATORS)
        raise ConfigError(
            f"--devices {text}: {name!r} is neither a size nor an accelerator{did_you_mean(name, ACCELERATORS)}; there are: {known}"
        ) from None
    same = [each for each in ACCELERATORS.values() if each.memory == nbytes]
    nearest = same[0] if same else min(ACCELERATORS.values(), key=lambda each: (abs(each.memory - nbytes), -each.flops))
    return evolve(nearest, memory=nbytes)


def assumed(values: str, rates: Rates) -> Rates:
    """Return rates with one replaced, ``NAME=VALUE``.

    Raises:
        ConfigError: there is none of that name, or the value is no number above 0 (of a spread, of at least 0).
    """
    name, _, value = values.partition("=")
    known = [each.name for each in fields(Rates)]
    if name not in known:
        raise ConfigError(
            f"--assume {values}: there is no rate {name!r}{did_you_mean(name, known)}; there are: {', '.join(known)}"
        )
    try:
        number = float(value)
        if not (0 < number < float("inf") or (number == 0 and name == "spread")):
            raise ValueError
    except ValueError:
        least = "of at least 0" if name == "spread" else "above 0"
        raise ConfigError(f"--assume {values}: must be a number {least}") from None
    given: dict[str, Any] = {name: number}
    return evolve(rates, **given)
