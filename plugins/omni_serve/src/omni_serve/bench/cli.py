"""``omni bench serve``."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from attrs import evolve

from omni_core.errors import ConfigError
from omni_serve.bench.scenarios import SCENARIOS, parse_mix, prompts_for

_OUTPUT = click.Path(dir_okay=False, path_type=Path)


@click.group()
def bench() -> None:
    """Measure a server."""


@bench.command("serve")
@click.argument("url")
@click.option("--api-key", envvar=["OMNI_API_KEY", "OPENAI_API_KEY"], show_envvar=True, help="The key to send.")
@click.option("--model", help="The model's name. By default the first that the server lists.")
@click.option(
    "--scenario",
    default="text",
    show_default=True,
    metavar="NAME[=WEIGHT],...",
    help=f"What is sent: {', '.join(SCENARIOS)}, or several by weights, such as text=3,speech=1.",
)
@click.option(
    "--spoken/--written", default=None, help="Ask chats for speech too. By default if the server says it can."
)
@click.option("--prompts", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="A CSV file of prompts.")
@click.option("--voice", help="The voice of speech.")
@click.option("--max-tokens", type=click.IntRange(1), help="The longest answer of a chat.")
@click.option("--extra", metavar="JSON", help="Further keys of every request, such as '{\"temperature\": 0}'.")
@click.option("--concurrency", metavar="N,...", help="Closed loop: so many at once; each number is a run. Default: 1.")
@click.option("--rate", metavar="R,...", help="Open loop: requests per second at random times; each number is a run.")
@click.option("--requests", default=50, show_default=True, type=click.IntRange(1), help="Requests of a run.")
@click.option("--duration", type=click.FloatRange(0, min_open=True), help="End a run after so many seconds.")
@click.option(
    "--warm-up",
    default=1,
    show_default=True,
    type=click.IntRange(0),
    help="Requests of each scenario that are not counted.",
)
@click.option("--timeout", default=120.0, show_default=True, type=click.FloatRange(0, min_open=True), help="Seconds.")
@click.option("--sample-rate", default=24_000, show_default=True, type=click.IntRange(1), help="Of the server's PCM.")
@click.option("--seed", default=0, show_default=True, help="Of the requests and their times.")
@click.option(
    "--slo",
    default="",
    metavar="NAME=MOST,...",
    help="Count good requests: ttfa=0.5,gap=0 (also ttft, late, total, rtf, barge_in).",
)
@click.option("--json", "json_file", type=_OUTPUT, help="Write all results to a file.")
@click.option("--html", "html_file", type=_OUTPUT, help="Write a page with charts.")
def bench_serve(url: str, **options: Any) -> None:
    """Measure the OpenAI-compatible server at URL, such as http://127.0.0.1:8000.

    Times are those of a client: to the first text (TTFT), to the first sound (TTFA), between pieces, and the seconds by which speech
    is late for a listener who starts at the first piece. Ctrl-C ends a run early and prints what was measured.
    """
    from rich.console import Console

    from omni_serve.bench.page import page
    from omni_serve.bench.report import Report
    from omni_serve.bench.summary import Objectives

    loads = _loads(options["concurrency"], options["rate"])
    mix, objectives = parse_mix(options["scenario"]), Objectives.parse(options["slo"])
    prompts = prompts_for(mix, options["prompts"])
    extra = _extra(options["extra"])
    started = datetime.now(UTC).isoformat(timespec="seconds")
    for each in (options["json_file"], options["html_file"]):
        if each is not None and not each.parent.is_dir():
            raise ConfigError(f"{each}: there is no folder {each.parent}")
    try:
        model, runs = asyncio.run(_run(url, loads, mix, prompts, extra, options))
    except KeyboardInterrupt:
        click.echo("Interrupted before anything was measured.", err=True)
        sys.exit(128 + signal.SIGINT)
    report = Report(url, model, mix, objectives, runs, started)
    console = Console()
    report.show(console if console.is_terminal else Console(width=160))
    if options["json_file"] is not None:
        options["json_file"].write_text(json.dumps(report.as_data(), indent=1) + "\n")
    if options["html_file"] is not None:
        options["html_file"].write_text(page(report))
    if any(run.interrupted for run in runs):
        sys.exit(128 + signal.SIGINT)
    if not any(each.error is None for run in runs for each in run.timelines):
        sys.exit(1)


async def _run(url: str, loads: list[Any], mix: Any, prompts: Any, extra: Any, options: dict[str, Any]) -> Any:
    from omni_serve.bench.load import Generator, Load, Run
    from omni_serve.bench.scenarios import Workload
    from omni_serve.remote import Remote

    async with Remote(url, options["api_key"], options["timeout"]) as remote:
        found = await remote.model(options["model"])
        outputs = (found.get("capabilities") or {}).get("outputs") or ()
        workload = Workload(
            model=found["id"],
            weights=mix,
            prompts=prompts,
            spoken="audio" in outputs if options["spoken"] is None else options["spoken"],
            voice=options["voice"],
            max_tokens=options["max_tokens"],
            extra=extra,
        )
        for name in mix if options["warm_up"] else ():
            only = evolve(workload, weights={name: 1.0})
            first = await Generator(remote, only, options["warm_up"], seed=options["seed"] - 1).run(Load(None, 1))
            if first.interrupted:
                raise KeyboardInterrupt
        runs: list[Run] = []
        for load in loads:
            generator = Generator(
                remote,
                workload,
                options["requests"],
                options["duration"],
                options["seed"],
                options["sample_rate"],
                _progress,
            )
            runs.append(await generator.run(Load(**load)))
            _clear_progress()
            if runs[-1].interrupted:
                break
        return workload.model, runs


def _loads(concurrency: str | None, rate: str | None) -> list[dict[str, Any]]:
    """Return the loads of a sweep."""
    if concurrency is not None and rate is not None:
        raise click.UsageError("--concurrency and --rate: give one; a loop is closed or open")
    if rate is not None:
        return [{"rate": _number("--rate", each, float)} for each in rate.split(",")]
    return [{"concurrency": _number("--concurrency", each, int)} for each in (concurrency or "1").split(",")]


def _number(option: str, text: str, kind: Any) -> Any:
    try:
        value = kind(text)
    except ValueError:
        value = 0
    if not 0 < value < 1e6:
        raise click.UsageError(
            f"{option} {text.strip()!r}: must be {'a whole number' if kind is int else 'a number'} above 0"
        )
    return value


def _extra(text: str | None) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except ValueError as error:
        raise click.UsageError(f"--extra: not JSON: {error}") from None
    if not isinstance(found, dict):
        raise click.UsageError("--extra: must be a JSON object")
    return found


def _progress(run: Any) -> None:
    if sys.stderr.isatty():
        failed = sum(1 for each in run.timelines if each.error is not None)
        click.echo(f"\r\x1b[K{run.load}: {len(run.timelines)} done, {failed} failed", err=True, nl=False)


def _clear_progress() -> None:
    if sys.stderr.isatty():
        click.echo("\r\x1b[K", err=True, nl=False)
