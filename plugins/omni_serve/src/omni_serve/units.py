"""Tell which units of the pipeline a request needs and if they serve: text is answered while the units of speech restart."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from omni_core.api import SPEECH, TEXT, VOCODER, PipelineConfig
from omni_serve.errors import NOT_RUNNING, RESTARTING, opaque

Health = dict[str, dict[str, Any]]

_SERVES = ("ready", "stalled")
"""States in which requests are taken; those for a unit that is stalled wait."""


class Units:
    """The units of a pipeline, as its health reports them.

    Args:
        health: by unit: its stages, its ``state``, its restarts, the reason of its last death.
    """

    def __init__(self, config: PipelineConfig, health: Callable[[], Health]) -> None:
        self._health = health
        self.stages = [stage.name for stage in config.stages]
        self._speech = _only_for_speech(config)

    def report(self) -> tuple[bool, dict[str, dict[str, Any]]]:
        """Return if every stage is served by some unit that answers, and each unit's state."""
        health = self._health()
        shown: Health = {
            name: {key: unit[key] for key in ("stages", "state", "restarts", "reason") if key in unit}
            for name, unit in health.items()
        }
        return not self._missing(health, self.stages, ("ready",)), shown

    def check(self, *, speech: bool) -> None:
        """Raise ApiError 503 if a unit that a request needs does not serve; the log names it.

        Args:
            speech: the request is answered with speech.
        """
        health = self._health()
        if all(unit["state"] in _SERVES for unit in health.values()):
            return
        needed = [stage for stage in self.stages if speech or stage not in self._speech]
        for stage in self._missing(health, needed):
            name, unit = next((name, unit) for name, unit in health.items() if stage in unit["stages"])
            failed = unit["state"] == "failed"
            raise opaque(
                503,
                (NOT_RUNNING if failed else RESTARTING)
                + ("; other requests are served" if len(needed) < len(self.stages) or self._speech else ""),
                f"the unit {name!r} (stage {stage}) is {unit['state']}: {unit.get('reason') or 'for no known reason'}",
                code="unit_failed" if failed else "unit_restarting",
                retry_after=30 if failed else 2,
            )

    def _missing(self, health: Health, needed: list[str], serving: Collection[str] = _SERVES) -> list[str]:
        """Return those of the needed stages of which no replica serves."""
        served = {stage for unit in health.values() if unit["state"] in serving for stage in unit["stages"]}
        known = {stage for unit in health.values() for stage in unit["stages"]}
        return [stage for stage in needed if stage in known and stage not in served]


def _only_for_speech(config: PipelineConfig) -> set[str]:
    """Return the stages that only a spoken answer needs: those of the speech roles where there is a text role, and what follows them."""
    roles = config.interface.roles if config.interface is not None else {}
    if TEXT not in roles:
        return set()
    found = {roles[role] for role in (SPEECH, VOCODER) if role in roles}
    following = {stage.name: [*stage.next_stages, *stage.stream_to] for stage in config.stages}
    waiting = list(found)
    while waiting:
        for name in following.get(waiting.pop(), ()):
            if name not in found:
                found.add(name)
                waiting.append(name)
    return found
