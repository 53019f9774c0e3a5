"""Qwen3-Omni without the engine: on a third-party scheduler, and with none, which is an error that says what to
install.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from omni_testing.tiny.qwen3 import write_tiny_checkpoint

pytestmark = pytest.mark.full

TOY = Path(__file__).parent / "toy_distribution"

PROGRAM = """
import asyncio, json, sys
from omni_cli.deploy.source import LayeredSource
from omni_core.client import open_async
from omni_core.protocol.messages import OmniRequest

async def main():
    params = {"thinker": {"max_new_tokens": 6}, "talker": {"temperature": 0.9, "seed": 3, "max_new_tokens": 6}}
    message = {"role": "user", "content": [{"type": "text", "text": "What is a fox?"}]}
    config = LayeredSource("qwen3-omni", sys.argv[1], {"processes": "one"}).resolve().config
    async with open_async(config) as client:
        answer = await client.submit(OmniRequest({"messages": [message]}, params))
    samples = answer["code2wav"].samples.tolist()
    print(json.dumps({"ids": list(answer["decode"].token_ids), "samples": samples}))

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("model") / "tiny")


def run(model: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    given = {**os.environ, **environment}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, str(model)], env=given, capture_output=True, text=True, timeout=250
    )


@pytest.mark.timeout(300)
def test_results_are_equal_on_another_scheduler(model: Path) -> None:
    usual = run(model)
    assert usual.returncode == 0, usual.stderr
    other = run(model, PYTHONPATH=str(TOY), OMNI_DISABLE_PLUGINS="torch")
    assert other.returncode == 0, other.stderr
    one, two = json.loads(usual.stdout), json.loads(other.stdout)
    assert one["ids"] == two["ids"]
    assert one["samples"] == pytest.approx(two["samples"], abs=1e-4)


def test_without_any_scheduler_the_error_says_which_plugin_is_disabled(model: Path) -> None:
    failed = run(model, OMNI_DISABLE_PLUGINS="torch,sglang")
    assert failed.returncode != 0
    assert "stages[thinker].scheduler: no scheduler that can drive" in failed.stderr
    assert "plugin 'torch' of omni-torch 0.1.0, which is disabled: OMNI_DISABLE_PLUGINS names it" in failed.stderr
