"""The suite of what is read from a checkpoint's config: on a toy that is right, and on what breaks each rule."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from claiming import COMPONENT, CONFIG

from omni_core.hookspecs import PipelineComponent
from omni_core.interface import Interface
from omni_testing import CheckpointConformance
from omni_testing.checkpoints import Files


class Speaker(CheckpointConformance):
    def component(self) -> PipelineComponent:
        return COMPONENT

    def checkpoints(self) -> list[Files]:
        return [{"config.json": CONFIG}]

    def others(self) -> list[Files]:
        return [{"config.json": {"model_type": "writer"}}]


class TestSpeaker(Speaker):
    pass


def empty(folder: str) -> Interface:
    return Interface()


def new(folder: str) -> Interface:
    COUNT.append(1)
    return Interface(inputs=["text"], outputs=["text"], limits={"n": len(COUNT)})


COUNT: list[int] = []


def anything(folder: str) -> None:
    return None


def nothing(folder: str) -> str:
    return "never"


def unspoken(folder: str) -> Any:
    return None if "voices" in (Path(folder) / "config.json").read_text() else False


@pytest.mark.parametrize(
    ("field", "function", "test", "words"),
    [
        ("interface_from", "empty", "test_its_interface_is_read_from_the_config", "interface.inputs"),
        ("interface_from", "new", "test_its_interface_is_read_from_the_config", "read again, it is another one"),
        (
            "fallback",
            "anything",
            "test_a_fallback_claims_what_it_can_run_and_nothing_else",
            "it must say in a text why",
        ),
        ("fallback", "nothing", "test_a_fallback_claims_what_it_can_run_and_nothing_else", "does not claim it: never"),
        ("fallback", "unspoken", "test_a_fallback_claims_what_it_can_run_and_nothing_else", "not False"),
    ],
)
def test_a_wrong_component_is_caught(field: str, function: str, test: str, words: str) -> None:
    suite = Speaker()
    suite.component = lambda: evolve(COMPONENT, **{field: f"{__name__}:{function}"})  # type: ignore[method-assign]
    with pytest.raises(AssertionError, match=words):
        getattr(suite, test)()


def test_a_heavy_import_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "transformers.py").touch()
    (tmp_path / "heavy.py").write_text("from claiming import voices\ndef read(folder):\n    import transformers\n")
    path = os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])
    monkeypatch.setenv("PYTHONPATH", path)
    suite = Speaker()
    suite.component = lambda: evolve(COMPONENT, interface_from="heavy:read")  # type: ignore[method-assign]
    with pytest.raises(AssertionError, match="it imports transformers"):
        suite.test_reading_a_config_imports_no_heavy_library()
