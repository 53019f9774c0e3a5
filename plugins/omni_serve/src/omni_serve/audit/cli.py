"""``omni audit``."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from typing import Any

import click
from attrs import asdict

from omni_core.errors import did_you_mean

_MARKS = {"pass": ("pass", "green"), "fail": ("FAIL", "red"), "not offered": ("not offered", "yellow")}


def _list(context: click.Context, option: click.Parameter, wanted: bool) -> None:
    from omni_serve.audit.checks import CHECKS

    if wanted:
        for check in CHECKS:
            click.echo(f"{check.name:<17} {check.title}")
        context.exit()


@click.command()
@click.argument("url")
@click.option("--api-key", envvar=["OMNI_API_KEY", "OPENAI_API_KEY"], show_envvar=True, help="The key to send.")
@click.option("--model", help="The model's name. By default the first that the server lists.")
@click.option("--voice", help="The voice of speech. By default the first that the server lists, or alloy.")
@click.option("--prompt", default="Say hello.", show_default=True, help="What is asked, spoken, or drawn.")
@click.option("--only", multiple=True, metavar="CHECK", help="Run this check; may be repeated.")
@click.option(
    "--list", is_flag=True, is_eager=True, expose_value=False, callback=_list, help="List the checks and end."
)
@click.option(
    "--grace",
    default=2.0,
    show_default=True,
    type=click.FloatRange(0),
    help="Seconds that a server may take to notice lost clients.",
)
@click.option("--timeout", default=60.0, show_default=True, type=click.FloatRange(0, min_open=True), help="Of a check.")
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
def audit(url: str, **options: Any) -> None:
    """Check the OpenAI-compatible server at URL: its errors, keys, streams, formats, speech, images and conversations.

    Each check passes, fails or is not offered. The exit code is 1 if one fails. The check of keys calls every documented route
    without a key: audit servers that are yours.
    """
    from omni_serve.audit.checks import CHECKS, Result

    known = {check.name: check for check in CHECKS}
    for name in options["only"]:
        if name not in known:
            raise click.UsageError(f"--only {name}: no such check{did_you_mean(name, known)}")
    checks = [check for check in CHECKS if not options["only"] or check.name in options["only"]]
    results: list[Result] = []

    def show(result: Result) -> None:
        results.append(result)
        if not options["as_json"]:
            mark, color = _MARKS[result.verdict]
            click.echo(f"{click.style(f'{mark:<12}', fg=color)}{result.title:<40}{result.why}")

    try:
        asyncio.run(_audit(url, checks, show, options))
    except KeyboardInterrupt:
        click.echo("Interrupted: the checks that are left were not run.", err=True)
        sys.exit(128 + signal.SIGINT)
    counts = {verdict: sum(1 for each in results if each.verdict == verdict) for verdict in _MARKS}
    if options["as_json"]:
        click.echo(json.dumps({"url": url, "counts": counts, "checks": [asdict(each) for each in results]}, indent=1))
    else:
        click.echo(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    sys.exit(1 if counts["fail"] else 0)


async def _audit(url: str, checks: Any, show: Any, options: dict[str, Any]) -> None:
    from omni_serve.audit.checks import audit as run
    from omni_serve.audit.subject import Subject
    from omni_serve.remote import Remote

    async with Remote(url, options["api_key"], options["timeout"]) as remote:
        subject = await Subject.meet(remote, options["model"], options["voice"], options["prompt"], options["grace"])
        await run(subject, checks, options["timeout"], show)
