"""Completion of pipelines, options, stages and fields, from a command line as a shell gives it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete, get_completion_class

from omni_cli import completion
from omni_cli.plugin import omni_commands
from omni_core.cli.main import omni
from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.hookspecs import PipelineComponent
from omni_core.interface import Interface
from omni_core.plugins import PluginRecord, PluginRegistry

STAGES = [
    StageConfig(name="listen", process="p", factory="json:dumps", next="speak", factory_args={"loud": True}),
    StageConfig(name="speak", process="p", factory="json:dumps", terminal=True),
]


def described(model_path: str, **options: object) -> PipelineConfig:
    """The target of a pipeline that is described without a checkpoint."""
    return PipelineConfig(model_path=model_path, stages=STAGES)


def unreadable(model_path: str, **options: object) -> PipelineConfig:
    raise ValueError("no weights in this checkpoint")


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "test_completion", sys.modules[__name__])
    options = {"dtype": "of every network", "chunk": "frames in a piece"}
    components = [
        PipelineComponent("echo", "test_completion:described", "says it back", options=options),
        PipelineComponent(
            "echo-big", "test_completion:unreadable", "more", interface=Interface(roles={"text": "writer"})
        ),
    ]
    commands = PluginRecord("terminal", "omni-commands", "1.0", "m", components={"omni_commands": omni_commands()})
    mine = PluginRecord("p", "dist-p", "1.0", "m", components={"omni_pipelines": components})
    registry = PluginRegistry([mine, commands])
    for module in ("omni_cli.completion", "omni_cli.deploy.source", "omni_core.plugins"):
        monkeypatch.setattr(f"{module}.load_plugins", lambda: registry)


def completed(*words: str) -> list[str]:
    *before, begun = words
    items = ShellComplete(omni, {}, "omni", "_OMNI_COMPLETE").get_completions(before, begun)
    return [item.value if item.type == "plain" else f"<{item.type}>" for item in items]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("ru", ["run"]),
        ("plan ", ["echo", "echo-big"]),
        ("plan echo-", ["echo-big"]),
        ("plan ./my", ["<file>"]),
        ("config show ec", ["echo", "echo-big"]),
        ("plan echo --option ", ["dtype=", "chunk="]),
        ("plan echo --option d", ["dtype="]),
        ("plan echo --option dtype=b", ["dtype=bfloat16"]),
        ("plan echo --option chunk=4 --option dt", ["dtype="]),
        ("plan nothing --option ", []),
        ("plan echo --set ", ["listen.", "speak."]),
        ("plan echo --set sp", ["speak."]),
        ("plan echo --set speak.gpu", ["speak.gpu=", "speak.gpu_memory="]),
        ("plan echo --set listen.factory_args.", ["listen.factory_args.loud="]),
        ("plan echo --set speak.relay.cre", ["speak.relay.credits="]),
        ("plan echo --set speak.next", []),
        ("plan echo-big --set ", ["writer."]),
        ("plan echo --set speak.gpu=", []),
        ("plan echo --model /nowhere", ["<dir>"]),
    ],
)
def test_completion(words: str, expected: list[str]) -> None:
    assert completed(*words.split(" ")) == expected


def test_a_config_file_is_completed_too(tmp_path: Path) -> None:
    from omni_cli.deploy.writing import dump_json

    path = tmp_path / "p.json"
    path.write_text(dump_json(described("none")))
    assert completed("plan", str(path), "--set", "") == ["listen.", "speak."]
    path.write_text("{")
    assert completed("plan", str(path), "--set", "") == []


def test_downloaded_checkpoints_are_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omni_cli.machine_facts.hub", lambda: {"models": ["Qwen/Big", "other/one"]})
    assert completed("plan", "echo", "--model", "Qw") == ["Qwen/Big"]


def test_bash_adds_no_space_where_a_value_or_a_field_follows() -> None:
    chosen = get_completion_class("bash")
    assert chosen is completion.SpacelessBash
    assert "compopt -o nospace" in chosen.source_template


@pytest.mark.parametrize("words", ["run owner/model --te", "plan owner/model --set ", "run ~nosuchuser/model --te"])
def test_completion_asks_no_hub(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr("omni_cli.deploy.source._fetched", lambda *given: asked.append(given))
    completed(*words.split(" "))
    assert not asked
