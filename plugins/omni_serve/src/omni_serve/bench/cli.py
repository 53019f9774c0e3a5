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

from omni_core.api import ConfigError


@click.group()
def bench() -> None:
    """Measure a server."""


@bench.command("serve")
@click.argument("url")
@click.option("--api-key", envvar=["OMNI_API_KEY", "OPENAI_API_KEY"], show_envvar=True, help="The key to send.")
@click.option("--model", help="The model's name. By default the first that the server lists.")
@click.option(
    "--scenario",
    type=click.Choice(["speech", "chat"]),
    default="speech",
    show_default=True,
    help="Texts to speak, or questions with spoken answers.",
)
@click.option(
    "--prompts",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file of texts to send, one on each line.",
)
@click.option("--voice", help="The voice of speech.")
@click.option("--concurrency", metavar="N,...", help="Closed loop: so many at once; each number is a run. Default: 1.")
@click.option("--rate", metavar="R,...", help="Open loop: requests per second at random times; each number is a run.")
@click.option("--requests", default=50, show_default=True, type=click.IntRange(1), help="Requests of a run.")
@click.option("--timeout", default=120.0, show_default=True, type=click.FloatRange(0, min_open=True), help="Seconds.")
@click.option("--sample-rate", default=24_000, show_default=True, type=click.IntRange(1), help="Of the server's PCM.")
@click.option(
    "--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write all results to a file."
)
def bench_serve(url: str, **options: Any) -> None:
    """Measure the speech of the OpenAI-compatible server at URL, such as http://127.0.0.1:8000.

    Times are those of a listener: to the first sound (TTFA), the longest pause of an answer (gap), and the requests and seconds that are
    late for somebody who starts at the first piece. Ctrl-C ends a run early and prints what was measured.
    """
    from rich.console import Console

    from omni_serve.bench.report import as_data, show

    loads = _loads(options["concurrency"], options["rate"])
    texts = None if options["prompts"] is None else _texts(options["prompts"])
    if (file := options["json_file"]) is not None and not file.parent.is_dir():
        raise ConfigError(f"{file}: there is no folder {file.parent}")
    started = datetime.now(UTC).isoformat(timespec="seconds")
    try:
        model, runs = asyncio.run(_run(url, loads, texts, options))
    except KeyboardInterrupt:
        click.echo("Interrupted before anything was measured.", err=True)
        sys.exit(128 + signal.SIGINT)
    console = Console()
    show(console if console.is_terminal else Console(width=160), runs)
    if file is not None:
        file.write_text(json.dumps(as_data(url, model, started, runs), indent=1) + "\n")
    if any(run.interrupted for run in runs):
        sys.exit(128 + signal.SIGINT)
    if not any(each.error is None for run in runs for each in run.timelines):
        sys.exit(1)


async def _run(url: str, loads: list[Any], texts: list[str] | None, options: dict[str, Any]) -> Any:
    from omni_serve.bench.load import TEXTS, Generator, Load, Run, Workload
    from omni_serve.remote import Remote

    async with Remote(url, options["api_key"], options["timeout"]) as remote:
        workload = Workload(
            model=await remote.model(options["model"]),
            scenario=options["scenario"],
            texts=texts or TEXTS[options["scenario"]],
            voice=options["voice"],
            sample_rate=options["sample_rate"],
        )
        warm_up = await Generator(remote, workload, 1).run(Load(concurrency=1))
        if warm_up.interrupted:
            raise KeyboardInterrupt
        runs: list[Run] = []
        for load in loads:
            runs.append(await Generator(remote, workload, options["requests"], _progress).run(Load(**load)))
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


def _texts(path: Path) -> list[str]:
    """Return the lines of a file that are not empty."""
    try:
        found = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    if not found:
        raise ConfigError(f"{path}: has no text; write one on each line")
    return found


def _progress(run: Any) -> None:
    if sys.stderr.isatty():
        failed = sum(1 for each in run.timelines if each.error is not None)
        click.echo(f"\r\x1b[K{run.load}: {len(run.timelines)} done, {failed} failed", err=True, nl=False)


def _clear_progress() -> None:
    if sys.stderr.isatty():
        click.echo("\r\x1b[K", err=True, nl=False)
