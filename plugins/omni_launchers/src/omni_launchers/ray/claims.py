"""The claims of a run: what Ray holds for units that are on one node, also of those that join and leave while the run goes on. No IO."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

from attrs import define, field

from omni_core.api import Need, StartupError
from omni_launchers.ray.bundles import Bundle, bundles, ties

if TYPE_CHECKING:
    from ray.util.placement_group import PlacementGroup


@define(eq=False)
class Claim:
    """One bundle of a placement group.

    Attributes:
        bundle: what it holds.
        gpus: the pipeline's numbers of its devices, in their order.
        units: the names of those that are there.
        ties: what keeps others on its node (:func:`ties`).
        is_own: it joined, so its group has no other bundle.
        group, index: its place.
        beside: the claim on whose node it must be.
        node: that node, as Ray was told.
        devices: by node, the ids of its GPUs there.
        lock: held while Ray is asked for them, or for another group.
    """

    bundle: Bundle
    gpus: tuple[int, ...]
    units: set[str] = field(factory=set)
    ties: set[Hashable] = field(factory=set)
    is_own: bool = False
    group: PlacementGroup | None = None
    index: int = 0
    beside: Claim | None = None
    node: str = ""
    devices: dict[str, list[str]] = field(factory=dict)
    lock: asyncio.Lock = field(factory=asyncio.Lock)

    def fits(self, bundle: Bundle) -> bool:
        """Return whether it holds what another bundle asks for."""
        enough = all(self.bundle.resources.get(name, 0.0) >= wanted for name, wanted in bundle.resources.items())
        return enough and self.bundle.labels == bundle.labels and len(self.gpus) == len(bundle.gpus)

    def take(self, need: Need) -> None:
        """Take a unit in."""
        if not self.units:
            self.gpus = tuple(sorted(set(need.gpus)))
        self.units.add(need.unit)
        self.ties |= set(ties(need))


class Claims:
    """The claims of one run.

    Args:
        cpus: those of a process whose stages do not say.
    """

    def __init__(self, cpus: float) -> None:
        self._cpus = cpus
        self._all: list[Claim] = []

    def begin(self, needs: Sequence[Need]) -> list[Claim]:
        """Return the claims of the start, which are to be one placement group, in its order.

        Raises:
            StartupError: units that must be together need different labels.
        """
        by_name = {need.unit: need for need in needs}
        for index, bundle in enumerate(bundles(needs, self._cpus)):
            claim = Claim(bundle, bundle.gpus, index=index)
            claim.units.update(bundle.units)
            claim.ties.update(tie for unit in bundle.units for tie in ties(by_name[unit]))
            self._all.append(claim)
        return list(self._all)

    def of(self, unit: str) -> Claim:
        """Return the claim of a unit. Raises KeyError."""
        for claim in self._all:
            if unit in claim.units:
                return claim
        raise KeyError(unit)

    def add(self, need: Need) -> Claim:
        """Return the claim of a unit that joins. It shares that of units with one of its devices; else it gets one that nobody
        uses any more, or a new one, which has no group yet.

        Raises:
            StartupError: it shares a device with others, and needs more than was claimed for them.
        """
        (bundle,) = bundles([need], self._cpus)
        mine = set(ties(need))
        tied = [claim for claim in self._all if claim.ties & mine]
        sharing = [claim for claim in tied if claim.ties & {(need.host, gpu) for gpu in need.gpus}]
        if sharing:
            claim = sharing[0]
            if not set(need.gpus) <= set(claim.gpus) or not need.labels.items() <= claim.bundle.labels.items():
                raise StartupError(
                    f"{need.unit} shares a GPU with {' and '.join(sorted(claim.units))}, and needs further GPUs or labels: what Ray holds "
                    "for them cannot be changed; restart the pipeline"
                )
        else:
            beside = (tied[0].beside or tied[0]) if tied else None
            idle = [each for each in self._all if not each.units and beside in (None, each) and each.fits(bundle)]
            claim = idle[0] if idle else Claim(bundle, bundle.gpus, is_own=True, beside=beside)
            if not idle:
                self._all.append(claim)
        claim.take(need)
        return claim

    def remove(self, unit: str) -> list[Claim]:
        """Take a unit out. Returns the claims of which nobody is left, and which are to be given back: a bundle of the start's group cannot
        be, and a claim beside which others are stays with them.
        """
        for claim in self._all:
            if unit in claim.units:
                claim.units.remove(unit)
                if not claim.units:
                    claim.ties.clear()
        kept = [each.beside for each in self._all if each.units]
        over = [each for each in self._all if each.is_own and not each.units and each not in kept]
        self._all = [each for each in self._all if each not in over]
        return over
