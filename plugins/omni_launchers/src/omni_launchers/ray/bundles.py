"""The bundles of a run's placement group: which units must be on one node, and what they need there together."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

from attrs import define, field, frozen

from omni_core.api import Need, StartupError


@frozen
class Bundle:
    """Units that are on one node.

    Attributes:
        units: their names.
        title: those for messages.
        gpus: the pipeline's numbers of their devices, ascending.
        resources: what Ray is asked for, by its names: ``CPU``, ``GPU``, ``memory`` in bytes.
        labels: those that the node must have.
    """

    units: tuple[str, ...]
    title: str
    gpus: tuple[int, ...]
    resources: dict[str, float]
    labels: dict[str, str]

    def __str__(self) -> str:
        wanted = [amount(name, value) for name, value in self.resources.items()]
        wanted += [f"{name}={value}" for name, value in self.labels.items()]
        return f"{self.title} ({', '.join(wanted)})"


def amount(name: str, value: float) -> str:
    """Format an amount of one of Ray's resources."""
    return f"{value / 2**30:.1f} GiB memory" if name == "memory" else f"{value:g} {name}"


def bundles(needs: Sequence[Need], cpus: float) -> list[Bundle]:
    """Return the bundles of units, in the order of their first units.

    Units are in one bundle if they have the same ``host`` or, on equal ``host``, share a device; so are all processes of a unit.

    Args:
        cpus: those of a process whose stages do not say.

    Raises:
        StartupError: units of one bundle need different labels.
    """
    return [_bundle(members, cpus) for members in _components(needs)]


@define
class _Component:
    members: list[Need] = field(factory=list)
    keys: set[Hashable] = field(factory=set)


def ties(need: Need) -> Iterator[Hashable]:
    """Return what keeps a unit on one node with others that have it too: its host, its devices."""
    if need.host is not None:
        yield need.host
    for gpu in need.gpus:
        yield need.host, gpu


def _components(needs: Sequence[Need]) -> list[list[Need]]:
    found: list[_Component] = []
    for need in needs:
        keys = set(ties(need))
        touched = [each for each in found if each.keys & keys]
        merged = _Component(
            [member for each in touched for member in each.members] + [need],
            keys.union(*(each.keys for each in touched)),
        )
        found = [each for each in found if not any(each is other for other in touched)] + [merged]
    order = {need.unit: position for position, need in enumerate(needs)}
    return sorted((each.members for each in found), key=lambda members: order[members[0].unit])


def _bundle(members: list[Need], cpus: float) -> Bundle:
    gpus = tuple(sorted({gpu for need in members for gpu in need.gpus}))
    resources = {"CPU": sum(cpus * need.processes if need.cpus is None else need.cpus for need in members)}
    if gpus:
        resources["GPU"] = float(len(gpus))
    if memory := sum(need.memory or 0 for need in members):
        resources["memory"] = float(memory)
    title = " and ".join(_title(each) for each in members)
    labels: dict[str, str] = {}
    for need in members:
        for name, value in need.labels.items():
            if labels.setdefault(name, value) != value:
                raise StartupError(
                    f"{title} must be on one node, as they share a GPU or a `host`, but need different labels: "
                    f"{name} is {labels[name]!r} and {value!r}"
                )
    return Bundle(tuple(need.unit for need in members), title, gpus, resources, labels)


def _title(need: Need) -> str:
    """Return the name of a unit: that of its stage, if it has one only and the name of the unit does not tell it."""
    return need.unit if len(need.stages) != 1 or need.unit.startswith(need.stages[0]) else need.stages[0]
