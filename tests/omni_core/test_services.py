"""Slots of services: which one is used, and what an empty slot or a slot with two says."""

from __future__ import annotations

import math
from typing import Any, get_args

import pytest

from omni_core import services
from omni_core.errors import PluginError
from omni_core.hookspecs import ServiceComponent, SlotName
from omni_core.plugins import PluginRecord, PluginRegistry, PluginStatus
from omni_core.services import Slot

MEDIA, PROFILES, TELEMETRY = (Slot[Any](name) for name in ("media", "profiles", "telemetry"))


def service(name: str, target: str = "math:sqrt", slot: Any = "media", **more: Any) -> ServiceComponent:
    return ServiceComponent(name, target, "", slot=slot, **more)


def installed(**plugins: list[ServiceComponent]) -> PluginRegistry:
    return PluginRegistry(
        [
            PluginRecord(name, f"dist-{name}", "1", "m", components={"omni_services": [*each]})
            for name, each in plugins.items()
        ]
    )


def test_every_slot_is_described() -> None:
    described = [each.name for each in vars(services).values() if isinstance(each, Slot)]
    assert sorted([*described, services.IMPORTS]) == sorted(get_args(SlotName))


def test_the_service_with_the_highest_preference_that_can_work_is_used() -> None:
    works = [service("low"), service("high", "math:floor", preference=2), service("other", "math:ceil", "telemetry")]
    registry = installed(one=works, two=[service("absent", preference=3, requires=("no_such_module",))])
    assert MEDIA.load(registry) is math.floor
    assert TELEMETRY.reference(registry) == "math:ceil"
    assert PROFILES.load(registry) is None


@pytest.mark.parametrize("names", [("a", "b"), ("a", "a")])
def test_two_services_of_one_preference_are_an_error_that_names_both(names: tuple[str, str]) -> None:
    registry = installed(one=[service(names[0])], two=[service(names[1])])
    with pytest.raises(
        PluginError, match=r"provided twice, by .*'one' of dist-one 1 and .*'two' of dist-two 1.*=one or two"
    ):
        MEDIA.reference(registry)


def test_an_empty_slot_says_what_to_install_or_what_is_wrong() -> None:
    with pytest.raises(PluginError, match="this needs the service 'media', which comes with omni-media: pip install"):
        MEDIA.need("this needs", installed())
    record = PluginRecord("media", "omni-media", "1", "m", PluginStatus.DISABLED, "OMNI_DISABLE_PLUGINS names it")
    with pytest.raises(PluginError, match="comes with plugin 'media' of omni-media 1, which is disabled: OMNI_DISABLE"):
        MEDIA.need("this needs", PluginRegistry([record]))
    with pytest.raises(
        PluginError, match=r"which no plugin provides; 'mine': module 'no_such_module' is not installed"
    ):
        MEDIA.need("this needs", installed(one=[service("mine", requires=("no_such_module",))]))


def test_a_stage_process_takes_what_its_launch_spec_names() -> None:
    assert MEDIA.given({"media": "math:sqrt"}) is math.sqrt
    assert MEDIA.given({}) is None
    with pytest.raises(
        PluginError, match=r"the service 'media' cannot be imported: .*module 'no_such_module' does not exist"
    ):
        MEDIA.given({"media": "no_such_module:x"})


def test_a_slot_that_does_not_exist_is_refused_where_it_is_written() -> None:
    with pytest.raises(TypeError, match=r"ServiceComponent 'x': slot must be a slot of omni_core.services, is 'medai'"):
        service("x", slot="medai")
