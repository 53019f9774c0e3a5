"""Manifests: valid objects that refer to each other, and run commands that omni knows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import kubernetes_validate
import pytest
from omni_export_reading import Objects, objects, parsed

from omni_launchers.hosts.curve import CurveKeys

IMAGE = "registry.example/omni:0.1"
VERSIONS = ("1.29", "1.33", "1.37")


@pytest.fixture
def made(export: Any) -> Objects:
    result = export("k8s", "deploy.yaml", "--image", IMAGE, "--namespace", "voice", "--name", "demo", "--monitor")
    assert result.exit_code == 0, result.output
    return objects(result.stdout)


def pods(made: Objects) -> Iterator[tuple[str, dict[str, Any]]]:
    for (kind, name), each in made.items():
        if kind in ("Deployment", "StatefulSet"):
            yield name, each["spec"]["template"]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_is_valid(made: Objects, version: str) -> None:
    kinds = []
    for (kind, _), each in made.items():
        if kind != "ServiceMonitor":  # of an operator, whose schema is not Kubernetes' own
            kubernetes_validate.validate(each, version, strict=True)
            kinds.append(kind)
    assert {
        "Deployment",
        "StatefulSet",
        "Service",
        "Secret",
        "ConfigMap",
        "PodDisruptionBudget",
        "NetworkPolicy",
    } <= set(kinds)


def test_a_wrong_object_is_detected(made: Objects) -> None:
    """The validator is strict: a misspelt key is an error."""
    head = made["Deployment", "demo-head"]
    head["spec"]["template"]["spec"]["terminationGracePeriod"] = 3
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(head, VERSIONS[-1], strict=True)


def test_the_commands_are_those_of_omni(made: Objects) -> None:
    commands = {name: pod["spec"]["containers"][0]["command"] for name, pod in pods(made)}
    assert set(commands) == {"demo-head", "demo-voice-1"}
    name, serve = parsed(commands["demo-head"])
    assert (name, serve["pipeline"], serve["host"], serve["port"]) == (
        "serve",
        "/etc/omni/deploy.yaml",
        "0.0.0.0",
        9000,
    )
    assert (serve["accept"], serve["host_key"]) == ("tcp://[$(POD_IP)]:7555", "/etc/omni-keys/run.key")
    assert (serve["drain_seconds"], serve["allow_public"]) == (21.0, False)
    name, join = parsed(commands["demo-voice-1"])
    assert (name, join["head"], join["name"]) == ("hosts join", "tcp://demo-head:7555", "Voice_1")
    assert (str(join["key_file"]), join["address"]) == ("/etc/omni-keys/run.key", "tcp://[$(POD_IP)]:0")


def test_pods_have_what_they_mount_and_read(made: Objects) -> None:
    for name, pod in pods(made):
        (container,) = pod["spec"]["containers"]
        volumes = {each["name"]: each for each in pod["spec"]["volumes"]}
        assert {each["name"] for each in container["volumeMounts"]} == volumes.keys()
        if "files" in volumes:
            assert volumes["files"]["configMap"]["name"] == "demo-files"
            assert name == "demo-head"
        assert ("PersistentVolumeClaim", volumes["weights"]["persistentVolumeClaim"]["claimName"]) in made
        (item,) = volumes["keys"]["secret"]["items"]
        secret = made["Secret", volumes["keys"]["secret"]["secretName"]]
        CurveKeys.parse(secret["stringData"][item["key"]], "the Secret")
        for variable in container["env"]:
            if "secretKeyRef" in variable.get("valueFrom", {}):
                reference = variable["valueFrom"]["secretKeyRef"]
                assert reference["key"] in made["Secret", reference["name"]]["stringData"]
        # Read-only: what a process writes goes to volumes.
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert {"/tmp", "/dev/shm"} <= {each["mountPath"] for each in container["volumeMounts"]}


def test_selectors_select_the_pods_that_are_meant(made: Objects) -> None:
    def selected(selector: dict[str, str]) -> set[str]:
        return {name for name, pod in pods(made) if selector.items() <= pod["metadata"]["labels"].items()}

    both = {"demo-head", "demo-voice-1"}
    for name, pod in pods(made):
        kind = "Deployment" if name == "demo-head" else "StatefulSet"
        assert selected(made[kind, name]["spec"]["selector"]["matchLabels"]) == {name}
        assert pod["metadata"]["labels"]
    assert selected(made["Service", "demo"]["spec"]["selector"]) == {"demo-head"}
    assert selected(made["Service", "demo-head"]["spec"]["selector"]) == {"demo-head"}
    assert selected(made["PodDisruptionBudget", "demo"]["spec"]["selector"]["matchLabels"]) == both
    inside, outside = made["NetworkPolicy", "demo-pods"]["spec"], made["NetworkPolicy", "demo-http"]["spec"]
    assert selected(inside["podSelector"]["matchLabels"]) == both
    assert selected(inside["ingress"][0]["from"][0]["podSelector"]["matchLabels"]) == both
    assert selected(outside["podSelector"]["matchLabels"]) == {"demo-head"}
    assert outside["ingress"] == [{"ports": [{"protocol": "TCP", "port": "http"}]}]
    monitor = made["ServiceMonitor", "demo"]["spec"]
    services = {
        name
        for (kind, name), each in made.items()
        if kind == "Service" and monitor["selector"]["matchLabels"].items() <= each["metadata"]["labels"].items()
    }
    assert services == {"demo"}


def test_hosts_find_the_head_before_it_is_ready(made: Objects) -> None:
    """It is ready when they have joined."""
    service = made["Service", "demo-head"]["spec"]
    assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", True)
    assert service["ports"] == [{"name": "join", "port": 7555}]
    assert made["StatefulSet", "demo-voice-1"]["spec"]["serviceName"] == "demo-hosts"


def test_probes_and_times(made: Objects) -> None:
    pod = made["Deployment", "demo-head"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["ports"][0] == {"name": "http", "containerPort": 9000}
    assert container["readinessProbe"]["httpGet"] == {"path": "/health/ready", "port": "http", "scheme": "HTTP"}
    assert container["livenessProbe"]["httpGet"]["path"] == container["startupProbe"]["httpGet"]["path"] == "/health"
    assert container["startupProbe"]["periodSeconds"] * container["startupProbe"]["failureThreshold"] == 1800
    before = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] >= before + 21 + 20


def test_devices(made: Objects, export: Any) -> None:
    def limits(made: Objects) -> dict[str, Any]:
        return {name: pod["spec"]["containers"][0]["resources"].get("limits") for name, pod in pods(made)}

    assert limits(made) == {"demo-head": None, "demo-voice-1": {"nvidia.com/gpu": "2"}}
    more = export(
        "k8s",
        "deploy.yaml",
        "--image",
        IMAGE,
        "--name",
        "demo",
        "--gpus",
        "head=1",
        "--gpus",
        "Voice_1=4",
        "--gpu-resource",
        "amd.com/gpu",
    )
    assert limits(objects(more.stdout)) == {"demo-head": {"amd.com/gpu": "1"}, "demo-voice-1": {"amd.com/gpu": "4"}}


def test_the_deploy_file_is_carried_as_it_is(made: Objects, folder: Any) -> None:
    assert made["ConfigMap", "demo-files"]["data"] == {"deploy.yaml": (folder / "deploy.yaml").read_text()}


def test_secrets_are_made_anew_or_named(made: Objects, export: Any) -> None:
    again = objects(export("k8s", "deploy.yaml", "--image", IMAGE, "--name", "demo").stdout)
    assert made["Secret", "demo-keys"]["stringData"] != again["Secret", "demo-keys"]["stringData"]
    named = export("k8s", "deploy.yaml", "--image", IMAGE, "--name", "demo", "--secret", "mine").stdout
    found = objects(named)
    assert not [each for each in found if each[0] == "Secret"]
    assert found["Deployment", "demo-head"]["spec"]["template"]["spec"]["volumes"][3]["secret"]["secretName"] == "mine"


def test_a_pipeline_of_one_machine_has_no_hosts_and_no_keys(export: Any) -> None:
    result = export("k8s", "demo", "--image", IMAGE, "--public", "--weights-size", "0")
    assert result.exit_code == 0, result.output
    made = objects(result.stdout)
    assert {kind for kind, _ in made} == {"Service", "Deployment", "PodDisruptionBudget", "NetworkPolicy"}
    for each in made.values():
        kubernetes_validate.validate(each, VERSIONS[-1], strict=True)
    (container,) = made["Deployment", "demo-head"]["spec"]["template"]["spec"]["containers"]
    name, serve = parsed(container["command"])
    assert (name, serve["pipeline"], serve["accept"], serve["allow_public"]) == ("serve", "demo", None, True)
    assert "OMNI_API_KEY" not in {each["name"] for each in container["env"]}


def test_words_of_a_command_are_not_variables_of_kubernetes(export: Any) -> None:
    made = objects(export("k8s", "demo", "--image", IMAGE, "--set", "thinker.env.A=$(POD_IP)").stdout)
    (container,) = made["Deployment", "demo-head"]["spec"]["template"]["spec"]["containers"]
    assert "thinker.env.A=$$(POD_IP)" in container["command"]


def test_weights(export: Any) -> None:
    arguments = ("k8s", "deploy.yaml", "--image", IMAGE, "--name", "demo")
    made = objects(export(*arguments, "--weights-size", "7Gi", "--storage-class", "nfs").stdout)
    claim = made["PersistentVolumeClaim", "demo-weights"]["spec"]
    assert claim == {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "nfs",
        "resources": {"requests": {"storage": "7Gi"}},
    }
    made = objects(export(*arguments, "--weights-claim", "shared").stdout)
    assert not [each for each in made if each[0] == "PersistentVolumeClaim"]
    for _, pod in pods(made):
        assert pod["spec"]["volumes"][-1] == {"name": "weights", "persistentVolumeClaim": {"claimName": "shared"}}
