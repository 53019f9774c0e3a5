"""Charts: rendered with their own values they are the manifests, and each value reaches its place."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from helm_subset import rendered
from omni_export_reading import documents, objects

ARGUMENTS = ("deploy.yaml", "--image", "registry.example/omni:0.1", "--name", "demo", "--secret", "demo-keys")
BRACES = ("--set", 'env_defaults.A="{{ x }}"')


@pytest.fixture
def chart(export: Any, folder: Path) -> Path:
    result = export("k8s", *ARGUMENTS, *BRACES, "--helm", "chart", "--monitor")
    assert result.exit_code == 0, result.output
    assert sorted(result.stdout.split()) == sorted(
        str(each.relative_to(folder)) for each in (folder / "chart").rglob("*.*")
    )
    return folder / "chart"


def test_a_chart_with_its_own_values_is_the_manifests(chart: Path, export: Any) -> None:
    plain = objects(export("k8s", *ARGUMENTS, *BRACES, "--monitor").stdout)
    assert objects(rendered(chart)) == plain
    assert documents((chart / "Chart.yaml").read_text())[0]["apiVersion"] == "v2"


def test_the_same_by_helm_itself(chart: Path, export: Any) -> None:
    if shutil.which("helm") is None:
        pytest.skip("needs helm; the chart's expressions are rendered by helm_subset.py above")
    command = ["helm", "template", "demo", str(chart)]
    text = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    assert objects(text) == objects(export("k8s", *ARGUMENTS, *BRACES, "--monitor").stdout)


def test_a_chart_has_no_secret(chart: Path) -> None:
    assert "kind: Secret" not in "".join(each.read_text() for each in chart.rglob("*.yaml"))
    assert (
        (chart / "values.yaml").read_text().startswith("# secret: one that exists, with the keys run.key and api-key\n")
    )


def test_each_value_reaches_its_place(chart: Path) -> None:
    (values,) = documents((chart / "values.yaml").read_text())
    node, tolerations = {"gpu": "a100"}, [{"key": "gpu", "operator": "Exists"}]
    machines = values["machines"]
    machines["voice_1"] |= {"nodeSelector": node, "tolerations": tolerations, "resources": {"limits": {"cpu": "3"}}}
    changed = objects(
        rendered(
            chart,
            image="other:2",
            secret="mine",
            sharedMemory="1Gi",
            machines=machines,
            imagePullSecrets=[{"name": "pull"}],
            weights={"create": True, "size": "7Gi", "storageClass": "nfs", "claim": "claimed"},
        )
    )
    for each in changed.values():
        if each["kind"] != "ServiceMonitor":
            kubernetes_validate.validate(each, "1.33", strict=True)
    pod = changed["StatefulSet", "demo-voice-1"]["spec"]["template"]["spec"]
    assert (pod["nodeSelector"], pod["tolerations"], pod["imagePullSecrets"]) == (node, tolerations, [{"name": "pull"}])
    (container,) = pod["containers"]
    assert (container["image"], container["resources"]) == ("other:2", {"limits": {"cpu": "3"}})
    volumes = {each["name"]: each for each in pod["volumes"]}
    assert volumes["shared-memory"]["emptyDir"]["sizeLimit"] == "1Gi"
    assert volumes["keys"]["secret"]["secretName"] == "mine"
    assert volumes["weights"]["persistentVolumeClaim"]["claimName"] == "claimed"
    assert changed["PersistentVolumeClaim", "demo-weights"]["spec"]["storageClassName"] == "nfs"
    head = changed["Deployment", "demo-head"]["spec"]["template"]["spec"]
    assert "nodeSelector" not in head
    assert head["containers"][0]["env"][-1]["valueFrom"]["secretKeyRef"]["name"] == "mine"


@pytest.mark.parametrize(
    ("switch", "kinds"),
    [
        ("networkPolicy", {"NetworkPolicy"}),
        ("disruptionBudget", {"PodDisruptionBudget"}),
        ("serviceMonitor", {"ServiceMonitor"}),
        ("weights", {"PersistentVolumeClaim"}),
    ],
)
def test_what_is_switched_off_is_not_there(chart: Path, switch: str, kinds: set[str]) -> None:
    (values,) = documents((chart / "values.yaml").read_text())
    off = {**values[switch], "create": False} if switch == "weights" else {"enabled": False}
    before, after = objects(rendered(chart)), objects(rendered(chart, **{switch: off}))
    assert {kind for kind, _ in before.keys() - after.keys()} == kinds


def test_a_folder_that_is_not_empty_is_left_alone(chart: Path, export: Any) -> None:
    result = export("k8s", *ARGUMENTS, "--helm", "chart")
    assert result.exit_code == 1
    assert "chart exists and is not an empty folder; name another" in str(result.exception)


def test_a_namespace_is_said_to_helm(export: Any) -> None:
    result = export("k8s", *ARGUMENTS, "--helm", "chart", "--namespace", "voice")
    assert result.exit_code == 2
    assert "helm install --namespace" in result.output


def test_a_claim_that_exists_needs_no_size(export: Any, folder: Path) -> None:
    given = ("--weights-claim", "models", "--weights-size", "0")
    assert export("k8s", *ARGUMENTS, *given, "--helm", "chart").exit_code == 0
    assert objects(rendered(folder / "chart")) == objects(export("k8s", *ARGUMENTS, *given).stdout)
    assert "claimName: {{ .Values.weights.claim | quote }}" in (folder / "chart/templates/head.yaml").read_text()


def test_hosts_whose_names_differ_by_a_dash_have_values_of_their_own(export: Any, folder: Path) -> None:
    hosts = ("--set", "talker_ar.host=a-1", "--set", "code2wav.host=a1", "--set", "code2wav.process=vocoder")
    result = export("k8s", "demo", "--image", "i", *hosts, "--helm", "chart")
    assert result.exit_code == 0, result.output
    (values,) = documents((folder / "chart" / "values.yaml").read_text())
    assert set(values["machines"]) == {"head", "a_1", "a1"}
