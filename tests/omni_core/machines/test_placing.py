"""The launch specs of a unit for the machine that it got, with a launcher of two machines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from omni_core.config.placement import Replica, plan
from omni_core.config.schema import LauncherConfig, PipelineConfig, RelayConfig, StageConfig
from omni_core.errors import ConfigError, StartupError
from omni_core.hookspecs import Component, RelayComponent, ServiceComponent
from omni_core.launch.prepare import prepare
from omni_core.machines import Grant, Launcher, LauncherOptions, Need, Placing, RunMachine, needs
from omni_core.plugins import PluginRecord, PluginRegistry
from omni_core.processes.process import SupervisedProcess
from omni_core.protocol.specs import NetworkSpec, ProcessSpec

RUN = "omni://r"


class Process(SupervisedProcess):
    def say_stop(self) -> None:
        pass

    def kill(self) -> None:
        pass


class Box(RunMachine):
    def __init__(self, name: str) -> None:
        self.name, self.directory, self.host = name, f"/{name}/omni-x", f"10.0.0.{name}"
        self.started: list[ProcessSpec] = []

    def start(self, spec: ProcessSpec, on_exit: Callable[[SupervisedProcess], None]) -> SupervisedProcess:
        self.started.append(spec)
        process = Process(spec)
        process.address = f"tcp://{self.host}:{len(self.started)}"
        return process


class Meeting(Box):
    async def free_port(self) -> int:
        return 20_000 + len(self.started)


class Boxes(Launcher):
    anywhere = True

    def __init__(self, options: LauncherOptions) -> None:
        self.here, self.there = Box("1"), Box("2")
        self.network_spec = NetworkSpec("m:network")
        self.places: dict[str, RunMachine] = {}
        self.devices: dict[int, int] = {}

    async def acquire(self, needs: Sequence[Need]) -> None:
        pass

    async def place(self, unit: str) -> Grant:
        return Grant(self.places[unit], {"CUDA_VISIBLE_DEVICES": "3"}, self.devices)

    async def release(self) -> None:
        pass


def installed(*relays: RelayComponent) -> PluginRegistry:
    return PluginRegistry([PluginRecord("p", "d", "1", "m", components={"omni_relays": list(relays)})])


RELAYS = installed(
    RelayComponent("near", "omni_core.relay.base:Relay", "memory"),
    RelayComponent("far", "omni_core.relay.base:Relay", "a network", across_hosts=True),
)
BOX = {"omni_launchers": [Component("l", "m:L", "boxes")]} | {
    "omni_services": [ServiceComponent("ranks", "json:loads", "in step", slot="ranks")]
}
BOXES = PluginRegistry([*RELAYS.records, PluginRecord("l", "d", "1", "m", components=BOX)])
CONFIG = PipelineConfig(
    model_path="none",
    relay_backend="near",
    stages=[
        StageConfig(name="a", factory="m:f", process="a", next="b"),
        StageConfig(name="b", factory="m:f", process="b", terminal=True),
    ],
)


def placed() -> tuple[Boxes, Placing, Any, Any]:
    boxes = Boxes(LauncherOptions("r", Path("/r"), CONFIG))
    a, b = prepare(CONFIG, RELAYS, RUN, boxes.network_spec, boxes.anywhere).units
    return boxes, Placing(boxes, RUN, [a, b], "tcp://10.0.0.1:9"), a, b


async def test_processes_of_one_machine_use_sockets_and_of_two_the_network() -> None:
    boxes, placing, a, b = placed()
    boxes.places = {"a": boxes.here, "b": boxes.there}
    (spec_a,), launch_a = await placing.place(a, 0)
    assert spec_a.addresses == {RUN: "ipc:///1/omni-x/coordinator.sock", a.endpoint: "ipc:///1/omni-x/0.sock"}
    assert spec_a.own_env == {"CUDA_VISIBLE_DEVICES": "3"}
    launch_a(spec_a, lambda process: None)
    (spec_b,), launch_b = await placing.place(b, 0)
    assert spec_b.addresses == {
        RUN: "tcp://10.0.0.1:9",
        a.endpoint: "tcp://10.0.0.1:1",
        b.endpoint: "ipc:///2/omni-x/1.sock",
    }
    assert placing.address(b.endpoint) == "", "not launched yet"
    launch_b(spec_b, lambda process: None)
    assert placing.address(b.endpoint) == placing.address(b.endpoint, a.endpoint) == "tcp://10.0.0.2:1"
    assert placing.address(b.endpoint, b.endpoint) == "ipc:///2/omni-x/1.sock"
    assert spec_b.relays["near"].options["directory"] == "/2/omni-x"
    assert spec_b.spare_relays["far"].options["host"] == "10.0.0.2"


async def test_a_unit_that_moves_is_reached_where_it_is() -> None:
    boxes, placing, a, b = placed()
    boxes.places = {"a": boxes.here, "b": boxes.there}
    for unit in (a, b):
        (spec,), launch = await placing.place(unit, 0)
        launch(spec, lambda process: None)
    boxes.places["b"] = boxes.here
    (spec,), launch = await placing.place(b, 1)
    launch(spec, lambda process: None)
    assert placing.address(b.endpoint, a.endpoint) == "ipc:///1/omni-x/1.sock"
    assert spec.relays["near"].options["directory"] == "/1/omni-x"


async def test_the_address_of_a_process_that_has_ended_is_told_to_none() -> None:
    """Another process may have its port by now."""
    boxes, placing, a, b = placed()
    boxes.places = {"a": boxes.here, "b": boxes.there}
    (spec,), launch = await placing.place(b, 0)
    launch(spec, lambda process: None).code = -9
    (spec,), _ = await placing.place(a, 0)
    assert b.endpoint not in spec.addresses
    assert placing.address(b.endpoint, a.endpoint) == ""


async def test_a_unit_that_is_added_has_an_address_of_its_own_and_none_when_it_has_left() -> None:
    boxes, placing, a, b = placed()
    config = evolve(CONFIG, stages=[CONFIG.stages[0], evolve(CONFIG.stages[1], replicas=2)])
    replicas = {"b": [Replica(0, 0, "b"), Replica(0, 1, "b.1")]}
    prepared = prepare(config, RELAYS, RUN, boxes.network_spec, boxes.anywhere, replicas)
    new = next(unit for unit in prepared.units if unit.name == "b.1")
    assert (new.replica, new.slot, new.group) == (1, 0, "b")
    assert prepared.stage_endpoints["b"] == {0: b.endpoint, 1: new.endpoint}
    boxes.places = {"a": boxes.here, "b": boxes.here, "b.1": boxes.here}
    placing.add(new)
    for unit in (a, b, new):
        (spec,), launch = await placing.place(unit, 0)
        launch(spec, lambda process: None)
    assert placing.address(new.endpoint) == "ipc:///1/omni-x/2.sock"
    placing.remove(b)
    (spec,), _ = await placing.place(a, 1)
    assert spec.addresses.keys() == {RUN, a.endpoint, new.endpoint}
    placing.add(b)
    (spec,), _ = await placing.place(b, 1)
    assert spec.addresses[b.endpoint] == "ipc:///1/omni-x/3.sock", "the socket of another must not be taken"


async def test_a_launcher_that_adds_nothing_says_so() -> None:
    boxes, *_ = placed()
    with pytest.raises(StartupError, match=r"b\.1: the launcher Boxes cannot add units to a run"):
        await boxes.add(Need("b.1"))
    await boxes.remove("b.1")


def test_with_any_machine_each_edge_has_a_relay_for_either_case() -> None:
    a, b = prepare(CONFIG, RELAYS, RUN, NetworkSpec("m:n"), anywhere=True).units
    process = a.processes[0]
    assert process.relay_towards == {b.endpoint: "near"}
    assert process.relay_across == {b.endpoint: "far"}
    assert (list(process.relays), list(process.spare_relays)) == (["near"], ["far"])
    alone = prepare(CONFIG, RELAYS, RUN).units[0].processes[0]
    assert (alone.relay_across, alone.spare_relays) == ({}, {})
    with pytest.raises(ConfigError, match="may be on different hosts, and no relay that can work here joins them"):
        prepare(
            CONFIG,
            installed(RelayComponent("near", "omni_core.relay.base:Relay", "memory")),
            RUN,
            NetworkSpec("m:n"),
            anywhere=True,
        )


def test_only_stages_of_one_host_need_no_relay_between_machines() -> None:
    stages = [evolve(stage, host="h") for stage in CONFIG.stages]
    process = (
        prepare(evolve(CONFIG, stages=stages, launcher=LauncherConfig("l")), BOXES, RUN, NetworkSpec("m:n"), True)
        .units[0]
        .processes[0]
    )
    assert (process.relay_towards, process.relay_across) == ({f"{RUN}/b": "near"}, {})


async def test_a_process_gets_the_number_that_its_device_has_there() -> None:
    stages = [evolve(CONFIG.stages[0], gpu=5), evolve(CONFIG.stages[1], gpu=5, gpu_memory=0.5)]
    stages[0] = evolve(stages[0], gpu_memory=0.5, relay=RelayConfig(backend="far", device="cuda:5"))
    config = evolve(CONFIG, stages=stages, launcher=LauncherConfig("l"))
    boxes = Boxes(LauncherOptions("r", Path("/r"), config))
    units = prepare(config, BOXES, RUN, boxes.network_spec, anywhere=True).units
    placing = Placing(boxes, RUN, units, "tcp://10.0.0.1:9")
    boxes.places, boxes.devices = {"a": boxes.here, "b": boxes.there}, {5: 1}
    for unit in units:
        (spec,), _ = await placing.place(unit, 0)
        assert (spec.stages[0].gpu, spec.stages[0].injected["device"]) == (1, "cuda:1")
        assert {relay.options["device"] for relay in spec.relays.values()} == {"cuda:1"}
    boxes.devices = {}
    (spec,), _ = await placing.place(units[0], 1)
    assert (spec.stages[0].gpu, spec.stages[0].injected["device"]) == (5, "cuda:5")


async def test_ranks_on_two_machines_meet_at_the_first_rank_and_are_told_where_the_others_are() -> None:
    ranks = evolve(CONFIG.stages[0], process=None, tp_size=3, gpu=[0, 1, 1], host=["x", "y", "x"])
    config = evolve(CONFIG, stages=[ranks, CONFIG.stages[1]], launcher=LauncherConfig("l"))
    boxes = Boxes(LauncherOptions("r", Path("/r"), config))
    unit, _ = prepare(config, BOXES, RUN, boxes.network_spec, anywhere=True).units
    assert [need for need in needs(plan(config)) if need.stages == ("a",)] == [
        Need("a_tp0", ("a",), 2, (0, 1), "x"),
        Need("a_tp1", ("a",), 1, (1,), "y"),
    ]
    placing = Placing(boxes, RUN, [unit], "tcp://10.0.0.1:9")
    boxes.places = {"a_tp0": boxes.there, "a_tp1": boxes.here}
    with pytest.raises(StartupError, match="ranks of one stage cannot be on several machines: a Box has no port"):
        await placing.place(unit, 0)
    boxes.places = {"a_tp0": Meeting("7"), "a_tp1": boxes.here}
    specs, launch = await placing.place(unit, 0)
    assert {spec.stages[0].injected["tp_rendezvous"] for spec in specs} == {"tcp://10.0.0.7:20000"}
    for spec in specs:
        launch(spec, lambda process: None)
    leader, far, near = (spec.endpoint for spec in specs)
    assert placing.address(far, leader) == "tcp://10.0.0.1:1"
    assert placing.address(leader, far) == "tcp://10.0.0.7:1"
    assert placing.address(near, leader) == specs[0].addresses[near] == "ipc:///7/omni-x/2.sock"
    boxes.places = {"a_tp0": boxes.here, "a_tp1": boxes.here}
    specs, _ = await placing.place(unit, 3)
    assert {spec.stages[0].injected["tp_rendezvous"] for spec in specs} == {"file:///1/omni-x/0.ranks3"}


def test_a_need_has_what_all_processes_of_its_unit_claim() -> None:
    fused = [
        evolve(CONFIG.stages[0], process="p", cpus=0.5, memory="1GiB", labels={"rack": "b"}),
        evolve(CONFIG.stages[1], process="p", cpus=2.0, labels={"rack": "b"}),
    ]
    (need,) = needs(plan(evolve(CONFIG, stages=fused)))
    assert (need.cpus, need.memory, need.labels) == (2.5, 2**30, {"rack": "b"})
    ranks = [evolve(CONFIG.stages[0], gpu=[0, 1], tp_size=2, cpus=2.0, memory="1GiB"), CONFIG.stages[1]]
    one, other = needs(plan(evolve(CONFIG, stages=ranks)))
    assert (one.cpus, one.memory, other.cpus, other.memory) == (4.0, 2**31, None, None)


def test_the_needs_of_a_plan() -> None:
    stages = [
        evolve(CONFIG.stages[0], gpu=[1, 2], tp_size=2, process=None),
        evolve(CONFIG.stages[1], replicas=2, host="b", gpu=[3, 4]),
    ]
    assert needs(plan(evolve(CONFIG, stages=stages))) == [
        Need("a", ("a",), 2, (1, 2)),
        Need("b.0", ("b",), 1, (3,), "b"),
        Need("b.1", ("b",), 1, (4,), "b"),
    ]
