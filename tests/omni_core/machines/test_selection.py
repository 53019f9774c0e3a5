"""The launcher of a config."""

from __future__ import annotations

from pathlib import Path

import pytest
from attrs import evolve

from omni_cli.deploy.override_layers import Layer, apply
from omni_core.config.overrides import parse_flag
from omni_core.config.schema import EndpointsConfig, LauncherConfig, PipelineConfig, StageConfig
from omni_core.config.validation import validate
from omni_core.errors import ConfigError, PluginError
from omni_core.hookspecs import Component
from omni_core.machines import LocalLauncher, make_launcher
from omni_core.plugins import PluginRecord, PluginRegistry

CONFIG = PipelineConfig(model_path="none", stages=[StageConfig(name="a", factory="m:f", process="a", terminal=True)])
NOTHING = PluginRegistry([])


def with_host(**fields: object) -> PipelineConfig:
    return evolve(CONFIG, stages=[evolve(CONFIG.stages[0], host="b")], **fields)


async def test_one_machine_needs_no_plugin(tmp_path: Path) -> None:
    launcher = make_launcher(CONFIG, NOTHING, tmp_path, "omni://r")
    assert isinstance(launcher, LocalLauncher)
    await launcher.release()


def test_hosts_without_their_distribution_name_it(tmp_path: Path) -> None:
    with pytest.raises(
        PluginError, match=r"other hosts \(b\); their launcher comes with .* pip install omni-launchers"
    ):
        make_launcher(with_host(), NOTHING, tmp_path, "omni://r")


def test_a_launcher_is_asked_for_by_name(tmp_path: Path) -> None:
    mine = Component("mine", "omni_core.machines:LocalLauncher", "mine")
    registry = PluginRegistry([PluginRecord("p", "d", "1", "m", components={"omni_launchers": [mine]})])
    config = apply(CONFIG, Layer("--set", [parse_flag("launcher.name=mine")])).config
    assert config.launcher == LauncherConfig("mine")
    assert isinstance(make_launcher(config, registry, tmp_path, "omni://r"), LocalLauncher)
    config = apply(config, Layer("--set", [parse_flag("launcher.settings.speed=3")])).config
    with pytest.raises(ConfigError, match=r"launcher\.settings\.speed: this launcher has no such setting"):
        make_launcher(config, registry, tmp_path, "omni://r")
    with pytest.raises(PluginError, match=r"launcher\.name: no launcher is called 'mien'; did you mean 'mine'"):
        make_launcher(evolve(config, launcher=LauncherConfig("mien")), registry, tmp_path, "omni://r")


def test_labels_of_machines_may_have_dots() -> None:
    flags = ["launcher.name=mine", "a.labels.cloud/zone.name=b", "a.cpus=2", "a.memory=8GiB"]
    config = apply(CONFIG, Layer("--set", [parse_flag(flag) for flag in flags])).config
    stage = config.stages[0]
    assert (stage.labels, stage.cpus, stage.memory) == ({"cloud/zone.name": "b"}, 2.0, "8GiB")


def test_a_host_may_join_if_the_run_accepts() -> None:
    def problem(config: PipelineConfig) -> str:
        with pytest.raises(ConfigError) as caught:
            validate(config)
        return str(caught.value)

    assert "stages[a].host: no host is called 'b'; add its address to `hosts`, or let it join" in problem(with_host())
    accepting = EndpointsConfig(accept="tcp://127.0.0.1:1", key_file="k")
    validate(with_host(endpoints=accepting))
    assert "endpoints.accept: '127.0.0.1' is no address" in problem(
        with_host(endpoints=evolve(accepting, accept="127.0.0.1"))
    )
    assert "no stage has a `host`" in problem(evolve(CONFIG, endpoints=accepting))
    validate(with_host(launcher=LauncherConfig("cluster")))
