"""The files of deploy/ agree with the code: commands, ports, health routes, environment variables, distributions, stages of the image."""

from __future__ import annotations

import json
import re
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from ruamel.yaml import YAML

from omni_core.cli.main import omni
from omni_core.plugins import load_plugins
from omni_serve.health import router

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PORT, DRAIN, END = 8000, 30, 25
"""The server's port, the seconds of its drain in these files, and those for the end of its processes."""
OTHERS_VARIABLES = {
    "HOME",
    "HF_HOME",
    "PATH",
    "PYTHONUNBUFFERED",
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
}
UNIT_KEYS = {
    "Unit": {"Description", "Wants", "After"},
    "Service": {
        "Type", "ExecStart", "Restart", "RestartSec", "KillMode", "TimeoutStopSec", "DynamicUser", "User", "StateDirectory",
        "WorkingDirectory", "Environment", "EnvironmentFile", "LimitNOFILE", "LimitMEMLOCK", "NoNewPrivileges", "ProtectHome",
    },
    "Install": {"WantedBy"},
}  # fmt: skip
"""Keys of systemd.unit(5), systemd.service(5) and systemd.exec(5) that the unit may use."""


def documents(name: str) -> list[Any]:
    """Return the documents of a YAML file as plain data."""
    return list(YAML(typ="safe", pure=True).load_all((DEPLOY / name).read_text()))


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the Dockerfile, each with its arguments on one line."""
    lines = [line for line in (DEPLOY / "Dockerfile").read_text().splitlines() if line and not line.startswith("#")]
    return [
        (word, rest)
        for word, _, rest in (line.partition(" ") for line in "\n".join(lines).replace("\\\n", " ").split("\n"))
    ]


def unit() -> dict[str, dict[str, str]]:
    """Return the sections of the systemd unit."""
    sections: dict[str, dict[str, str]] = {}
    for line in (DEPLOY / "omni.service").read_text().splitlines():
        if line.startswith("["):
            section = sections.setdefault(line.strip("[]"), {})
        elif line and not line.startswith("#"):
            key, equals, value = line.partition("=")
            assert equals
            assert key not in section
            section[key] = value
    return sections


def service() -> dict[str, Any]:
    """Return the only service of the compose file."""
    found: dict[str, Any] = documents("compose.yaml")[0]["services"]["omni"]
    return found


def objects() -> dict[str, dict[str, Any]]:
    """Return the objects of Kubernetes by kind."""
    return {each["kind"]: each for each in documents("k8s.yaml")}


def container() -> dict[str, Any]:
    """Return the only container of the Deployment."""
    [found] = objects()["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def commands() -> dict[str, list[str]]:
    """Return every command of `omni` in the folder."""
    made = {f"Dockerfile {n}": json.loads(rest) for n, (word, rest) in enumerate(instructions()) if word == "CMD"}
    return {
        **made,
        "compose.yaml": service()["command"],
        "k8s.yaml": container()["command"],
        "omni.service": shlex.split(unit()["Service"]["ExecStart"]),
    }


@pytest.mark.parametrize("where", commands())
def test_a_command_is_one_of_omni(where: str) -> None:
    program, name, pipeline, *options = commands()[where]
    assert (program.rpartition("/")[2], name) == ("omni", "serve")
    assert pipeline in load_plugins().names("omni_pipelines")
    # An option that does not exist is an error even before --help.
    answer = CliRunner().invoke(omni, [name, pipeline, *options, "--help"])
    assert answer.exit_code == 0, answer.output
    given = dict(pairwise(options))
    assert given.get("--port", str(PORT)) == str(PORT)
    assert given.get("--drain-seconds", str(DRAIN)) == str(DRAIN)
    assert given["--host"] == ("127.0.0.1" if where == "omni.service" else "0.0.0.0")


def test_the_port_is_the_servers() -> None:
    assert ("EXPOSE", str(PORT)) in instructions()
    assert service()["ports"] == [f"127.0.0.1:{PORT}:{PORT}"]
    [port] = container()["ports"]
    assert port["containerPort"] == PORT
    [exposed] = objects()["Service"]["spec"]["ports"]
    assert (exposed["port"], exposed["targetPort"]) == (PORT, port["name"])


def test_probes_ask_for_the_servers_health() -> None:
    routes = {route.path for route in router.routes}  # type: ignore[attr-defined]  # a route of this router has one
    probes = {name: container()[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert {name: probe["path"] for name, probe in probes.items()} == {
        "startupProbe": "/health",
        "livenessProbe": "/health",
        "readinessProbe": "/health/ready",
    }
    assert {probe["port"] for probe in probes.values()} == {"http"}
    [url] = re.findall(r"http://127.0.0.1:(\d+)(/\w+)", service()["healthcheck"]["test"][-1])
    assert url == (str(PORT), "/health")
    compile(service()["healthcheck"]["test"][-1], "healthcheck", "exec")
    assert {"/health", "/health/ready"} <= routes


def test_a_server_has_the_time_for_its_drain_and_its_end() -> None:
    pod = objects()["Deployment"]["spec"]["template"]["spec"]
    before = int(container()["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] >= before + DRAIN + END
    assert int(service()["stop_grace_period"].removesuffix("s")) >= DRAIN + END
    assert int(unit()["Service"]["TimeoutStopSec"]) >= DRAIN + END


def test_environment_variables_are_read_by_the_code() -> None:
    names = set(service()["environment"]) | {each["name"] for each in container()["env"]}
    names |= {word.split("=")[0] for key, rest in instructions() if key == "ENV" for word in rest.split()}
    names |= {word.split("=")[0] for word in unit()["Service"]["Environment"].split()}
    names |= set(re.findall(r"OMNI_\w+", "".join(path.read_text() for path in DEPLOY.iterdir())))
    sources = [path.read_text() for folder in ("omni_core", "plugins") for path in (ROOT / folder).rglob("src/**/*.py")]
    read = {name for name in names - OTHERS_VARIABLES if any(f'"{name}"' in source for source in sources)}
    assert names - OTHERS_VARIABLES == read
    assert "OMNI_API_KEY" in read


def test_the_image_is_built_of_what_exists() -> None:
    stages: list[str] = []
    for word, rest in instructions():
        if word == "FROM":
            source, _, name = rest.partition(" AS ")
            assert source in stages or re.fullmatch(r"python:3\.\d+-slim-bookworm", source)
            stages.append(name)
        elif word == "COPY" and rest.startswith("--from="):
            assert rest.split()[0].removeprefix("--from=") in stages[:-1]
        elif word == "COPY":
            path = rest.split()[0]
            assert path == "dist/" or (ROOT / path).is_file()  # `nox -s build` makes dist/
    assert {"cpu", "cuda"} <= set(stages)
    build = service()["build"]
    assert build["target"] in stages
    assert (DEPLOY / build["context"]).resolve() == ROOT
    assert (ROOT / build["dockerfile"]).is_file()


def test_the_image_installs_distributions_of_this_repository() -> None:
    projects = [*ROOT.glob("*/pyproject.toml"), *ROOT.glob("plugins/*/pyproject.toml")]
    ours = {re.findall(r'^name = "(.*)"', path.read_text(), re.MULTILINE)[0] for path in projects}
    text = " ".join(rest for word, rest in instructions() if word in {"RUN", "ARG"})
    named = set(re.findall(r"\bomni-[a-z0-9-]+", text))
    assert {"omni-core", "omni-serve", "omni-kernels", "omni-kernels-cpu"} < named
    assert named <= ours


def test_what_pods_mount_and_select_exists() -> None:
    made = objects()
    pod = made["Deployment"]["spec"]["template"]
    volumes = {each["name"]: each for each in pod["spec"]["volumes"]}
    mounts = {each["mountPath"]: volumes.pop(each["name"]) for each in container()["volumeMounts"]}
    assert not volumes
    assert mounts["/dev/shm"]["emptyDir"]["medium"] == "Memory"
    assert mounts["/models"]["persistentVolumeClaim"]["claimName"] == made["PersistentVolumeClaim"]["metadata"]["name"]
    labels = pod["metadata"]["labels"]
    assert made["Deployment"]["spec"]["selector"]["matchLabels"] == labels == made["Service"]["spec"]["selector"]
    assert container()["securityContext"]["readOnlyRootFilesystem"]
    assert pod["spec"]["securityContext"]["runAsUser"] == 1000
    variables = {each["name"]: each.get("value") for each in container()["env"]}
    assert (variables["HOME"], variables["HF_HOME"]) == ("/tmp", "/models")
    [volume] = service()["volumes"]
    assert volume == "models:/models"
    assert set(documents("compose.yaml")[0]["volumes"]) == {"models"}
    assert ("ENV", "HF_HOME=/models") in {(word, rest.split()[-1]) for word, rest in instructions()}


def test_keys_of_the_unit_are_keys_of_systemd() -> None:
    sections = unit()
    assert set(sections) == set(UNIT_KEYS)
    assert not {key for section, keys in sections.items() for key in keys.keys() - UNIT_KEYS[section]}
