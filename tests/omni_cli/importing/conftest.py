"""Conversions of files that a test writes, for a pipeline of this folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import example_pipeline
import pytest
from ruamel.yaml import YAML

from omni_cli.importing.report import Report
from omni_cli.importing.sglang_omni.convert import convert as from_sglang
from omni_cli.importing.vllm_omni.convert import convert as from_vllm
from omni_core.plugins import PluginRegistry


@pytest.fixture
def registry() -> PluginRegistry:
    return example_pipeline.registry()


@pytest.fixture
def vllm(tmp_path: Path, registry: PluginRegistry) -> Callable[..., Report]:
    """Convert ``speaker.yaml``, or another name, with this text, beside further files by name."""

    def convert(text: str, files: dict[str, str] | None = None, name: str = "speaker.yaml", **options: Any) -> Report:
        for each, content in {**(files or {}), name: text}.items():
            (tmp_path / each).write_text(content)
        return from_vllm(tmp_path / name, registry, **options)

    return convert


@pytest.fixture
def sglang(tmp_path: Path, registry: PluginRegistry) -> Callable[..., Report]:
    """Convert ``speaker.yaml`` with this text."""

    def convert(text: str, **options: Any) -> Report:
        (tmp_path / "speaker.yaml").write_text(text)
        return from_sglang(tmp_path / "speaker.yaml", registry, **options)

    return convert


def paths(value: Any, path: str = "", *, top: bool = True) -> Iterator[str]:
    """Yield the path of every value of a document, by a reader of its own."""
    if isinstance(value, dict) and (value or top):
        for key, inner in value.items():
            yield from paths(inner, key if top else f"{path}.{key}", top=False)
    elif isinstance(value, list) and any(isinstance(each, dict) for each in value):
        for number, inner in enumerate(value):
            yield from paths(inner, f"{path}[{number}]", top=False)
    else:
        yield path


@pytest.fixture
def every_key_once() -> Callable[[Report, list[Path]], None]:
    """Check that a report has each key of its files once."""

    def check(report: Report, files: list[Path]) -> None:
        wanted = sorted(
            f"{file} {path}" for file in files for path in paths(YAML(typ="safe").load(file.read_text()) or {})
        )
        assert sorted(f"{entry.leaf.file} {entry.leaf.name}" for entry in report.entries) == wanted

    return check
