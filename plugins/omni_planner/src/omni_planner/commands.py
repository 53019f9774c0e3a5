"""``omni calibrate``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from attrs import evolve

from omni_cli.deploy.options import resolve_config
from omni_core.cli.source import with_source
from omni_core.client import AsyncPipe
from omni_core.client.messages import MediaPolicy, chat_request
from omni_core.config.completion import completed
from omni_core.config.schema import PipelineConfig
from omni_core.errors import ConfigError, InvalidRequestError
from omni_core.protocol.messages import OmniRequest
from omni_planner.calibrate import CONCURRENCIES, calibrate, check_processes
from omni_planner.estimate import says_its_work, works_of
from omni_planner.profile import Hardware, PipelineProfile
from omni_planner.starts import measured_starts


@click.command("calibrate")
@with_source
@click.option(
    "--requests",
    "lines",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="What to measure with, a JSON object a line: `kind`, `message`, and further arguments of `pipe.chat`. By default the "
    "pipeline's warm-up requests.",
)
@click.option(
    "--concurrency", "concurrencies", multiple=True, type=click.IntRange(2), help="Requests at once; repeatable.",
    default=CONCURRENCIES, show_default=True,
)  # fmt: skip
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="Repetitions of everything.")
@click.option(
    "--restarts",
    is_flag=True,
    help="Also end every process once, and measure how long it takes to serve again; for `--fail`.",
)
@click.option("--merge", "into", is_flag=True, help="Add to FILE what is measured, in place of writing it anew.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), required=True, metavar="FILE")
def calibrate_command(
    lines: Path | None,
    concurrencies: tuple[int, ...],
    rounds: int,
    restarts: bool,
    into: bool,
    out: Path,
    **source: Any,
) -> None:
    """Start PIPELINE on this machine, measure what its stages cost, and write a profile for `omni simulate`."""
    resolved = resolve_config(**source).config
    config = completed(resolved)
    check_processes(config)
    if not out.absolute().parent.is_dir():
        raise click.BadParameter(f"there is no folder {out.parent}", param_hint="'--out'")
    before = PipelineProfile.load(out) if into and out.exists() else None
    if before is not None:  # refused now, not after the measurement
        before.merge(PipelineProfile(config.name or "", Hardware.here()))
    described = evolve(config, placement_fn=resolved.placement_fn)  # which is left out of a config that is placed
    known = works_of(described).admit_after if says_its_work(described) else {}
    profile = asyncio.run(_calibrate(config, lines, concurrencies, rounds, restarts, known))
    if before is not None:
        before.merge(profile)
        profile = before
    profile.save(out)
    for name, stage in profile.stages.items():
        for kind, cost in stage.costs.items():
            parts = ", ".join(
                f"{each} {seconds * 1e3:.2f} ms" for each, seconds in cost.coefficients().items() if seconds
            )
            click.echo(
                f"{name}{f' ({kind})' if kind else ''}: {parts}; {cost.turns} turns, error {cost.relative_error():.0%}"
            )
        for kind, edges in stage.edges.items():
            for target, edge in edges.items():
                each, size = edge.messages / edge.requests, edge.nbytes / edge.requests / 1024
                click.echo(
                    f"{name} -> {target}{f' ({kind})' if kind else ''}: {each:.1f} messages, {size:.1f} KiB a request"
                )
        if stage.cache is not None:
            cache = stage.cache
            click.echo(
                f"{name}: KV cache of {cache.blocks} blocks of {cache.positions} positions and {cache.nbytes / 1024:.1f} KiB; "
                f"at most {cache.peak} in use"
            )
    if profile.starts:
        click.echo("starts: " + ", ".join(f"{name} {seconds:.2f} s" for name, seconds in profile.starts.items()))
    click.echo(f"message: {profile.message * 1e3:.2f} ms of a processor at each end; profile in {out}")


async def _calibrate(
    config: PipelineConfig,
    lines: Path | None,
    concurrencies: tuple[int, ...],
    rounds: int,
    restarts: bool,
    known: Mapping[str, int],
) -> PipelineProfile:
    requests = await _requests(config, lines)
    async with AsyncPipe(config) as pipe:
        profile = await calibrate(pipe, requests, concurrencies, rounds, lambda text: click.echo(text, err=True), known)
        if restarts:
            profile.starts = await measured_starts(pipe)
        return profile


async def _requests(config: PipelineConfig, lines: Path | None) -> dict[str, list[OmniRequest]]:
    """Return the requests to measure with, by kind.

    Raises:
        ConfigError: a line is no request; it says which.
    """
    found: dict[str, list[OmniRequest]] = {}
    if lines is None:
        for each in config.interface.warmup if config.interface is not None else []:
            found.setdefault("+".join(each.get("modalities") or ["text"]), []).append(OmniRequest(**each))
        if not found:
            raise ConfigError(f"pipeline {config.name!r} declares no warm-up requests; give --requests FILE")
        return found
    for number, line in enumerate(lines.read_text().splitlines(), 1):
        if not line.strip():
            continue
        try:
            asked = json.loads(line)
            kind = asked.pop("kind", "request")
            found.setdefault(kind, []).append(
                await chat_request(config.interface, MediaPolicy(), asked.pop("message"), **asked)
            )
        except (ValueError, KeyError, TypeError, AttributeError, InvalidRequestError) as error:
            raise ConfigError(f"{lines}:{number}: is no request: {type(error).__name__}: {error}") from error
    return found


def mix_of(given: tuple[str, ...], profile: PipelineProfile) -> dict[str, float]:
    """Return weights by kind of request from ``KIND=WEIGHT``; all kinds alike if none is given. Raises click.UsageError."""
    if not given:
        return dict.fromkeys(profile.kinds, 1.0)
    mix: dict[str, float] = {}
    for each in given:
        kind, _, weight = each.partition("=")
        if kind not in profile.kinds:
            raise click.UsageError(
                f"--mix {each}: the profile has no such kind of request; it has {', '.join(profile.kinds)}"
            )
        try:
            mix[kind] = float(weight)
        except ValueError:
            raise click.UsageError(f"--mix {each}: must be KIND=WEIGHT, such as {kind}=1") from None
        if not 0 < mix[kind] < float("inf"):
            raise click.UsageError(f"--mix {each}: the weight must be greater than 0")
    return mix
