"""``omni config init PIPELINE``: a deploy file in which everything that can be set is named, as comments."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import click

from omni_cli.config.server import flags, serve_command
from omni_cli.config.users import argument, default_of
from omni_cli.deploy.files import presets
from omni_cli.deploy.options import resolve_config, source_of
from omni_cli.deploy.parameters import parameters_of
from omni_cli.deploy.platforms import PLATFORMS, platform
from omni_core.api import (
    ConfigError,
    Interface,
    Parameter,
    PipelineComponent,
    PipelineConfig,
    RequestLimits,
    StageConfig,
    load_plugins,
)
from omni_core.runtime_api import with_source

_FIELDS = (
    *("gpu", "gpu_memory", "tp_size", "replicas", "affinity_key", "process", "host", "env", "relay", "preload"),
    *("startup_timeout", "compute_timeout"),
)
"""Fields of a stage that the file names beside its arguments."""

_WHOLE = (
    *("name", "retries", "max_in_flight", "request_timeout", "restart", "relay_backend", "env_defaults", "launcher"),
    *("hosts", "endpoints"),
)
"""Fields of the pipeline that the file names."""


@click.command()
@with_source
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write to this file; it must not exist.")
def init(out: Path | None, **source: Any) -> None:
    """Write a deploy file for PIPELINE, in which everything that can be set is a comment, with the value that it has now."""
    if out is not None and out.exists():
        raise ConfigError(f"--out {out}: the file exists; remove it, or name another")
    registry = load_plugins()
    chosen = source_of(source)
    deploy = chosen.files(registry)
    if deploy is not None and deploy.whole is not None:
        raise ConfigError(
            f"{source['pipeline']} is a whole pipeline by itself; name an installed one (`omni pipelines`)"
        )
    config = resolve_config(**source).config
    serve = serve_command(click.get_current_context())
    text = "\n".join(_lines(config, chosen.component(registry), source["model"], serve)) + "\n"
    if out is None:
        click.echo(text, nl=False)
    else:
        out.write_text(text, encoding="utf-8")
        click.echo(f"{out}: check it with `omni config validate {out}`", err=True)


def _lines(
    config: PipelineConfig, component: PipelineComponent, model: str | None, serve: click.Command | None
) -> Iterator[str]:
    yield f"# {component.summary}."
    yield "# What is a comment has the value that is shown. `omni config explain FILE` says what is in force, and why."
    yield f"pipeline: {component.name}"
    yield f"{'' if model else '# '}model_path: {dump(model or config.model_path)}"
    shipped = [f"{component.name}/{name}" for name in presets(component)]
    if shipped:
        yield f"# base: {shipped[0]}  # or another file, or: {', '.join(shipped[1:])}"
    yield from _section("options", {name: ("...", text) for name, text in component.options.items()})
    if config.interface is not None:
        yield from _defaults(config.interface)
    limits = {each.name: (getattr(config.limits, each.name), "") for each in attrs.fields(RequestLimits)}
    yield from _section("limits", limits, "the most that one request may bring")
    yield ""
    yield "# stages:"
    for stage in config.stages:
        yield from _stage(stage)
    yield ""
    yield "# relays:  # presets that stages refer to: relay: large"
    yield "#   large: {slot_size_mb: 256, credits: 4}"
    yield ""
    yield f"# platforms:  # laid over the above where the platform is found: {', '.join(PLATFORMS)}; here: {platform()}"
    yield f"#   {platform()}: {{retries: 0}}"
    yield ""
    fields = attrs.fields_dict(PipelineConfig)
    for name in _WHOLE:
        assert name in fields
        yield f"# {name}: {dump(getattr(config, name))}"
    if serve is not None:
        values = {key: (default_of(each), each.help or "") for key, each in flags(serve).items() if not each.envvar}
        yield from _section("server", values, "flags of omni serve, which win")


def dump(value: Any) -> str:
    """Return a value as YAML in one line (JSON, which is YAML too)."""
    return json.dumps(value, ensure_ascii=False, default=attrs.asdict)


def _section(name: str, values: Mapping[str, tuple[Any, str]], about: str = "") -> Iterator[str]:
    if not values:
        return
    yield ""
    yield f"# {name}:" + (f"  # {about}" if about else "")
    lines = {key: f"{key}: {'...' if value == '...' else dump(value)}" for key, (value, _) in values.items()}
    width = max(map(len, lines.values()))
    for key, line in lines.items():
        yield f"#   {line:{width}}  # {values[key][1]}" if values[key][1] else f"#   {line}"


def _defaults(interface: Interface) -> Iterator[str]:
    if not interface.groups and not interface.metadata:
        return
    yield ""
    yield "# defaults:  # what a request has that does not say otherwise"
    if interface.groups:
        yield "#   params:"
    for group in interface.groups:
        yield f"#     {group.name}:  # {group.help}"
        yield from _parameters(group.parameters, 6)
    if interface.metadata:
        yield "#   metadata:"
        yield from _parameters(interface.metadata, 4)


def _parameters(parameters: list[Parameter], indent: int) -> Iterator[str]:
    for each in parameters:
        yield f"#{' ' * indent} {each.name}: {dump(each.default)}  # {each.help} [{each.expected}]"


def _stage(stage: StageConfig) -> Iterator[str]:
    yield f"#   {stage.name}:"
    for name in _FIELDS:
        if name != "tp_size" or stage.gpu is not None:
            yield f"#     {name}: {dump(getattr(stage, name))}"
    values = {key: value for key, value in attrs.asdict(stage, recurse=False).items() if key != "relay"}
    names = [
        name for name in parameters_of(values, load_plugins()) if name not in _INJECTED or name in stage.factory_args
    ]
    if names:
        yield "#     factory_args:"
    for name in names:
        if name in stage.factory_args:
            yield f"#       {name}: {dump(stage.factory_args[name])}"
        elif (user := argument(stage, name)) is not None:
            yield f"#       # {name}: {_written(user.default)}" + (f"  # {user.help}" if user.help else "")


def _written(default: str | None) -> str:
    """Return a default as a value of the file; one that is computed is left open."""
    try:
        json.loads(default or "null")
    except ValueError:
        return "..."
    return default or "null"


_INJECTED = (
    "model_path",
    "device",
    "gpu_memory",
    "stage_name",
    "replica",
    "tp_rank",
    "tp_size",
    "tp_rendezvous",
    "runner",
    "feedback",
)
"""Arguments that the runtime gives."""
