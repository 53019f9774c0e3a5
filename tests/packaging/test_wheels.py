"""The wheels' metadata: light dependencies, entry points, no test or demo package at run time."""

from __future__ import annotations

import ast
import re
from importlib.metadata import distribution, entry_points
from pathlib import Path

ROOT = Path(__file__).parents[2]
OURS = [
    "omni-core",
    "omni-relay-shm",
    "omni-relay-nixl",
    "omni-relay-mooncake",
    "omni-relay-nccl",
    "omni-commands",
    "omni-launchers",
    "omni-torch",
    "omni-kernels",
    "omni-kernels-cpu",
    "omni-qwen3",
    "omni-demo",
    "omni-diffusion",
    "omni-fish-s2",
    "omni-qwen3-tts",
    "omni-transformers",
    "omni-assistant",
]
NEVER_AT_RUN_TIME = {"pytest", "nox", "mypy", "ruff", "gradio", "torchvision", "torchaudio", "hypothesis"}


def hard_dependencies(name: str) -> set[str]:
    requires = distribution(name).requires or []
    return {re.split(r"[\s<>=!~\[;]", line)[0].lower() for line in requires if "extra ==" not in line}


def test_no_test_or_demo_package_at_run_time() -> None:
    assert not {name for name in OURS if hard_dependencies(name) & NEVER_AT_RUN_TIME}


def test_dependencies_are_ranges_not_pins() -> None:
    requires = [line for name in OURS for line in distribution(name).requires or []]
    assert not [line for line in requires if "==" in line.split(";")[0]]


def test_the_core_needs_no_torch() -> None:
    assert not hard_dependencies("omni-core") & {"torch", "numpy", "transformers"}


def test_every_plugin_registers_itself_by_entry_point() -> None:
    found = {point.dist.metadata["Name"] for point in entry_points(group="omni") if point.dist is not None}
    assert set(OURS) - {"omni-core"} <= found


def test_every_distribution_ships_its_types() -> None:
    for name in OURS:
        assert any(str(path).endswith("py.typed") for path in distribution(name).files or []), name


def test_only_omni_testing_has_modules_for_tests() -> None:
    sources = [
        *ROOT.glob("omni_*/src"),
        *(each for each in ROOT.glob("plugins/*/src") if "omni_testing" not in each.parts),
    ]
    assert len(sources) > 15
    for path in (each for source in sources for each in source.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            names = (
                [node.module]
                if isinstance(node, ast.ImportFrom)
                else [each.name for each in getattr(node, "names", [])]
            )
            found = {str(each).partition(".")[0] for each in names} & {"pytest", "omni_testing"}
            assert not found, f"{path.relative_to(ROOT)} is for tests: it imports {found}"
