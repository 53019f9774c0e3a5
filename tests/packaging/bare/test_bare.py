"""omni-core alone, in an environment where nothing else of ours and no torch is installed. Run by ``nox -s bare``."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest

from omni_core.client import open_async
from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.protocol.messages import OmniRequest


def run_omni(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "omni_core.cli", *arguments], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("module", ["torch", "transformers", "numpy"])
def test_nothing_heavy_is_installed(module: str) -> None:
    assert importlib.util.find_spec(module) is None


def test_core_is_the_only_distribution_of_ours() -> None:
    assert {name for d in distributions() if (name := d.metadata["Name"]).startswith("omni-")} == {"omni-core"}


def test_help_starts() -> None:
    answer = run_omni("--help")
    assert answer.returncode == 0
    assert "run" in answer.stdout


def test_a_command_of_another_distribution_says_what_to_install() -> None:
    answer = run_omni("plugins", "list")
    assert answer.returncode == 2, answer.stderr
    assert "the command 'plugins' comes with omni-commands: pip install omni-commands" in answer.stderr


def test_omni_run_answers_a_message(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    config = tmp_path / "echo.yaml"
    config.write_text(
        "model_path: none\nstages: [{name: say, process: all, factory: bare_stages:reply, terminal: true}]\n"
    )
    answer = run_omni("run", str(config), "--text", "hello")
    assert (answer.returncode, answer.stdout) == (0, "HELLO\n"), answer.stderr


WHOLE = """
model_path: none
stages: [{name: say, process: all, factory: bare_stages:Prefixed, factory_args: {prefix: ">"}, terminal: true}]
"""


def test_settings_change_a_whole_config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    config = tmp_path / "prefixed.yaml"
    config.write_text(WHOLE)
    answer = run_omni("run", str(config), "--text", "hello", "--set", "say.factory_args.prefix=so-")
    assert (answer.returncode, answer.stdout) == (0, "so-hello\n"), answer.stderr
    wrong = run_omni("run", str(config), "--text", "hello", "--set", "say.factroy_args.prefix=x")
    assert "did you mean 'factory_args'" in wrong.stderr, wrong.stderr
    assert "Traceback" not in wrong.stderr


@pytest.mark.parametrize(
    "arguments", [["qwen3-omni"], ["some/hub-id"], ["qwen3-omni/1x80"], ["deploy.yaml"], ["x", "--config", "y.yaml"]]
)
def test_what_omni_deploy_finds_is_an_error_that_names_it(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "deploy.yaml").write_text("pipeline: qwen3-omni\n")
    monkeypatch.chdir(tmp_path)
    answer = run_omni("run", *arguments, "--text", "hello")
    assert answer.returncode == 1, answer.stderr
    assert "pip install omni-commands" in answer.stderr
    assert "Traceback" not in answer.stderr


async def test_three_plain_functions_run_in_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    config = PipelineConfig(
        model_path="none",
        name="shout",
        stages=[
            StageConfig(name="split", process="all", factory="bare_stages:split", next="shout"),
            StageConfig(name="shout", process="all", factory="bare_stages:shout", next="join"),
            StageConfig(name="join", process="all", factory="bare_stages:join", terminal=True),
        ],
    )
    async with open_async(config) as client:
        assert await client.submit(OmniRequest(inputs={"text": "it works"})) == {"join": "IT WORKS!"}


SCRIPT = """
import omni_core as omni
from omni_core.config.schema import PipelineConfig, StageConfig

stage = StageConfig(name="echo", process="all", factory="bare_stages:echo", terminal=True)
pipe = omni.open(PipelineConfig(model_path="none", stages=[stage]))
reply = pipe.chat("hello")
print(reply.text, bool(reply.audio), [piece.text for piece in pipe.chat("hello", stream=True)])
try:
    pipe.chat("hello", image=b"png")
except omni.PluginError as error:
    print(error)
try:
    pipe.start_profile()
except omni.PluginError as error:
    print(error)
print(*(pid for unit in pipe.health().values() for pid in unit["pids"]))
"""


def test_a_script_that_closes_nothing_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    answer = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=True)
    assert answer.stderr == ""
    said, missing, unrecorded, pids = answer.stdout.splitlines()
    assert said == "hello False ['hello']"
    assert "pip install omni-media" in missing
    assert "pip install omni-commands" in unrecorded
    assert pids
    assert not [pid for pid in pids.split() if Path("/proc", pid).exists()]
