"""The page about deploy files: its examples are run, and its table of keys is complete."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from omni_cli.deploy.files import KEYS
from omni_core.cli.main import omni
from omni_core.config.schema import PipelineConfig, RequestLimits
from omni_core.hookspecs import PipelineComponent
from omni_core.plugins import load_plugins
from omni_core.references import load

PAGE = Path(__file__).parents[2] / "docs" / "deploy-files.md"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files of the page and a small checkpoint, on a machine without GPUs."""
    for name, text in re.findall(r"```yaml\n# (\S+)\n(.*?)```", PAGE.read_text(), re.DOTALL):
        (tmp_path / name).write_text(f"# {name}\n{text}")
    component = load_plugins().get("omni_pipelines", "qwen3-omni")
    assert isinstance(component, PipelineComponent)
    (tmp_path / "Qwen3-Omni").symlink_to(load(str(component.default_model))()[0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMNI_PLATFORM", "cpu")
    monkeypatch.setattr("omni_cli.deploy.fitting.detect", list)
    return tmp_path


def test_every_command_of_the_page_prints_what_it_says(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```console\n(.*?)```", PAGE.read_text(), re.DOTALL)
    commands = [each for block in blocks for each in re.split(r"^\$ ", block, flags=re.MULTILINE) if each]
    assert len(commands) >= 5
    for command in commands:
        line, _, expected = command.partition("\n")
        variables = [each for each in shlex.split(line) if re.match(r"OMNI_\w+=", each)]
        with monkeypatch.context() as patch:
            for name, _, value in (each.partition("=") for each in variables):
                patch.setenv(name, value)
            result = CliRunner().invoke(omni, shlex.split(line)[len(variables) + 1 :])
        said = result.stdout + (f"Error: {result.exception}\n" if result.exception and not result.stdout else "")
        assert said.replace(f"{folder}/", "").strip() == expected.strip(), line


def test_the_table_names_every_key_of_a_file() -> None:
    table = PAGE.read_text().partition("## Keys")[2].partition("##")[0]
    named = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    fields = set(PipelineConfig.__annotations__) - {"defaults", "limits", "stages", "server", "launcher", "model_path"}
    assert set(named) == set(KEYS) - fields
    assert all(f"`{name}`" in table for name in RequestLimits.__annotations__)
