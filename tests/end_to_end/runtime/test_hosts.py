"""Pipelines over two hosts that are refused, and relays that join hosts; tests/faults/networks has two networks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from over_hosts import THERE, omni_hosts, two_hosts
from pipelines import make_pipeline

from omni_core.client import open_async
from omni_core.config.schema import EndpointsConfig, PipelineConfig, RelayConfig, StageConfig
from omni_core.config.validation import validate
from omni_core.errors import ConfigError, StartupError
from omni_core.launch.prepare import prepare
from omni_core.plugins import load_plugins
from omni_launchers.hosts.commands import hosts
from omni_launchers.hosts.curve import CurveKeys
from omni_testing.ours.hosts import free_address


async def test_a_host_that_does_not_answer_is_named(folder: Path, key_file: Path) -> None:
    with pytest.raises(StartupError, match=r"hosts\.b: .*no process answers there; is `omni hosts serve"):
        async with open_async(two_hosts(folder, key_file, free_address(THERE))):
            pass


async def test_another_key_is_refused(folder: Path, key_file: Path) -> None:
    CurveKeys.new().write(folder / "other.key")
    address = free_address(THERE)
    async with omni_hosts("serve", "--listen", address, "--key", str(key_file)):
        with pytest.raises(StartupError, match=r"hosts\.b: .*same key"):
            async with open_async(two_hosts(folder, folder / "other.key", address)):
                pass


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--listen", "tcp://0.0.0.0:7555"], "without a key"),
        (["--listen", "tcp://127.0.0.1:7555"], "without a key"),
        (["--listen", "tcp://0.0.0.0:7555", "--key", "KEY"], "name one address"),
        (["--listen", "127.0.0.1:7555", "--key", "KEY"], "of the form tcp://HOST:PORT"),
        (["--listen", "tcp://127.0.0.1:1", "--key", "nowhere.key"], "cannot be read"),
    ],
)
def test_serving_without_a_key_or_an_address_is_refused(arguments: list[str], message: str, key_file: Path) -> None:
    given = [str(key_file) if each == "KEY" else each for each in arguments]
    with pytest.raises(ConfigError, match=message):
        hosts.main(["serve", *given], standalone_mode=False)


def test_a_key_file_is_private_and_never_replaced(folder: Path) -> None:
    command = ["key", str(folder / "k")]
    hosts.main(command, standalone_mode=False)
    keys = CurveKeys.read(folder / "k")
    assert (folder / "k").stat().st_mode & 0o777 == 0o600
    with pytest.raises(ConfigError, match="exists"):
        hosts.main(command, standalone_mode=False)
    assert CurveKeys.read(folder / "k") == keys
    assert keys.secret not in repr(keys)
    (folder / "k").chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        CurveKeys.read(folder / "k")


def test_a_config_with_hosts_is_checked() -> None:
    def problem(**fields: Any) -> str:
        stages = [
            StageConfig(name="a", factory="x:y", process="a", next="b"),
            StageConfig(name="b", factory="x:y", process="b", terminal=True, host="away"),
        ]
        with pytest.raises(ConfigError) as caught:
            validate(PipelineConfig(model_path="none", stages=fields.pop("stages", stages), **fields))
        return str(caught.value)

    assert "stages[b].host: no host is called 'away'; did you mean 'awai'?" in problem(hosts={"awai": "tcp://h:1"})
    both = problem(hosts={"away": "tcp://h:1"})
    assert "endpoints.address: required" in both
    assert "endpoints.key_file: required" in both
    assert "hosts.away: 'h:1' is no address" in problem(hosts={"away": "h:1"})
    shared = [
        StageConfig(name="a", factory="x:y", process="p", next="b"),
        StageConfig(name="b", factory="x:y", process="p", terminal=True, host="away"),
    ]
    assert "different `host` (stages[a].host: this one, stages[b].host: away)" in problem(
        stages=shared, hosts={"away": "tcp://h:1"}
    )


def test_a_relay_of_one_host_is_replaced_or_rejected(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def config(**relay: Any) -> PipelineConfig:
        return PipelineConfig(
            model_path="none",
            stages=[
                StageConfig(name="big", factory="x:y", process="big", next="total", **relay),
                StageConfig(name="total", factory="x:y", process="total", terminal=True, host="b"),
            ],
            endpoints=EndpointsConfig(str(folder), "127.0.0.1", str(folder / "k")),
            hosts={"b": "tcp://b:1"},
        )

    registry = load_plugins()
    able = [
        component
        for component, _ in registry.components("omni_relays")
        if getattr(component, "across_hosts", False) and (component.probe is None or component.probe() is None)
    ]
    if able:
        best = max(able, key=lambda each: each.preference).name
        big, end = prepare(config(), registry).units
        assert list(big.processes[0].relays) == list(end.processes[0].relays) == [best]
        assert big.processes[0].relay_towards == {end.endpoint: best}
    else:
        with pytest.raises(ConfigError, match=r"no relay that can work here joins them.*omni plugins list"):
            prepare(config(), registry)
    with pytest.raises(ConfigError, match=r"stages\[big\]\.relay\.backend: .*'shm' does not join"):
        prepare(config(relay=RelayConfig(backend="shm")), registry)


def test_a_stage_may_choose_its_relay(folder: Path) -> None:
    stages = [
        StageConfig(
            name="a",
            factory="x:y",
            process="a",
            next="b",
            relay=RelayConfig(backend="mine.relay:Mine", settings={"x": 1}),
        ),
        StageConfig(name="b", factory="x:y", process="b", next="c"),
        StageConfig(name="c", factory="x:y", process="c", terminal=True),
    ]
    a, b, c = prepare(make_pipeline(folder, *stages), load_plugins()).units
    assert list(a.processes[0].relays) == ["mine.relay:Mine"]
    assert list(b.processes[0].relays) == ["mine.relay:Mine", "shm"]
    assert list(c.processes[0].relays) == ["shm"]
    assert a.processes[0].relay_towards == {b.endpoint: "mine.relay:Mine"}
    assert b.processes[0].relay_towards == {c.endpoint: "shm"}
    for unit in (a, b):
        assert unit.processes[0].relays["mine.relay:Mine"].options["settings"] == {"x": 1}
    assert b.processes[0].relays["shm"].options["settings"] == {}
