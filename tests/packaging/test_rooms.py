"""The rooms of the core import each other in one direction, and no distribution reaches into another model's."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CORE = ROOT / "omni_core/src/omni_core"
ROOMS = [
    "__version__", "elsewhere", "errors", "forks", "stage_logs", "references", "interface", "structured",
    "component_checks", "hookspecs", "plugins", "services", "config", "protocol", "control", "relay", "scheduling", "model_runner",
    "observe", "stage", "coordinator",
    "processes", "machines", "launch", "client", "cli", "api", "runtime_api",
]  # fmt: skip
"""Each may import those before it. docs/decisions/0001-the-core.md describes their contents."""

TORCH = {
    "omni_cli",
    "omni_sglang",
    "omni_kernels",
    "omni_kernels_cpu",
    "omni_qwen3",
    "omni_fish_s2",
    "omni_qwen25",
    "omni_qwen3_tts",
    "omni_kokoro",
    "omni_demo",
    "omni_diffusion",
    "omni_transformers",
}
SHARED = {
    "omni_relay_kit": {"omni_relay_shm", "omni_relay_nccl", "omni_relay_nixl", "omni_relay_mooncake"},
    "omni_torch": {*TORCH, "omni_testing", "omni_planner"},
    "omni_diffusion": {"omni_demo"},
    "omni_cli": {"omni_testing", "omni_serve", "omni_planner"},
    "omni_launchers": {"omni_testing"},
    "omni_media": {
        "omni_serve", "omni_cli", "omni_qwen3", "omni_qwen25", "omni_fish_s2", "omni_diffusion", "omni_demo",
        "omni_transformers", "omni_qwen3_tts",
    },
    "omni_serve": {"omni_cli", "omni_testing"},
    "omni_testing": {
        "omni_torch", "omni_sglang", "omni_qwen3", "omni_qwen25", "omni_fish_s2", "omni_demo", "omni_kernels", "omni_cli",
        "omni_relay_shm", "omni_relay_nccl", "omni_relay_nixl", "omni_relay_mooncake", "omni_launchers",
        "omni_qwen3_tts",
    },
    "omni_sglang": set(),
    "omni_qwen3": {"omni_demo", "omni_qwen25", "omni_testing"},
    "omni_fish_s2": {"omni_testing"},
    "omni_assistant": {"omni_testing"},
    "omni_kokoro": {"omni_testing"},
    "omni_qwen25": {"omni_testing"},
    "omni_qwen3_tts": {"omni_testing"},
}  # fmt: skip
"""Engines and models, and the distributions that may import them. All may import the core."""


def imports(path: Path) -> Iterator[str]:
    """Return the modules that a file imports, anywhere in the file."""
    return imported(ast.walk(ast.parse(path.read_text())))


def imported(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def room(path: Path) -> str:
    return path.relative_to(CORE).parts[0].removesuffix(".py")


def test_every_room_has_its_place() -> None:
    assert {room(path) for path in CORE.rglob("*.py")} - {"__init__", "__main__"} <= set(ROOMS)


def test_imports_point_one_way() -> None:
    """But for the annotations of ``services``, whose page describes parts of every room."""
    for path in CORE.rglob("*.py"):
        if (here := room(path)) not in ROOMS:
            continue
        tree = ast.parse(path.read_text())
        for name in imported(executed(tree) if here == "services" else ast.walk(tree)):
            package, _, rest = name.partition(".")
            other = rest.split(".")[0]
            if package == "omni_core" and other in ROOMS:
                assert ROOMS.index(other) <= ROOMS.index(here), f"{path.relative_to(ROOT)} imports {name}"


def module(path: Path) -> str:
    names = path.relative_to(CORE.parent).with_suffix("").parts
    return ".".join(names[:-1] if names[-1] == "__init__" else names)


def executed(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a module without those under ``if TYPE_CHECKING``."""
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            yield node
            yield from executed(node)


def test_modules_of_the_core_import_each_other_without_a_circle() -> None:
    """Imports within functions count too; those for annotations only do not."""
    modules = {module(path): path for path in CORE.rglob("*.py")}
    graph: dict[str, set[str]] = {name: set() for name in modules}
    for name, path in modules.items():
        for node in executed(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                graph[name].update(alias.name for alias in node.names if alias.name in modules)
            elif isinstance(node, ast.ImportFrom) and node.module in modules:
                named = {f"{node.module}.{alias.name}" for alias in node.names}
                graph[name].update(named & modules.keys() or {node.module})
        graph[name].discard(name)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" is imported by ".join(error.args[1]))


def test_the_core_knows_no_stage_of_a_model() -> None:
    """A model declares the names of its stages and groups of parameters; the core reads the declaration."""
    for path in CORE.rglob("*.py"):
        found = re.findall(r"(?i)thinker|talker", path.read_text())
        assert not found, f"{path.relative_to(ROOT)} says {found[0]!r}"


def test_the_core_knows_no_cluster() -> None:
    for path in CORE.rglob("*.py"):
        found = re.findall(r"(?i)\bray\b", path.read_text())
        assert not found, f"{path.relative_to(ROOT)} says {found[0]!r}"


def test_the_core_names_no_other_distribution() -> None:
    """Not even in a string or a comment; ``advice.json``, which says what to install, aside."""
    others = {path.name.removeprefix("omni_") for path in [*ROOT.glob("plugins/omni_*"), *ROOT.glob("omni_*")]} - {
        "core"
    }
    named = re.compile(
        rf"\bomni(?:_(?:{'|'.join(others)})[.:]|-(?:{'|'.join(each.replace('_', '-') for each in others)})\b)"
    )
    for path in CORE.rglob("*.py"):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            assert not (found := named.findall(line)), f"{path.relative_to(ROOT)}:{number} names {found[0]}"


ALONE = """
import json, sys
import omni_core
from omni_core.client.source import source_class
from omni_core.config.schema import PipelineConfig, StageConfig

def reply(payload):
    return json.dumps([sys.orig_argv, sorted(sys.modules)])

if __name__ == "__main__":
    stage = StageConfig(name="only", factory="alone:reply", process="all", terminal=True)
    with omni_core.open(PipelineConfig(model_path="none", stages=[stage])) as pipe:
        arguments, modules = json.loads(pipe.chat("hi").text)
    loaded = {name.partition(".")[0] for name in [*modules, *sys.modules]}
    print(json.dumps([source_class().__name__, arguments, sorted(each for each in loaded if each.startswith("omni"))]))
"""


def test_without_plugins_the_core_runs_functions_and_loads_no_other_distribution(tmp_path: Path) -> None:
    (tmp_path / "alone.py").write_text(ALONE)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "OMNI_DISABLE_PLUGINS": "*", "PYTHONPATH": path}
    command = [sys.executable, str(tmp_path / "alone.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    source, arguments, loaded = json.loads(done.stdout)
    assert source == "PipelineSource"
    assert "omni_core.processes.main" in arguments, "it is a fresh interpreter, no fork of a server"
    assert loaded == ["omni_core"]


def test_distributions_import_the_core_and_what_they_depend_on() -> None:
    sources = {folder.name: folder for folder in [*ROOT.glob("omni_*/src/omni_*"), *ROOT.glob("plugins/*/src/omni_*")]}
    assert len(sources) > 8
    for name, folder in sources.items():
        for path in folder.rglob("*.py"):
            for found in imports(path):
                other = found.split(".")[0]
                allowed = other in (name, "omni_core") or other not in sources or name in SHARED.get(other, ())
                assert allowed, f"{path.relative_to(ROOT)} imports {found}"


def test_no_model_names_an_engine() -> None:
    """Neither an import nor a dotted reference: a model's stages leave the scheduler to what is installed."""
    for model in ("omni_qwen3", "omni_fish_s2"):
        for path in (ROOT / model / "src").rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                named = isinstance(node, ast.Constant) and isinstance(node.value, str) and ":" in node.value
                references = [node.value] if named and not node.value.count(" ") else []  # type: ignore[attr-defined]
                for name in references:
                    assert not name.startswith(("omni_torch.engine", "omni_sglang")), (
                        f"{path.relative_to(ROOT)} names {name}"
                    )
            for found in imports(path):
                engines = ("omni_torch.engine", "omni_sglang")
                assert not found.startswith(engines), f"{path.relative_to(ROOT)} imports {found}"
