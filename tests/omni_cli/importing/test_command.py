"""``omni import``: what is printed and written, and the exit code."""

from __future__ import annotations

import json
from pathlib import Path

import example_pipeline
import pytest
from click.testing import CliRunner, Result
from ruamel.yaml import YAML

from omni_cli.importing import command
from omni_core.errors import ConfigError

TEXT = "stages:\n- {stage_id: 0, max_num_seqs: 4, moe_backend: triton}\n"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    """Run ``omni import vllm-omni speaker.yaml`` with a text and options."""
    monkeypatch.setattr(command, "load_plugins", example_pipeline.registry)
    monkeypatch.chdir(tmp_path)

    def run(text: str, *options: str, system: str = "vllm-omni") -> Result:
        Path("speaker.yaml").write_text(text)
        return CliRunner().invoke(command.import_, [system, "speaker.yaml", *options])

    return run


def test_the_file_is_printed_and_the_report_beside_it(run) -> None:  # type: ignore[no-untyped-def]
    done = run(TEXT)
    assert done.exit_code == 0
    assert YAML(typ="safe").load(done.stdout) == {
        "pipeline": "speaker",
        "stages": {"reader": {"factory_args": {"max_running": 4}}},
    }
    assert "# Converted from speaker.yaml" in done.stdout
    assert '#   stages[0].moe_backend: "triton"  (' in done.stdout
    assert done.stderr.splitlines()[:2] == [
        "speaker: 0 → reader, 1 → talker, 2 → sound",
        "3 keys: 2 taken (1 hold without a line), 1 noted, 0 refused",
    ]
    assert 'noted    speaker.yaml:2  stages[0].moe_backend: "triton"' in done.stderr


def test_it_is_written_to_a_file(run) -> None:  # type: ignore[no-untyped-def]
    done = run(TEXT, "-o", "deploy.yaml", "--model", "some/model")
    assert (done.exit_code, done.stdout) == (0, "")
    written = YAML(typ="safe").load(Path("deploy.yaml").read_text())
    assert written["model_path"] == "some/model"


def test_the_input_is_not_overwritten(run) -> None:  # type: ignore[no-untyped-def]
    done = run(TEXT, "-o", "./speaker.yaml")
    assert done.exit_code == 2
    assert "--out speaker.yaml is read here" in done.stderr
    assert Path("speaker.yaml").read_text() == TEXT


def test_a_refused_key_writes_nothing(run) -> None:  # type: ignore[no-untyped-def]
    done = run("stages:\n- {stage_id: 0, max_num_seqs: -4}\n", "-o", "deploy.yaml")
    assert isinstance(done.exception, ConfigError)
    assert "1 keys cannot be converted; nothing was written" in str(done.exception)
    assert "refused  speaker.yaml:2  stages[0].max_num_seqs: -4" in done.stderr
    assert not Path("deploy.yaml").exists()


def test_strict_makes_notes_errors(run) -> None:  # type: ignore[no-untyped-def]
    done = run(TEXT, "--strict", "-o", "deploy.yaml")
    assert isinstance(done.exception, ConfigError)
    assert "(--strict)" in str(done.exception)
    assert not Path("deploy.yaml").exists()
    assert run("stages:\n- {stage_id: 0, max_num_seqs: 4}\n", "--strict").exit_code == 0


def test_values_that_do_not_fit_together_write_nothing(run) -> None:  # type: ignore[no-untyped-def]
    """Each key is right by itself; on one platform the devices of the stage are not those of its ranks."""
    text = """\
stages: [{stage_id: 0, devices: "0,1", tensor_parallel_size: 2}]
platforms: {npu: {stages: [{stage_id: 0, tensor_parallel_size: 1}]}}
"""
    done = run(text, "-o", "deploy.yaml")
    assert isinstance(done.exception, ConfigError)
    assert "speaker.yaml: what it says does not fit together, on npu:\n" in str(done.exception)
    assert "stages[reader].tp_size: is 1, but `gpu` lists 2 devices" in str(done.exception)
    assert not Path("deploy.yaml").exists()


def test_json_has_the_report_and_the_file(run) -> None:  # type: ignore[no-untyped-def]
    done = run(TEXT, "--json", "-o", "deploy.yaml")
    document = json.loads(done.stdout)
    assert done.exit_code == 0
    assert document["counts"] == {"taken": 2, "noted": 1, "refused": 0}
    assert document["keys"][1] == {
        "key": "stages[0].max_num_seqs",
        "file": "speaker.yaml",
        "line": 2,
        "value": 4,
        "outcome": "taken",
        "text": "",
        "writes": ["stages.reader.factory_args.max_running"],
    }
    assert document["output"]["stages"] == {"reader": {"factory_args": {"max_running": 4}}}
    assert Path("deploy.yaml").exists()


def test_json_of_a_refusal(run) -> None:  # type: ignore[no-untyped-def]
    done = run("max_num_seqs: 4\n", "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout)["output"] is None


def test_the_other_system(run) -> None:  # type: ignore[no-untyped-def]
    done = run("stages: {sound: {factory: {chunk: 10}}}\n", system="sglang-omni")
    assert done.exit_code == 0
    assert YAML(typ="safe").load(done.stdout)["stages"] == {"sound": {"factory_args": {"chunk": 10}}}


def test_a_comment_cannot_end_early(run) -> None:  # type: ignore[no-untyped-def]
    """Quotes in a comment are input: line breaks in it must not become lines of the file."""
    done = run('stages:\n- {stage_id: 0, moe_backend: "a\\nstages: 1\\u2028x: 1\\u0085y: 2"}\n')
    assert done.exit_code == 0
    assert YAML(typ="safe").load(done.stdout) == {"pipeline": "speaker"}
