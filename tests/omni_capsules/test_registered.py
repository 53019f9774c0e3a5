"""A replay without ``--trust`` builds what installed plugins register, and nothing else that a capsule names."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest
from capsule_parts import MakeCapsule, payload

from omni_capsules.capsule import Capsule, CapsuleError
from omni_capsules.environment import describe
from omni_capsules.rebuild import Rebuilt, chosen, enter, rebuild
from omni_capsules.records import Records
from omni_core.client.source import source_class
from omni_core.launch.prepare import prepare
from omni_core.plugins import PluginRegistry, load_plugins
from omni_core.protocol.specs import ProcessSpec, StageSpec

REGISTRY = load_plugins()


def processes(pipeline: str, **fields: Any) -> list[ProcessSpec]:
    """Return the launch specs of an installed pipeline with its own checkpoint."""
    config = source_class()(pipeline, settings=fields).resolve(REGISTRY).config
    return [each for unit in prepare(config, REGISTRY).units for each in unit.processes]


def stage_of(pipeline: str, name: str, **fields: Any) -> StageSpec:
    return next(stage for each in processes(pipeline, **fields) for stage in each.stages if stage.name == name)


@pytest.fixture
def untrusted(make_capsule: MakeCapsule) -> Any:
    """Return what rebuilds a stage from a capsule of a pipeline, without trust."""

    def build(spec: StageSpec, pipeline: str = "demo", process: Any = (), **options: Any) -> Rebuilt:
        def write(records: Records) -> None:
            records.add(spec.name, "r", "payload", payload({}))

        capsule: Capsule = make_capsule(spec, write, pipeline=pipeline)
        capsule = attrs.evolve(capsule, processes={"p": {**capsule.processes["p"], **dict(process)}})
        return rebuild(
            capsule, chosen(capsule, spec.name), **{"model": None, "device": None, "trust": False, **options}
        )

    return build


@pytest.mark.parametrize("pipeline", ["demo", "demo-image"])
def test_every_stage_of_an_installed_pipeline_is_built_as_it_was(pipeline: str, untrusted: Any) -> None:
    for process in processes(pipeline):
        for spec in process.stages:
            kernels = {name: [attrs.asdict(each) for each in found] for name, found in process.kernels.items()}
            rebuilt = untrusted(spec, pipeline, {"kernels": kernels, "env": process.env})
            assert (rebuilt.spec, rebuilt.kernels, rebuilt.env) == (spec, process.kernels, process.env)
            assert rebuilt.withheld == []


def test_a_pipeline_of_another_name_is_found_by_its_checkpoint(untrusted: Any) -> None:
    spec = stage_of("demo", "thinker", **{"stages.thinker.factory_args.max_running": 2})
    assert untrusted(spec, "my-service").spec.factory_args["max_running"] == 2


def test_parts_are_swapped_for_registered_ones(untrusted: Any) -> None:
    spec = stage_of("demo", "thinker")
    for component, _ in REGISTRY.components("omni_schedulers"):
        swapped = attrs.evolve(spec, scheduler=component.target)
        assert untrusted(swapped).spec == swapped


HOSTILE = {
    "a function of the standard library": {"factory": "os:system", "factory_args": {"command": "id"}},
    "an attribute of a module of omni": {"factory": "omni_core.processes.process:subprocess.getoutput"},
    "a method of an attribute": {"factory": "omni_core.cli.main:click.core.os.system"},
    "a private function of omni": {"factory": "omni_core.references:load", "factory_args": {"reference": "os"}},
    "what assembles stages": {"factory": "omni_core.stage.assembly:assemble"},
    "a fork server": {"factory": "omni_torch.processes.forks:ForkServer"},
    "a command": {"factory": "omni_capsules.command:replay"},
    "a relay": {"factory": "omni_relay_shm.relay:ShmRelay"},
    "the function of a pipeline": {"factory": "omni_demo.speech.pipeline:demo"},
    "a stage's function of another place": {"factory": "omni_qwen3.routing:route_thinker"},
    "the other spelling of a reference": {"factory": "omni_qwen3.code2wav.create_code2wav"},
    "a lambda": {"factory": "__import__('os').system:id"},
    "a runner": {"factory": None, "model_runner": "subprocess:getoutput", "scheduler": "omni_torch.engine.scheduler:engine"},
    "a scheduler": {"scheduler": "subprocess:Popen"},
    "a feedback": {"feedback": "subprocess:Popen"},
    "a projection": {"project_payload": {"next": "os:system"}},
    "reference in an argument": {"factory_args": {"dtype": "os:system"}},
    "a dotted path in an argument": {"factory_args": {"dtype": "os.system"}},
    "a path in an argument": {"factory_args": {"dtype": "/tmp/evil.so"}},
    "a path in a list of mappings": {"factory_args": {"chunk": [{"a": ["./evil"]}]}},
    "a reference as key": {"factory_args": {"chunk": {"os:system": 1}}},
    "a Windows path": {"factory_args": {"dtype": "C\\evil"}},
    "another checkpoint by argument": {"factory_args": {"model_path": "OWNER/NAME"}},
    "a folder by argument": {"factory_args": {"model_path": "/"}},
    "ranks by argument": {"factory_args": {"tp_size": 2}},
    "a meeting by argument": {"factory_args": {"tp_rendezvous": "tcp://192.0.2.1:29500"}},
    "a meeting": {"injected": {"tp_rendezvous": "tcp://192.0.2.1:29500"}},
    "a hub id": {"injected": {"model_path": "OWNER/NAME"}},
    "a path as device": {"injected": {"device": "/dev/null"}},
    "what no stage is given": {"injected": {"hook": 1}},
} | {f"a {name}": {name: "os:system"} for name in ("route_fn", "wait_for_fn", "merge_fn", "expand_fn", "stream_done_to_fn")}  # fmt: skip


@pytest.mark.parametrize("changes", HOSTILE.values(), ids=HOSTILE)
def test_what_no_plugin_registers_needs_trust(changes: dict[str, Any], untrusted: Any) -> None:
    spec = stage_of("demo", "code2wav")
    changed = attrs.evolve(spec, **{k: {**spec.injected, **v} if k == "injected" else v for k, v in changes.items()})
    for pipeline in ("demo", "qwen3-omni", "demo-image", "unheard of", ""):
        with pytest.raises(CapsuleError, match=r"no installed plugin registers what the capsule names: .*--trust"):
            untrusted(changed, pipeline)
    if "model_path" not in changes.get("injected", {}):
        assert untrusted(changed, trust=True).spec == changed


def test_nothing_that_needs_trust_is_imported(untrusted: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "evil_package").mkdir()
    (tmp_path / "evil_package/__init__.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()")
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = stage_of("demo", "code2wav")
    kernel = {
        "name": "evil",
        "device": "cpu",
        "dtypes": [],
        "priority": 9,
        "target": "evil_package.a:f",
        "requires": [],
    }
    for changes in ({"factory": "evil_package.inner:f"}, {"route_fn": "evil_package.inner:f"}):
        with pytest.raises(CapsuleError):
            untrusted(attrs.evolve(spec, **changes))
    rebuilt = untrusted(spec, process={"kernels": {"rms_norm": [{**kernel, "probe": "evil_package.inner:f"}]}})
    assert rebuilt.kernels == {"rms_norm": []}
    assert rebuilt.withheld == ["kernel 'evil' of rms_norm: not installed"]
    describe([spec], {"sources": {"evil_package.inner": "", "evil_package.": "", "../evil_package": ""}})
    assert not (tmp_path / "ran").exists()
    assert "evil_package" not in sys.modules


def test_a_kernel_is_the_installed_one_of_its_name(untrusted: Any) -> None:
    [process] = [each for each in processes("demo") if each.stages[0].name == "thinker"]
    operation, [first, *_] = next((name, each) for name, each in process.kernels.items() if each)
    changed = {**attrs.asdict(first), "target": "os:system", "probe": "os:getcwd", "requires": []}
    rebuilt = untrusted(process.stages[0], process={"kernels": {operation: [changed]}})
    assert rebuilt.kernels == {operation: [first]}


def test_environment_variables_of_the_file_need_trust(untrusted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    hostile = {"LD_PRELOAD": "/tmp/evil.so", "PYTHONPATH": "/tmp", "PYTHONSTARTUP": "/tmp/x", "OMNI_PLUGINS": ""}
    for name in (*hostile, "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    spec = stage_of("demo-image", "decode")
    rebuilt = untrusted(spec, "demo-image", {"env": {**hostile, "OMP_NUM_THREADS": "7"}})
    monkeypatch.setattr(
        "omni_capsules.rebuild.load", lambda reference: lambda *arguments: None
    )  # torch is left as it is
    before = dict(os.environ)
    said = enter(rebuilt)
    assert {name: os.environ.get(name) for name in hostile} == {name: before.get(name) for name in hostile}
    assert os.environ["OMP_NUM_THREADS"] == "1"
    assert said == [f"{name}: not set as then without --trust" for name in hostile]
    trusted = untrusted(spec, "demo-image", {"env": hostile}, trust=True)
    assert (trusted.env, trusted.withheld) == (hostile, [])


@pytest.mark.parametrize(
    "damage",
    [
        {"stages": None},
        {"stages": [1]},
        {"stages": [{"name": "decode", "project_payload": ["os:system"]}]},
        {"stages": [{"name": "decode", "injected": ["os:system"]}]},
        {"stages": [{"name": "decode", "factory_args": "os:system"}]},
        {"stages": [{"name": "decode", "injected": {"tp_size": "2"}}]},
        {"stages": [{"name": "decode", "factory": ["os", "system"]}]},
        {"stages": [{"name": "decode", "next": None}]},
        {"stages": [{"name": "decode", "project_payload": {"": None}}]},
        {"kernels": {"rms_norm": [{"name": "k"}]}},
        {"kernels": [1]},
        {"env": ["LD_PRELOAD"]},
        {"env": {"LD_PRELOAD": None}},
    ],
)
def test_a_damaged_capsule_is_an_error_of_one_line(damage: dict[str, Any], untrusted: Any) -> None:
    with pytest.raises(CapsuleError, match=r"^stage 'decode'|^kernel 'k'"):
        untrusted(stage_of("demo", "decode"), process=damage)


def test_ranks_are_refused_wherever_they_are_named(untrusted: Any) -> None:
    spec = stage_of("demo", "thinker")
    many = attrs.evolve(spec, injected={**spec.injected, "tp_size": 2})
    for trust in (False, True):
        with pytest.raises(CapsuleError, match="has 2 ranks"):
            untrusted(many, trust=trust)


def test_without_plugins_nothing_is_registered(untrusted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = stage_of("demo", "code2wav")
    monkeypatch.setattr("omni_capsules.rebuild.load_plugins", lambda: PluginRegistry([]))
    with pytest.raises(CapsuleError, match=r"factory 'omni_qwen3\.code2wav:create_code2wav'"):
        untrusted(spec)
