"""The adapter's use of SGLang matches the installed version, in one folder; a change would be reported by name."""

from __future__ import annotations

import ast
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from surface import load, problems

import omni_sglang
from omni_sglang.plugin import SGLANG_VERSION, probe

PACKAGE = Path(omni_sglang.__file__).parent
ADAPTER = PACKAGE / "adapter"
SOURCES = {path.name: path.read_text() for path in ADAPTER.glob("*.py")}
ROOT = Path(__file__).parents[2]


def test_everything_that_the_adapter_uses_is_there() -> None:
    found = [f"{name}: {line}" for name, source in SOURCES.items() for line in problems(source)]
    assert not found, f"SGLang {version('sglang')} is not what the adapter was written against:\n" + "\n".join(found)


def test_the_server_arguments_are_there() -> None:
    """They are passed as a dictionary, which the comparison of calls does not see into."""
    names = [
        key.value
        for node in ast.walk(ast.parse(SOURCES["local_scheduler.py"]))
        if isinstance(node, ast.Dict)
        for key in node.keys
        if isinstance(key, ast.Constant)
        and any(isinstance(k, ast.Constant) and k.value == "load_format" for k in node.keys)
    ]
    assert len(names) > 10
    fields = load("sglang.srt.server_args:ServerArgs").__struct_fields__
    assert not [name for name in names if name not in fields]


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("import FINISH_LENGTH, Req", "import FINISH_SIZE, Req", "FINISH_SIZE"),
        (
            "scheduler.process_batch_result(",
            "scheduler.process_batch_results(",
            "Scheduler.process_batch_results: gone",
        ),
        ("scheduler.waiting_queue", "scheduler.waiting_line", "Scheduler.waiting_line: gone"),
        ("req.kv.holds_kv", "req.kv.holds_it", "holds_it: gone"),
        ("filter_batch(reqs_to_exclude=", "filter_batch(exclude=", "filter_batch(exclude=...): no such argument"),
        (
            "release_kv_cache(req, scheduler.tree_cache, checkpoint=keep)",
            "release_kv_cache(req)",
            "(checkpoint=...): now required",
        ),
    ],
)
def test_a_change_is_reported_by_name(before: str, after: str, said: str) -> None:
    (source,) = (each for each in SOURCES.values() if before in each)
    assert any(said in line for line in problems(source.replace(before, after)))


def test_sglang_is_imported_in_one_folder_only() -> None:
    for path in PACKAGE.rglob("*.py"):
        imports = [
            name
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, (ast.Import, ast.ImportFrom))
            for name in (
                [node.module or ""] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names]
            )
            if name.split(".")[0] == "sglang"
        ]
        assert not imports or path.parent == ADAPTER, path


def test_one_version_everywhere() -> None:
    metadata = tomllib.loads((ROOT / "plugins/omni_sglang/pyproject.toml").read_text())
    assert f"sglang=={SGLANG_VERSION}" in metadata["project"]["dependencies"]
    assert f"sglang=={SGLANG_VERSION}" in (ROOT / "tests/omni_sglang/constraints.txt").read_text().splitlines()
    assert version("sglang") == SGLANG_VERSION


def test_the_probe_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omni_sglang.plugin.find_spec", lambda name: None)
    assert "not an installation for a GPU" in (probe() or "")
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.5.22")
    assert "0.5.22 is installed; this plugin works with 0.5.23 only" in (probe() or "")
