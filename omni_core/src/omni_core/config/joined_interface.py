"""The interface of a composed pipeline, and the names that its parts' parameters have there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import evolve, field, frozen

from omni_core.config.schema import PipelineConfig
from omni_core.interface import TEXT, Interface, Parameter


@frozen
class Renames:
    """Names of a part that differ in the whole: the part's own name to the other.

    Attributes:
        params: keys of ``params``.
        metadata: keys of ``metadata``.
        roles: of the interface.
        limits: of the interface.
    """

    params: dict[str, str] = field(factory=dict)
    metadata: dict[str, str] = field(factory=dict)
    roles: dict[str, str] = field(factory=dict)
    limits: dict[str, str] = field(factory=dict)


def joined_interface(
    parts: Mapping[str, PipelineConfig], visible: Mapping[str, Sequence[str]]
) -> tuple[Interface | None, dict[str, Renames]]:
    """Return the interface of the whole, ``None`` if no part has one, and what is renamed in each part.

    A name that several parts have stays that of the last of them, which is nearest to the client; in the others it gets the prefix
    ``PART_``. What a request may bring is that of the first part; outputs and voices are those of the parts that answer the client.

    Args:
        visible: by part, the terminal stages whose results the client gets.
    """
    found = {name: config.interface or Interface() for name, config in parts.items()}
    if all(config.interface is None for config in parts.values()):
        return None, {name: Renames() for name in parts}
    last: dict[str, dict[str, str]] = {"params": {}, "metadata": {}, "roles": {}, "limits": {}}
    for part, interface in found.items():
        for kind, names in _names(interface).items():
            last[kind] |= dict.fromkeys(names, part)
    renames = {
        part: Renames(
            **{
                kind: {name: f"{part}_{name}" for name in names if last[kind][name] != part}
                for kind, names in _names(interface).items()
            }
        )
        for part, interface in found.items()
    }
    joined = [_renamed(part, interface, renames[part]) for part, interface in found.items()]
    answering = [interface for part, interface in found.items() if visible[part]]
    speaking = [interface for interface in answering if "audio" in interface.outputs][-1:] or [joined[0]]
    writing = [interface for interface in answering if TEXT in interface.roles][-1:] or [joined[0]]
    whole = evolve(
        joined[0],
        roles={role: stage for each in joined for role, stage in each.roles.items()},
        outputs=list(dict.fromkeys(kind for each in answering for kind in each.outputs)),
        groups=[group for each in joined for group in each.groups],
        params=[parameter for each in joined for parameter in each.params],
        metadata=[parameter for each in joined for parameter in each.metadata],
        limits={name: most for each in joined for name, most in each.limits.items()},
        voices=speaking[0].voices,
        voices_from=speaking[0].voices_from,
        voices_open=speaking[0].voices_open,
        sample_rate=speaking[0].sample_rate,
        word_times=speaking[0].word_times,
        tool_format=writing[0].tool_format,
        tool_choice=writing[0].tool_choice,
        completes=False,
        reasoning=writing[0].reasoning,
    )
    return whole, renames


def _names(interface: Interface) -> dict[str, list[str]]:
    return {
        "params": [*(group.name for group in interface.groups), *(each.name for each in interface.params)],
        "metadata": [each.name for each in interface.metadata],
        "roles": list(interface.roles),
        "limits": list(interface.limits),
    }


def _renamed(part: str, interface: Interface, renames: Renames) -> Interface:
    roles = {role: renames.roles.get(role, role) for role in interface.roles}
    return evolve(
        interface,
        roles={roles[role]: f"{part}-{stage}" for role, stage in interface.roles.items()},
        groups=[
            evolve(group, name=renames.params.get(group.name, group.name), role=roles.get(group.role, group.role))
            for group in interface.groups
        ],
        params=_parameters(interface.params, renames.params),
        metadata=_parameters(interface.metadata, renames.metadata),
        limits={renames.limits.get(name, name): most for name, most in interface.limits.items()},
    )


def _parameters(parameters: Sequence[Parameter], names: Mapping[str, str]) -> list[Parameter]:
    return [evolve(each, name=names[each.name], aliases=[]) if each.name in names else each for each in parameters]
