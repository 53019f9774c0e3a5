"""``omni pipelines``: the installed pipelines, and what one of them offers."""

from __future__ import annotations

from collections.abc import Iterator

import click

from omni_cli.deploy.files import presets
from omni_core.api import Interface, Parameter, PipelineComponent, load_plugins


@click.command()
@click.argument("name", required=False)
def pipelines(name: str | None) -> None:
    """List the installed pipelines and their options; of NAME, also its parameters, modalities, limits and voices."""
    registry = load_plugins()
    if name is not None:
        registry.get("omni_pipelines", name)  # an unknown name is an error with the nearest one
    found = [(each, record) for each, record in registry.components("omni_pipelines") if name in (None, each.name)]
    if not found:
        click.echo("No pipelines are installed. A pipeline comes with its plugin; try: pip install omni-qwen3")
        return
    for component, record in found:
        click.echo(f"{component.name}  ({record.distribution} {record.version})")
        click.echo(f"    {component.summary}")
        if isinstance(component, PipelineComponent):
            for option, text in component.options.items():
                click.echo(f"    --option {option}=...  {text}")
            if name is not None:
                for line in described(component):
                    click.echo(line)


def described(component: PipelineComponent) -> Iterator[str]:
    """Yield what a pipeline declares, line by line."""
    for preset, path in presets(component).items():
        about = path.read_text(encoding="utf-8").partition("\n")[0]
        yield f"    preset {component.name}/{preset}: {about.lstrip('# ')}"
    if component.architectures:
        yield f"    checkpoints: {', '.join(component.architectures)}"
    if component.fallback is not None:
        yield "    checkpoints: those that it can run and no other plugin names"
    if component.files:
        yield f"    files that are checkpoints: {', '.join(f'*{each}' for each in component.files)}"
    if component.interface_from is not None:
        yield f"    Of a checkpoint it offers: omni run {component.name} --model MODEL --help"
    interface = component.interface
    if interface is None and component.interface_from is not None:
        return
    if interface is None:
        yield "    It declares no interface: parameters of its requests are not checked."
        return
    speech = "" if interface.sample_rate is None else f" ({interface.sample_rate} Hz)"
    streams = f"; as a stream: {', '.join(interface.input_streams)}" if interface.input_streams else ""
    yield f"    takes: {', '.join(interface.inputs)}{streams}"
    yield f"    answers: {', '.join(interface.outputs)}{speech}"
    yield f"    roles: {', '.join(f'{role} = {stage}' for role, stage in interface.roles.items())}"
    if interface.voices or interface.voices_from:
        yield f"    voices: {', '.join(interface.voices) or interface.voices_from}"
    if interface.limits:
        yield f"    limits: {', '.join(f'{limit} {value:g}' for limit, value in interface.limits.items())}"
    yield from _parameters(interface)


def _parameters(interface: Interface) -> Iterator[str]:
    for group in interface.groups:
        plain = ", or directly in params" if group is interface.plain_group else ""
        yield f"    params.{group.name}: {group.help}{plain}"
        yield from map(_line, group.parameters)
    for heading, parameters in (("params", interface.params), ("metadata", interface.metadata)):
        if parameters:
            yield f"    {heading}"
            yield from map(_line, parameters)


def _line(parameter: Parameter) -> str:
    default = "" if parameter.default is None else f"; default {parameter.default}"
    return f"        {' or '.join(parameter.names)}: {parameter.help} [{parameter.expected}{default}]"
