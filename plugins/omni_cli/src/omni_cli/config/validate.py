"""``omni config validate PIPELINE``: everything that is wrong with a config, at once, with its file and line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import click
from attrs import evolve

from omni_cli.config.command import placed_here
from omni_cli.config.components import component_problems, unchecked
from omni_cli.config.lenient import resolved
from omni_cli.config.server import admission_problems, serve_command, server_problems
from omni_cli.deploy.budgets import problems as placement_problems
from omni_cli.deploy.options import source_of
from omni_cli.deploy.override_layers import LayeredConfig
from omni_cli.deploy.platforms import platform
from omni_core.api import ConfigError, PipelineConfig, load_plugins
from omni_core.runtime_api import plan, reachable, with_source


@click.command()
@with_source
@click.pass_context
def validate(context: click.Context, /, **options: Any) -> None:
    """Check a config, on every platform that its files name, and that the components that it names are installed and take the
    arguments that they are given. Nothing is started.
    """
    registry = load_plugins()
    rules = (
        partial(server_problems, serve=serve_command(context)),
        admission_problems,
        shared_devices,
    )
    components = partial(component_problems, registry=registry)
    source, here = source_of(options), platform()
    deploy = source.files(registry)
    configs, problems = list[LayeredConfig](), list[str]()
    for each in dict.fromkeys([here, *(deploy.platforms if deploy is not None else ())]):
        found, lines = resolved(evolve(source, platform=each), registry, rules, [components])
        configs += [found] if found is not None else []
        problems += lines
    if problems:
        raise ConfigError("\n".join(sorted(dict.fromkeys(problems), key=_place)))
    for notice in source.notices:
        click.echo(notice, err=True)
    first, config = configs[0], placed_here(configs[0])
    problems = placement_problems(plan(config)) if config is not first.config else []
    if problems:
        raise ConfigError("\n".join(map(first.located, problems)))
    for line in (*starving(config), *unchecked(config, registry)):
        click.echo(f"Warning: {first.located(line)}", err=True)
    click.echo(f"{config.resolved_name}: {len(config.stages)} stages in {len(plan(config))} processes, valid")


def _place(line: str) -> tuple[str, int]:
    """Return the file and line with which a problem begins, so that problems are in their order; others come first."""
    found = re.match(r"(.+?):(\d+)[:,]", line)
    return ("", 0) if found is None else (found[1], int(found[2]))


def shared_devices(config: PipelineConfig) -> Iterator[str]:
    """Yield a line for each device of which more than all is given away, on any machine, and for each budget that nothing will choose."""
    try:
        found = placement_problems(plan(config))
    except (
        ConfigError,
        IndexError,
        KeyError,
    ):  # what is wrong with devices, budgets or groups by themselves is reported by the rules
        return
    yield from (each for each in found if config.placement_fn is None or ": required" not in each)


def starving(config: PipelineConfig) -> Iterator[str]:
    """Yield a line for each fan-in of a valid pipeline that a route may leave waiting for ever."""
    edges = {stage.name: stage.next_stages for stage in config.stages}
    reached = {name: reachable(edges, name) for name in edges}
    for router in config.stages:
        for stage in config.stages if router.route_fn else ():
            if not stage.wait_for or stage.wait_for_fn:
                continue
            sources = {*stage.wait_for}
            sent = [
                {name for name in sources if name in reached[target]}
                | ({router.name} & sources if target == stage.name else set[str]())
                for target in router.next_stages
            ]
            if any(each and each != set().union(*sent) for each in sent):
                yield (
                    f"stages[{stage.name}].wait_for: `route_fn` of {router.name!r} can leave out some of {', '.join(stage.wait_for)}, "
                    "and this stage would wait for them for ever; say which of them contribute in `wait_for_fn`"
                )
