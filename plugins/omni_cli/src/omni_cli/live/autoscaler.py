"""Carries out what the policies of ``autoscale`` decide: asks the stages for their queues once a second while there is work."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from attrs import define, field

from omni_cli.live.autoscale import AutoscaleSettings, Demand, Policy, QueueTime
from omni_core.api import ConfigError, kept_up, load
from omni_core.runtime_api import Role, Running, Supervisor, is_interrupt, message_of, process_groups, read_settings

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""The time between two looks. An idle pipeline with its least replicas is not looked at."""

Scale = Callable[[str, int, Mapping[str, Any]], Awaitable[bool]]
"""Scales a stage: its name, the number, settings. Returns False if that cannot be done now; raises OmniError."""


@define
class _Scaled:
    """A process group that scales by itself. ``not_before``: the next change, after one that has failed."""

    name: str
    stages: list[str]
    settings: AutoscaleSettings
    policy: Policy
    not_before: float = 0.0
    answers: dict[str, dict[str, dict[str, float]]] = field(factory=dict)
    """The last one of each process."""


class Autoscaler:
    """Looks after the process groups whose stages set ``autoscale``.

    Raises:
        ConfigError: the settings of one are wrong.
    """

    def __init__(self, running: Running, scale: Scale) -> None:
        self._running = running
        self._scale = scale
        self._looking: asyncio.Future[None] | None = None
        self._groups = []
        for name, stages in process_groups(running.config).items():
            given = stages[0].autoscale
            if given is None:
                continue
            try:
                settings = read_settings(AutoscaleSettings, given, "autoscale")
                policy: Policy = (_loaded(settings.policy) if settings.policy else QueueTime)(settings)
            except ConfigError as error:
                raise ConfigError(f"stages[{stages[0].name}].{str(error).replace('.settings', '', 1)}") from None
            if not settings.min <= stages[0].replicas <= settings.max:
                bounds = f"{settings.min} and {settings.max}"
                raise ConfigError(f"stages[{stages[0].name}].replicas: is {stages[0].replicas}, not between {bounds}")
            self._groups.append(_Scaled(name, [stage.name for stage in stages], settings, policy))

    def begin(self) -> None:
        """There is work."""
        if self._groups and (self._looking is None or self._looking.done()):
            self._looking = kept_up(self._look, "autoscale")

    def close(self) -> None:
        """Look no more."""
        if self._looking is not None:
            self._looking.cancel()

    async def _look(self) -> None:
        while self._running.coordinator.in_flight or any(
            len(self._serving(group)) > group.settings.min for group in self._groups
        ):
            await asyncio.sleep(LOOK_SECONDS)
            for group in self._groups:
                await self._follow(group, asyncio.get_running_loop().time())

    def _serving(self, group: _Scaled) -> list[Supervisor]:
        units = self._running.units.values()
        return [unit for unit in units if unit.spec.group == group.name and unit.role is Role.SERVING]

    async def _follow(self, group: _Scaled, now: float) -> None:
        wanted = group.policy.decide(await self._demand(group), now)
        wanted = min(max(wanted, group.settings.min), group.settings.max)
        there = len(self._serving(group))
        if wanted == there or now < group.not_before:
            return
        settings: dict[str, Any] = {}
        for stage in (self._running.config.stage(name) for name in group.stages):
            prefix = f"{stage.name}." if len(group.stages) > 1 else ""
            for name in ("gpu", "host"):
                if (most := getattr(group.settings, name)) is not None:
                    by_rank = name == "gpu" or len(most) > group.settings.max
                    settings[f"{prefix}{name}"] = most[: wanted * (stage.tp_size if by_rank else 1)]
        try:
            if await self._scale(group.name, wanted, settings):
                logger.info("autoscale: %s has %d replicas now, before %d", group.name, wanted, there)
        except BaseException as error:  # of a launcher or a policy; the next look tries again
            if issubclass(type(error), asyncio.CancelledError) or is_interrupt(error):
                raise
            logger.warning(
                "autoscale: %s stays at %d replicas: %s", group.name, there, message_of(error, with_type=True)
            )
            group.not_before = now + group.settings.idle_seconds

    async def _demand(self, group: _Scaled) -> Demand:
        units = self._serving(group)
        asked = [unit.spec.processes[0] for unit in units if unit.life.serves]
        answers = await self._running.observation.counters(asked, LOOK_SECONDS)
        # A process that is too busy to answer is taken to be as it was, and not idle.
        names = {each.name for each in asked}
        group.answers = {name: last for name, last in group.answers.items() if name in names} | answers
        found = {name: [last.get(stage, {}) for stage in group.stages] for name, last in group.answers.items()}

        def total(*fields: str) -> float:
            return sum(max(each.get(name, 0.0) for name in fields) for stages in found.values() for each in stages)

        silent = [
            name for name in names - answers.keys() if not any(each.get("in_flight") for each in found.get(name, []))
        ]
        return Demand(len(units), total("waiting", "queued"), total("in_flight") + len(silent), total("completed"))


def _loaded(policy: str) -> Any:
    try:
        return load(policy)
    except (ConfigError, ImportError) as error:
        raise ConfigError(f"autoscale.policy: {error}") from None
