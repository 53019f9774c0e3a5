"""The interface that a pipeline declares, checked against its stages."""

from __future__ import annotations

from collections.abc import Iterator

from omni_core.api import InvalidRequestError, Parameter, PipelineConfig, did_you_mean


def declaration_problems(config: PipelineConfig) -> Iterator[str]:
    """Yield a line for each mistake in the interface that a pipeline declares."""
    interface, stages = config.interface, [stage.name for stage in config.stages]
    if interface is None:
        return
    for role, stage in interface.roles.items():
        if stage not in stages:
            yield f"interface.roles.{role}: no stage is called {stage!r}{did_you_mean(stage, stages)}"
    for group in interface.groups:
        path = f"interface.groups[{group.name}]"
        if group.role not in interface.roles:
            yield f"{path}.role: no role is called {group.role!r}{did_you_mean(group.role, interface.roles)}"
        yield from _repeated(path, group.parameters, [])
        yield from (problem for each in group.parameters for problem in _mistakes(f"{path}[{each.name}]", each))
    plain = interface.plain_group.parameters if interface.plain_group is not None else []
    yield from _repeated("interface.params", [*interface.params, *plain], [group.name for group in interface.groups])
    yield from _repeated("interface.metadata", interface.metadata, [])
    for name, parameters in (("params", interface.params), ("metadata", interface.metadata)):
        yield from (p for each in parameters for p in _mistakes(f"interface.{name}[{each.name}]", each))


def _repeated(path: str, parameters: list[Parameter], taken: list[str]) -> Iterator[str]:
    names = [*taken, *(name for each in parameters for name in each.names)]
    for name in dict.fromkeys(each for each in names if names.count(each) > 1):
        yield f"{path}: the name {name!r} is declared more than once"


def _mistakes(path: str, parameter: Parameter) -> Iterator[str]:
    if parameter.default is not None:
        try:
            parameter.check(parameter.default, f"{path}.default")
        except InvalidRequestError as error:
            yield str(error)
