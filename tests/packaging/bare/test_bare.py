"""omni-core alone, in an environment where nothing else of ours and no torch is installed. Run by ``nox -s bare``."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest

from omni_core.client import open_pipeline
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


def test_no_plugin_is_listed() -> None:
    answer = run_omni("plugins", "list")
    assert answer.returncode == 0, answer.stderr
    assert "no plugins" in (answer.stdout + answer.stderr).lower()


def test_an_unknown_pipeline_is_a_clear_error() -> None:
    answer = run_omni("run", "qwen3-omni", "--text", "hello")
    assert answer.returncode != 0
    assert "qwen3-omni" in answer.stderr
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
    async with open_pipeline(config) as client:
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
print(*(pid for unit in pipe.health().values() for pid in unit["pids"]))
"""


def test_a_script_that_closes_nothing_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    answer = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=True)
    assert answer.stderr == ""
    said, missing, pids = answer.stdout.splitlines()
    assert said == "hello False ['hello']"
    assert "pip install omni-media" in missing
    assert pids
    assert not [pid for pid in pids.split() if Path("/proc", pid).exists()]
