"""``omni plugins new``: what it writes is complete, clean, and keeps its contracts; what it cannot write it refuses."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from omni_core.cli.main import omni
from omni_core.hookspecs import HOOKS
from omni_testing.authoring import KINDS, ProjectNames

LONG = "a-rather-long-name-of-somebodys-own"


def new(name: str, kind: str, *arguments: str) -> Result:
    return CliRunner().invoke(omni, ["plugins", "new", name, "--kind", kind, *arguments])


def written(root: Path, prefix: str) -> dict[str, Path]:
    """A project of every kind, by kind, called ``PREFIX-KIND``."""
    folders = {kind: root / f"{prefix}-{kind}" for kind in KINDS}
    for kind, folder in folders.items():
        result = new(f"{prefix}-{kind}", kind, "--out", str(folder))
        assert result.exit_code == 0, result.output
    return folders


@pytest.fixture(scope="module")
def projects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Projects of every kind, each as good as installed for whoever has its ``src`` on the path."""
    folders = written(tmp_path_factory.mktemp("projects"), "fresh")
    for folder in folders.values():
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        info = folder / "src" / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
        )
        points = [f"{name} = {module}" for name, module in project["entry-points"]["omni"].items()]
        (info / "entry_points.txt").write_text("\n".join(["[omni]", *points, ""]))
    return folders


def beside(projects: dict[str, Path], *command: str) -> subprocess.CompletedProcess[str]:
    """Run Python where all of them are installed."""
    path = [*(str(folder / "src") for folder in projects.values()), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}
    return subprocess.run(
        [sys.executable, *command],
        env=environment,
        cwd=next(iter(projects.values())).parent,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def test_every_hook_but_those_of_the_runtime_has_a_template() -> None:
    hooks = [hook for kind in KINDS.values() for hook in kind.hooks]
    assert set(HOOKS) - set(hooks) == {"omni_services"}
    alone = [kind.hook for kind in KINDS.values() if not kind.also]
    assert len(set(alone)) == len(alone)


def test_what_is_written_is_listed_and_is_a_whole_distribution(projects: dict[str, Path], tmp_path: Path) -> None:
    output = new("another", "relay", "--out", str(tmp_path / "here")).output
    listed = set(re.findall(r"^  (\S+\.\S+|\S*gitignore)$", output, re.MULTILINE))
    assert listed == {str(path.relative_to(tmp_path / "here")) for path in (tmp_path / "here").rglob("*.*")} - {
        ".github"
    }
    assert f"cd {tmp_path / 'here'}" in output
    common = {"pyproject.toml", "README.md", "noxfile.py", ".gitignore", ".github/workflows/ci.yml"}
    for kind, folder in projects.items():
        module = f"fresh_{kind.replace('-', '_')}"
        assert all((folder / name).is_file() for name in common), kind
        assert (folder / "src" / module / "py.typed").is_file(), kind
        assert list((folder / "tests").glob("test_*.py")), kind


def test_nothing_of_the_templates_is_left_in_them(projects: dict[str, Path]) -> None:
    for folder in projects.values():
        for path in folder.rglob("*"):
            assert "__module__" not in str(path)
            if path.is_file():
                text = path.read_text()
                assert not re.search(r"\$(?!\{\{)", text), path
                if path.suffix == ".py":
                    compile(text, str(path), "exec")


@pytest.mark.parametrize("prefix", ["q", LONG])
def test_it_is_clean_code_whatever_its_name(prefix: str, tmp_path: Path) -> None:
    written(tmp_path, prefix)
    for arguments in (["check"], ["format", "--check", "--diff"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *arguments, "--no-cache", str(tmp_path)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_each_provides_what_was_asked_for(projects: dict[str, Path]) -> None:
    names = [f"fresh-{kind}" for kind in KINDS]
    listed = beside(projects, "-m", "omni_core.cli", "plugins", "check", *names).stdout
    for kind, what in KINDS.items():
        for hook in what.hooks:
            assert f"ok  {HOOKS[hook].kind} fresh-{kind} (fresh-{kind})\n" in listed, listed
    assert all("(fresh-" in line for line in listed.splitlines() if not line.startswith(" ")), listed


BULK = """
import numpy
from omni_core.client import run
from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.protocol.messages import OmniRequest

def make(payload):
    return {"numbers": numpy.arange(200_000)}

def add(payload):
    return int(payload.data["numbers"].sum())

if __name__ == "__main__":
    stages = [StageConfig(name="make", process="a", factory="bulk:make", next="add"),
              StageConfig(name="add", process="b", factory="bulk:add", terminal=True)]
    print(run(PipelineConfig(model_path="none", relay_backend="fresh-relay", stages=stages), OmniRequest())["add"])
"""


def test_the_relay_carries_a_pipeline(projects: dict[str, Path]) -> None:
    (projects["relay"] / "src" / "bulk.py").write_text(BULK)
    answer = beside(projects, "-m", "bulk")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout == "19999900000\n"


@pytest.mark.parametrize(
    ("name", "kind", "complaint"),
    [
        ("-x", "relay", "cannot be a distribution's name"),
        ("a b", "relay", "cannot be a distribution's name"),
        ("x-", "relay", "cannot be a distribution's name"),
        ("3d-relay", "relay", "'3d_relay'"),
        ("class", "relay", "'class'"),
        ("Omni.Core", "relay", "omni-core is installed here"),
        ("json", "relay", "a module of Python's own"),
        ("pytest-timeout", "command", "pytest-timeout is installed here"),
        ("shm", "relay", "omni-relay-shm"),
        ("run", "command", "provides a command of this name"),
    ],
)
def test_names_that_are_impossible_or_taken_are_refused(
    name: str, kind: str, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(omni, ["plugins", "new", "--kind", kind, "--", name])
    assert result.exit_code == 1
    assert complaint in str(result.exception)
    assert not list(tmp_path.iterdir())


def test_a_name_is_free_where_only_another_kind_has_it(tmp_path: Path) -> None:
    assert new("shm", "projection", "--out", str(tmp_path / "x")).exit_code == 0


def test_an_unknown_kind_is_refused_with_those_that_there_are() -> None:
    result = new("mine", "relays")
    assert result.exit_code == 2
    assert all(kind in result.output for kind in KINDS)


def test_a_folder_in_use_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("kept")
    for folder in (tmp_path, tmp_path / "kept"):
        result = new("mine", "relay", "--out", str(folder))
        assert result.exit_code == 1
        assert "is not an empty folder" in str(result.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_plugin_and_component_are_named_without_prefixes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert new("omni-relay-file", "relay").exit_code == 0
    project = tomllib.loads((tmp_path / "omni-relay-file" / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["omni"] == {"relay-file": "omni_relay_file.plugin [relays-1]"}
    assert '"file",' in (tmp_path / "omni-relay-file/src/omni_relay_file/plugin.py").read_text()
    assert 'entry_point = "relay-file"' in (tmp_path / "omni-relay-file/tests/test_relay.py").read_text()
    assert "Registered as `file`" in (tmp_path / "omni-relay-file" / "README.md").read_text()
    command = [
        ProjectNames.of(name).component(kind) for name, kind in (("omni-hello", "command"), ("my-relay", "relay"))
    ]
    assert command == ["hello", "my-relay"]


def test_names_are_written_in_one_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert new("My_New.Relay", "relay").exit_code == 0
    assert (
        tomllib.loads((tmp_path / "my-new-relay" / "pyproject.toml").read_text())["project"]["name"] == "my-new-relay"
    )
