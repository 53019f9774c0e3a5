"""The machines of a deployment, and pipelines that cannot be one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from omni_export_reading import documents

from omni_core.errors import ConfigError

IMAGE = ("--image", "omni:0.1")


def problem(result: Any) -> str:
    """Return the message of a command that has failed."""
    assert result.exit_code != 0
    return str(result.exception) if isinstance(result.exception, ConfigError) else str(result.output)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("demo", "--name", "Demo!"), "--name Demo!: must be 1 to 32 lower-case letters"),
        (("deploy.yaml", "--gpus", "voice=2"), "--gpus voice: no such machine; did you mean 'Voice_1'?"),
        (("deploy.yaml", "--gpus", "Voice_1=1"), "--gpus Voice_1=1: its stages use GPU 1, so it needs 2"),
        (("deploy.yaml", "--gpus", "Voice_1"), "Voice_1: must be MACHINE=NUMBER"),
        (("demo", "--set", "endpoints.address=10.0.0.1"), "--set endpoints.address=10.0.0.1: the addresses"),
        (("deploy.yaml", "--host-key", "k"), "--set endpoints.key_file=k: the addresses and keys of hosts are those"),
        (("demo", "--set", "thinker.host=head"), "stages[thinker].host: head is the name of the server's machine"),
        (("demo", "--set", "thinker.host=a b!"), None),
        (("demo", "--set", "launcher.name=ssh"), "launcher.name: ssh finds machines by itself"),
        (("demo", "--set", "thinkr.gpu=1"), "thinker"),
    ],
)
def test_what_cannot_be_deployed_is_an_error(export: Any, arguments: tuple[str, ...], message: str | None) -> None:
    result = export("k8s", *arguments, *IMAGE)
    if message is not None:
        assert message in problem(result)
    else:
        assert {each["metadata"]["name"] for each in documents(result.stdout)} >= {"demo-a-b"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("hosts: {Voice_1: 'tcp://10.0.0.2:7556'}", "hosts.Voice_1: hosts of a deployment join it"),
        ("endpoints: {address: 10.0.0.1}", "endpoints.address: that of the head is the deployment's"),
        ("model_path: ./checkpoint", "deploy.yaml:8: model_path: ./checkpoint is a folder of this machine"),
        ("base: ../base.yaml", "base: ../base.yaml is in another folder"),
    ],
)
def test_a_deploy_file_for_this_machine_is_an_error(export: Any, folder: Path, line: str, message: str) -> None:
    inner = folder / "inner"
    inner.mkdir()
    (folder / "base.yaml").write_text("pipeline: demo\n")
    text = (folder / "deploy.yaml").read_text()
    (inner / "deploy.yaml").write_text(f"{text}{line}\n")
    assert message in problem(export("k8s", "inner/deploy.yaml", *IMAGE))


@pytest.mark.parametrize("key", ["host: 10.0.0.1", "uds: /run/omni.sock"])
def test_the_address_of_the_server_is_the_deployments(export: Any, folder: Path, key: str) -> None:
    (folder / "server.yaml").write_text(f"pipeline: demo\nserver: {{{key}}}\n")
    assert f"server.{key.partition(':')[0]}: the deployment chooses" in problem(export("k8s", "server.yaml", *IMAGE))


def test_the_servers_options_are_checked_here(export: Any, folder: Path) -> None:
    (folder / "server.yaml").write_text("pipeline: demo\nserver: {drain_second: 3, queued: many}\n")
    found = problem(export("k8s", "server.yaml", *IMAGE))
    assert "server.drain_second: unknown key; did you mean 'drain_seconds'?" in found
    assert "server.queued: " in found


def test_files_keep_their_names_and_order(export: Any, folder: Path) -> None:
    (folder / "base.yaml").write_text("pipeline: demo\nretries: 1\n")
    (folder / "mine.yaml").write_text("base: base.yaml\nretries: 2\n")
    (folder / "over.yaml").write_text("max_in_flight: 9\n")
    made = documents(
        export("k8s", "./mine.yaml", "--config", str(folder / "over.yaml"), *IMAGE, "--option", "processes=one").stdout
    )
    (files,) = [each["data"] for each in made if each["kind"] == "ConfigMap"]
    assert files == {name: (folder / name).read_text() for name in ("base.yaml", "mine.yaml", "over.yaml")}
    (head,) = [each for each in made if each["kind"] == "Deployment"]
    command = head["spec"]["template"]["spec"]["containers"][0]["command"]
    assert command[:7] == [
        "omni",
        "serve",
        "/etc/omni/mine.yaml",
        "--option",
        "processes=one",
        "--config",
        "/etc/omni/over.yaml",
    ]


def test_a_checkpoint_in_a_folder_has_another_place_there(export: Any, folder: Path) -> None:
    from omni_demo.speech.pipeline import default_model

    checkpoint, _ = default_model()
    given = ("k8s", "qwen3-omni", "--model", str(checkpoint), *IMAGE)
    assert f"--model: {checkpoint} is a folder of this machine; say where it is there: --model-path" in problem(
        export(*given)
    )
    made = documents(export(*given, "--model-path", "/models/demo").stdout)
    (head,) = [each for each in made if each["kind"] == "Deployment"]
    command = head["spec"]["template"]["spec"]["containers"][0]["command"]
    assert command[2:5] == ["qwen3-omni", "--model", "/models/demo"]


def test_what_gets_no_gpu_is_said(export: Any, folder: Path) -> None:
    result = export("k8s", "demo", *IMAGE, "--set", "talker_ar.host=b")
    assert "Note: host 'b': `gpu: auto` of talker_ar is the CPU there; write numbers for GPUs" in result.stderr
    assert "Note: the head gets no GPU: `gpu: auto` of" in result.stderr
    assert "# b: talker_ar\n" in result.stdout


def test_what_is_true_on_this_machine_only_is_an_error(
    export: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "checkpoint").mkdir()
    assert "./checkpoint is a folder of this machine; name the pipeline" in problem(
        export("k8s", "./checkpoint", *IMAGE)
    )
    monkeypatch.setenv("OMNI_SET__THINKER__HOST", "far")
    assert "OMNI_SET__THINKER__HOST: set here, and not where" in problem(export("k8s", "demo", *IMAGE))


def test_sections_of_platforms_are_the_heads_own(export: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "platforms.yaml").write_text("pipeline: demo\nplatforms: {cuda: {retries: 2}}\n")
    monkeypatch.setenv("OMNI_PLATFORM", "cuda")
    result = export("k8s", "platforms.yaml", *IMAGE)
    assert result.exit_code == 0, result.output
    assert "Note: this is for the platform cuda, and the head goes by its own" in result.stderr


def test_a_stateful_set_has_a_name_that_its_pods_can_have_in_a_label(export: Any) -> None:
    name, host = "a" * 32, "b" * 20
    message = problem(export("k8s", "demo", "--name", name, "--set", f"thinker.host={host}", *IMAGE))
    assert f"host '{host}': {name}-{host} is 53 characters, and the name of a StatefulSet may have 52" in message
    assert export("k8s", "demo", "--name", name, "--set", f"thinker.host={host[1:]}", *IMAGE).exit_code == 0
