"""Options of ``omni simulate`` and ``omni plan --optimize``: the GPUs, rates and requests of an estimate, and the mix of a load."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click
from attrs import fields

from omni_core.api import ConfigError, PipelineConfig
from omni_planner.asks import KINDS, ask_of
from omni_planner.devices import Fleet, Rates, assumed
from omni_planner.estimate import Device, Estimate, estimate

Command = TypeVar("Command", bound=Callable[..., Any])


def _devices(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    if value is None and not context.resilient_parsing:
        raise click.UsageError("--devices is missing; say which GPUs may be used, such as 2x80GiB or 2xh100")
    return value


def with_estimate(command: Command) -> Command:
    """Add the options that describe an estimate and its load."""
    for option in reversed(
        [
            click.option(
                "--devices", callback=_devices, metavar="[HOSTSx]GPUSxSIZE",
                help="GPUs that may be used: 2x80GiB, 2xh100; with --optimize also hosts, 300x8xh100.",
            ),
            click.option(
                "--mix", multiple=True, metavar="KIND=WEIGHT", help="Kinds of request; by default speech (of images drawing).",
            ),
            click.option(
                "--request", "asks", multiple=True, metavar="KIND:text=N,...",
                help="A kind of request: text (tokens), pixels, audio (seconds), reply (tokens), speech (seconds), drawn "
                "(pixels of an image to make), steps (of its denoising).",
            ),
            click.option("--assume", multiple=True, metavar="RATE=VALUE", help="Replace one of the rates that are printed."),
        ]
    ):  # fmt: skip
        command = option(command)
    return command


def estimated(
    config: PipelineConfig, devices: str, asks: Sequence[str], assume: Sequence[str]
) -> tuple[Fleet, Estimate]:
    """Return the GPUs and the estimate for them.

    Raises:
        ConfigError: an option is wrong, or the pipeline does not say its work.
    """
    fleet, rates = Fleet.parse(devices), Rates()
    for each in assume:
        rates = assumed(each, rates)
    return fleet, estimate(config, Device(fleet.accelerator, rates), {**KINDS, **dict(map(ask_of, asks))})


def mix_of(given: Sequence[str], kinds: Mapping[str, Any], config: PipelineConfig) -> dict[str, float]:
    """Return weights by kind of request from ``KIND=WEIGHT``. Raises ConfigError."""
    if not given:
        draws = config.interface is not None and list(config.interface.outputs) == ["image"]
        return {"drawing" if draws else "speech": 1.0}
    mix: dict[str, float] = {}
    for each in given:
        kind, _, weight = each.partition("=")
        if kind not in kinds:
            raise ConfigError(f"--mix {each}: there is no such kind of request; there are {', '.join(kinds)}")
        try:
            mix[kind] = float(weight)
        except ValueError:
            raise ConfigError(f"--mix {each}: must be KIND=WEIGHT, such as {kind}=1") from None
        if not 0 < mix[kind] < float("inf"):
            raise ConfigError(f"--mix {each}: the weight must be greater than 0")
    return mix


def rate_of(text: str | None) -> float | None:
    """Parse ``20/s``, ``20`` or ``600/min``. Raises ConfigError."""
    if text is None:
        return None
    number, _, unit = text.partition("/")
    try:
        rate = float(number) / {"": 1.0, "s": 1.0, "min": 60.0, "h": 3600.0}[unit.strip()]
    except (ValueError, KeyError):
        rate = -1.0
    if not 0 < rate < float("inf"):
        raise ConfigError(f"--rate {text}: must be a number above 0, such as 20/s or 600/min")
    return rate


def about(fleet: Fleet, rates: Rates) -> str:
    """Return the line that says what an estimate assumes."""
    sheet = fleet.accelerator
    return (
        f"ESTIMATE, nothing was measured: {fleet}, {sheet.flops / 1e12:g} TFLOP/s ({sheet.float32_flops / 1e12:g} in float32), "
        f"{sheet.bandwidth / 1e12:g} TB/s, links {sheet.link / 1e9:g} GB/s; "
        + ", ".join(f"{each.name} {getattr(rates, each.name):g}" for each in fields(Rates))
    )
