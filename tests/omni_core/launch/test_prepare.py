"""Preparation of a run: what a spec says of ranks, arguments and environment, and what must be installed."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve

from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.errors import ConfigError, PluginError
from omni_core.hookspecs import ServiceComponent
from omni_core.launch.prepare import ENVIRONMENT, check_modules, prepare
from omni_core.plugins import PluginRecord, PluginRegistry

REGISTRY = PluginRegistry([])


def config(**fields: Any) -> PipelineConfig:
    first = StageConfig(
        name="first", factory="m:f", process="p", next="last", factory_args={"a": 1}, env=fields.get("env", {})
    )
    last = StageConfig(**{"name": "last", "factory": "m:g", "process": "p", "terminal": True, **fields})
    return PipelineConfig(model_path="model", stages=[first, last], env_defaults={"X": "1"})


def test_a_process_has_its_stages_with_their_arguments_and_its_environment() -> None:
    (unit,) = prepare(config(env={"Y": "2"}), REGISTRY, "omni://r").units
    (process,) = unit.processes
    assert (unit.name, process.endpoint, process.coordinator_endpoint) == ("p", "omni://r/p", "omni://r")
    assert process.stage_endpoints == {"first": {0: "omni://r/p"}, "last": {0: "omni://r/p"}}
    first, last = process.stages
    assert (first.factory, first.factory_args, first.next, first.terminal) == ("m:f", {"a": 1}, ["last"], False)
    assert (last.injected["model_path"], last.injected["device"], last.injected["tp_size"]) == ("model", "cpu", 1)
    assert process.env["X"] == "1"
    assert ENVIRONMENT.items() <= process.env.items()
    assert process.own_env == {"Y": "2"}


def test_every_rank_is_a_process_of_one_unit_and_the_first_one_has_followers() -> None:
    given = config(process="wide", tp_size=2)
    units = {unit.name: unit for unit in prepare(given, REGISTRY_WITH_RELAY, "omni://r").units}
    leader, follower = units["wide"].processes
    assert leader.services == {"ranks": "json:loads"}
    assert (leader.rank, leader.followers) == (0, [follower.endpoint])
    assert (follower.rank, follower.followers, follower.relays) == (1, [], {})
    assert [each.stages[0].injected["tp_rank"] for each in (leader, follower)] == [0, 1]


def test_a_stage_that_routes_knows_the_ends_that_only_it_leads_to() -> None:
    def stage(name: str, *targets: str, **fields: Any) -> StageConfig:
        return StageConfig(
            name=name, factory="m:f", process="p", next=list(targets) or None, terminal=not targets, **fields
        )

    stages = [stage("a", "b", "c", "text"), stage("b", "d", "text", route_fn="m:f"), stage("d", "e", "sound")]
    stages += [stage("e", "sound", route_fn="m:f"), stage("c", "text"), stage("text"), stage("sound")]
    (unit,) = prepare(PipelineConfig(model_path="model", stages=stages), REGISTRY, "omni://r").units
    leads = {each.name: each.leads_to for each in unit.processes[0].stages if each.leads_to}
    assert leads == {"b": {"sound": ["d"]}}, "text has other ways, and so has sound around e"


def test_ranks_need_a_service() -> None:
    prepare(config(), REGISTRY)
    with pytest.raises(PluginError, match=r"tp_size: .*: pip install omni-torch"):
        prepare(config(process="wide", tp_size=2), _Relays([]))


@pytest.mark.parametrize(
    "fields",
    [
        {"factory": "json:laods"},
        {
            "factory": None,
            "factory_args": {},
            "model_runner": "json:load",
            "scheduler": "json:load",
            "feedback": "json:laods",
        },
        {"route_fn": "json:laods"},
        {"project_payload": {"last": "json:laods"}},
    ],
)
def test_a_name_that_its_module_lacks_is_told_before_anything_starts(fields: dict[str, Any]) -> None:
    field = next(name for name, value in fields.items() if "laods" in str(value))
    made = config()
    with pytest.raises(ConfigError, match=rf"stages\[first\]\.{field}.*: 'json:laods': .*; did you mean 'load"):
        prepare(evolve(made, stages=[evolve(made.stages[0], **fields), made.stages[1]]), REGISTRY)


@pytest.mark.parametrize(
    "fields",
    [
        {"factory": "nothing:there"},
        {"factory": None, "factory_args": {}, "model_runner": "nothing:there", "scheduler": "json:load"},
        {"route_fn": "nothing:there"},
        {"project_payload": {"last": "nothing:there"}},
    ],
)
def test_a_module_that_does_not_exist_is_told_before_anything_starts(fields: dict[str, Any]) -> None:
    field = next(name for name, value in fields.items() if "nothing" in str(value))
    made = config(factory="json:loads")
    made = evolve(made, stages=[evolve(made.stages[0], **{"factory": "json:loads", **fields}), made.stages[1]])
    prepared = prepare(made, REGISTRY)
    with pytest.raises(ConfigError, match=rf"stages\[first\]\.{field}.*: 'nothing:there': module 'nothing' does not"):
        check_modules(prepared, [])
    check_modules(prepared, ["first"])
    apart = evolve(made, stages=[evolve(each, env={"PYTHONPATH": "/there"}) for each in made.stages])
    check_modules(prepare(apart, REGISTRY), [])


class _Relays(PluginRegistry):
    def resolve_reference(self, hook: str, value: str) -> str:
        return "m:Relay" if hook == "omni_relays" else super().resolve_reference(hook, value)


RANKS = ServiceComponent("mine", "json:loads", "", slot="ranks")
REGISTRY_WITH_RELAY = _Relays([PluginRecord("p", "d", "1", "m", components={"omni_services": [RANKS]})])
