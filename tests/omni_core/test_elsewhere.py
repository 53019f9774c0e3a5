"""Errors about other systems' names say what is here in their place."""

from __future__ import annotations

import re
from pathlib import Path

import attrs
import click
import pytest
from click.testing import CliRunner

from omni_core.cli.main import omni
from omni_core.config.schema import StageConfig
from omni_core.elsewhere import FLAGS, NAMES

STAGE = "- {name: a, process: p, factory: 'json:loads', terminal: true, %s: x}"


@pytest.mark.parametrize("command", ["serve", "run", "plan"])
@pytest.mark.parametrize("flag", FLAGS)
def test_a_flag_of_another_system(command: str, flag: str) -> None:
    answer = CliRunner().invoke(omni, [command, "demo", flag, "1"])
    assert answer.exit_code == 2
    assert f"Error: No such option '{flag}'; here it is {FLAGS[flag]}\n" in answer.output


def test_what_is_named_exists() -> None:
    group, context = omni, click.Context(omni)
    known = {flag for name in ("serve", "run") for each in _command(group, context, name).params for flag in each.opts}
    hosts = _command(group, context, "hosts")
    assert isinstance(hosts, click.Group)
    known |= {flag for each in _command(hosts, context, "join").params for flag in each.opts}
    texts = " ".join([*FLAGS.values(), *NAMES.values()])
    assert set(re.findall(r"--[a-z-]+", texts)) <= known
    fields = {each.name for each in attrs.fields(StageConfig)}
    assert {"expand_fn", "factory", "factory_args", "next", "route_fn", "gpu"} <= fields
    root = Path(__file__).parents[2]
    assert all((root / page).exists() for page in re.findall(r"docs/[a-z-]+\.md", texts))


def _command(group: click.Group, context: click.Context, name: str) -> click.Command:
    found = group.get_command(context, name)
    assert found is not None
    return found


@pytest.mark.parametrize("key", ["prompt_expand_func", "cfg_kv_collect_func", "executor", "get_next"])
def test_a_key_of_a_stage_of_another_system(key: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"model_path: none\nstages:\n{STAGE % key}\n")
    answer = CliRunner().invoke(omni, ["config", "validate", str(path)])
    assert f"stages[a].{key}: unknown field; here it is {NAMES[key]}" in str(answer.exception)


def test_a_file_of_another_system(tmp_path: Path) -> None:
    path = tmp_path / "theirs.yaml"
    path.write_text("stage_args: [{stage_id: 0}]\n")
    for command in ("serve", "run", "plan"):
        answer = CliRunner().invoke(omni, [command, str(path)])
        assert "stage_args: unknown key; here it is `omni import vllm-omni FILE`" in str(answer.exception), command


@pytest.mark.parametrize("name", ["ExecutorConfig", "compile_pipeline", "PipelineRunner"])
def test_a_name_of_another_system_s_package(name: str) -> None:
    for module in ("omni_core", "omni_core.api"):
        with pytest.raises(
            ImportError, match=re.escape(f"cannot import '{name}' from '{module}'; here it is {NAMES[name]}")
        ):
            exec(f"from {module} import {name}")
