"""The manifests of the demo, run as Kubernetes would run them, with processes of this machine in place of pods: they serve."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from omni_export_reading import objects

from omni_core.hookspecs import works
from omni_core.plugins import load_plugins
from omni_launchers.hosts.conformance import HERE, THERE, free_address

pytest.importorskip("omni_demo.speech")


class Pods:
    """Processes in place of pods: containers' commands, with files in place of mounts and loopback addresses in place of networks."""

    def __init__(self, made: Any, folder: Path) -> None:
        self._made, self._folder = made, folder
        self.port = free_address(HERE).rpartition(":")[2]
        self._join = free_address(HERE)
        for kind, name, key in (("ConfigMap", "demo-files", "data"), ("Secret", "demo-keys", "stringData")):
            (folder / name).mkdir(mode=0o700)
            for file, text in made[kind, name][key].items():
                (folder / name / file).write_text(text)
                (folder / name / file).chmod(0o600)

    def container(self, kind: str, name: str) -> dict[str, Any]:
        """Return the only container of a workload."""
        (container,) = self._made[kind, name]["spec"]["template"]["spec"]["containers"]
        assert isinstance(container, dict)
        return container

    @contextmanager
    def run(self, kind: str, name: str, address: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run a container with the address of its pod; it ends within its grace period, by itself."""
        pod = self._made[kind, name]["spec"]["template"]["spec"]
        container = self.container(kind, name)
        volumes = {each["name"]: each for each in pod["volumes"]}
        mounts = {each["mountPath"]: volumes[each["name"]] for each in container["volumeMounts"]}
        places = {
            path: str(
                self._folder / (each.get("configMap", {}).get("name") or each.get("secret", {}).get("secretName"))
            )
            for path, each in mounts.items()
            if "configMap" in each or "secret" in each
        }
        changes = {f"{path}/": f"{place}/" for path, place in places.items()}
        changes |= {"[$(POD_IP)]:7555": self._join.removeprefix("tcp://"), "[$(POD_IP)]": address}
        changes |= {"tcp://demo-head:7555": self._join}
        words = []
        for word in container["command"][1:]:
            for before, after in changes.items():
                word = word.replace(before, after)
            words.append(self.port if word == "9000" else word)
        variables = {each["name"]: each["value"] for each in container["env"] if "value" in each}
        for each in container["env"]:
            if "secretKeyRef" in each.get("valueFrom", {}):
                reference = each["valueFrom"]["secretKeyRef"]
                variables[each["name"]] = self._made["Secret", reference["name"]]["stringData"][reference["key"]]
        with open(self._folder / f"{name}.log", "wb") as log:
            command = [sys.executable, "-m", "omni_core.cli", *words]
            process = subprocess.Popen(
                command, env={**os.environ, **variables, "HOME": str(self._folder)}, stdout=log, stderr=log
            )
        try:
            yield process
            process.terminate()
            assert process.wait(pod["terminationGracePeriodSeconds"]) == 0, self.log(name)
        finally:
            process.kill()
            process.wait()

    def log(self, name: str) -> str:
        """Return what a container has written."""
        return (self._folder / f"{name}.log").read_text()

    def probe(self, probe: dict[str, Any]) -> int:
        """Return the status that a probe sees; 0: none."""
        get = probe["httpGet"]
        try:
            return int(httpx2.get(f"http://{HERE}:{self.port}{get['path']}", timeout=1.0).status_code)
        except httpx2.HTTPError:
            return 0


@pytest.mark.timeout(200)
def test_the_manifests_serve_the_demo_from_two_machines(export: Any, folder: Path) -> None:
    joining = [each for hook, each, _, answer in load_plugins().check() if hook == "omni_relays" and works(answer)]
    if not any(getattr(each, "across_hosts", False) for each in joining):
        pytest.skip("no relay that joins hosts can work here")
    text = (folder / "deploy.yaml").read_text()
    (folder / "deploy.yaml").write_text(text.replace(", gpu: 1", ", gpu: null"))
    made = objects(export("k8s", "deploy.yaml", "--image", "omni:0.1", "--name", "demo").stdout)
    pods = Pods(made, folder)
    probes = pods.container("Deployment", "demo-head")
    key = made["Secret", "demo-keys"]["stringData"]["api-key"]
    url = f"http://{HERE}:{pods.port}/v1/chat/completions"
    body = {
        "model": "demo",
        "messages": [{"role": "user", "content": "Say hello."}],
        "modalities": ["text", "audio"],
        "audio": {"voice": "ethan", "format": "wav"},
    }
    with pods.run("StatefulSet", "demo-voice-1", THERE), pods.run("Deployment", "demo-head", HERE):
        end = time.monotonic() + 90
        while pods.probe(probes["readinessProbe"]) != 200:
            assert time.monotonic() < end, pods.log("demo-head")
            time.sleep(0.1)
        assert pods.probe(probes["livenessProbe"]) == 200
        assert httpx2.post(url, json=body, timeout=30.0).status_code == 401
        answer = httpx2.post(url, json=body, headers={"authorization": f"Bearer {key}"}, timeout=60.0)
        assert answer.status_code == 200, answer.text
        audio = answer.json()["choices"][0]["message"]["audio"]
        assert audio["transcript"] == "Hello, nice to meet you."
        assert len(audio["data"]) > 30_000
    assert "joined" in pods.log("demo-voice-1")
