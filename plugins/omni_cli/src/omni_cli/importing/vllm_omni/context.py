"""The knowledge of rules beside the key itself: the pipeline here, and the other keys that are in effect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attrs import frozen

from omni_cli.importing.report import Outcome, Path, refuse
from omni_cli.importing.target import Target
from omni_cli.importing.vllm_omni.settings import CONNECTOR, EDGE, STAGE, TOP, Setting


@frozen
class Context:
    """The settings in effect, by place, and the pipeline that they become."""

    target: Target
    settings: Mapping[tuple[Any, ...], Setting]

    def stages(self, number: Any) -> tuple[str, ...]:
        """Return our stages for a stage_id; none if there is no such stage."""
        known = self.target.stages
        return known[number] if type(number) is int and 0 <= number < len(known) else ()

    def value(self, number: int, platform: str | None, key: str, default: Any = None) -> Any:
        """Return the value of a stage's key that is in effect on a platform: its own, the stage's, the file's."""
        places = [(STAGE, platform, number, (key,)), (STAGE, None, number, (key,)), (TOP, None, None, (key,))]
        for place in places:
            if place in self.settings and self.settings[place].value is not None:
                return self.settings[place].value
        return default

    def of_scope(self, scope: str) -> list[Setting]:
        return [each for each in self.settings.values() if each.scope == scope]

    @property
    def connectors(self) -> dict[str, list[Setting]]:
        """The settings of each connector by name."""
        found: dict[str, list[Setting]] = {}
        for each in self.of_scope(CONNECTOR):
            found.setdefault(each.keys[0], []).append(each)
        return found

    @property
    def edges(self) -> dict[str, dict[str, Any]]:
        """The values of each explicit edge by its index."""
        found: dict[str, dict[str, Any]] = {}
        for each in self.of_scope(EDGE):
            if len(each.keys) == 2:
                found.setdefault(each.keys[0], {})[each.keys[1]] = each.value
        return found


@frozen
class Place:
    """A key as a rule sees it: with a stage here, its value, and where it would be written."""

    context: Context
    setting: Setting
    stage: str
    number: int
    key: str

    @property
    def value(self) -> Any:
        return self.setting.value

    @property
    def group(self) -> tuple[str, ...]:
        """All our stages that theirs is."""
        return self.context.stages(self.number)

    @property
    def before(self) -> tuple[str, ...]:
        """Our stages for the one before theirs."""
        return self.context.stages(self.number - 1)

    def effective(self, key: str, default: Any = None) -> Any:
        """Return another key's value on this stage and platform."""
        return self.context.value(self.number, self.setting.platform, key, default)

    def at(self, *path: str) -> Path:
        """Return the path of something of this stage in the output, within its platform's section."""
        return (*section(self.setting.platform), "stages", self.stage, *path)

    def accepts(self, name: str) -> bool:
        """Return whether the stage takes this argument."""
        names = self.context.target.parameters(self.stage)
        return names is None or name in names


Rule = Callable[[Place], Outcome]


def section(platform: str | None) -> Path:
    """Return the path of the section for a platform in the output."""
    return () if platform is None else ("platforms", platform)


def wrong(error: ValueError, value: Any) -> Outcome:
    """Return the refusal of a value that a reader cannot read."""
    return refuse(f"{error}, is {value!r}")
