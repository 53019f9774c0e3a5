"""``omni import vllm-omni FILE`` and ``omni import sglang-omni FILE``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from omni_cli.importing import output
from omni_cli.importing.report import NOTED, REFUSED, Report
from omni_core.api import ConfigError, PluginRegistry, load_plugins

F = TypeVar("F", bound=Callable[..., None])

_options: list[Callable[[Any], Any]] = [
    click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path)),
    click.option(
        "-o",
        "--out",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Write the deploy file there; otherwise it is printed.",
    ),
    click.option("--pipeline", help="The pipeline here; by default the file says which."),
    click.option("--model", help="A checkpoint folder or hub id, written as model_path."),
    click.option("--strict", is_flag=True, help="Keys without a counterpart are errors too."),
    click.option("--json", "as_json", is_flag=True, help="Print the report and the deploy file as one JSON document."),
]


def _with_options(function: F) -> F:
    for decorator in reversed(_options):
        function = decorator(function)
    return function


@click.group(name="import")
def import_() -> None:
    """Convert a config of another system into a deploy file, with a report of every key."""


@import_.command("vllm-omni")
@_with_options
def vllm_omni(**options: Any) -> None:
    """Convert a deploy file of vLLM-Omni, or an older one with `stage_args`."""
    from omni_cli.importing.vllm_omni.convert import convert

    _run(convert, **options)


@import_.command("sglang-omni")
@_with_options
def sglang_omni(**options: Any) -> None:
    """Convert a pipeline config of SGLang-Omni: a whole pipeline, or a patch over one of its configs."""
    from omni_cli.importing.sglang_omni.convert import convert

    _run(convert, **options)


def _run(
    convert: Callable[..., Report],
    file: Path,
    out: Path | None,
    pipeline: str | None,
    model: str | None,
    strict: bool,
    as_json: bool,
) -> None:
    registry: PluginRegistry = load_plugins()
    report = convert(file, registry, pipeline=pipeline, model=model)
    inputs = {Path(entry.leaf.file).resolve() for entry in report.entries}
    if out is not None and out.resolve() in inputs:
        raise click.UsageError(f"--out {out} is read here; choose another name")
    failing = [REFUSED, *([NOTED] if strict else [])]
    failed = sum(report.counts[kind] for kind in failing)
    if not as_json:
        for line in report.lines():
            click.echo(line, err=True)
    if not failed:
        output.validate(report, str(file), model, registry)
        text = output.text(report, str(file))
        if out is not None:
            out.write_text(text, encoding="utf-8")
        elif not as_json:
            click.echo(text, nl=False)
    if as_json:
        click.echo(report.as_json())
    elif failed:
        what = "cannot be converted" if not strict else "cannot be converted as they are (--strict)"
        raise ConfigError(f"{file}: {failed} keys {what}; nothing was written")
    sys.exit(1 if failed else 0)
