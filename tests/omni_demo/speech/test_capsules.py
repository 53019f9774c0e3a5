"""A spoken answer leaves a capsule, and its thinker, talker and vocoder are run again in fresh processes, equal byte by byte."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from omni_core.client import open_async

pytest.importorskip("omni_capsules")

ROOT = Path(__file__).parents[3]
PACKAGES = ("omni_core", "omni_qwen3", "plugins/omni_torch", "plugins/omni_torch", "plugins/omni_capsules")

SPOKEN = 0.8
"""Seconds of speech, ten frames: as many as the talker's messages that the test wants, and more."""


@pytest.fixture
async def capsule(tmp_path: Path) -> Path:
    settings = {"capsules.folder": str(tmp_path / "capsules"), "capsules.inputs": True, "capsules.slow": 0.001}
    async with open_async("demo", options={"processes": "one"}, set=settings) as pipe:
        for _ in range(30):  # drawn so freely, a speech may end after its first frame; the test wants a longer one
            # No seed, and what is sampled is drawn: the recorded request has one all the same.
            params = {"talker": {"temperature": 2.5, "top_k": 0, "top_p": 1.0}}
            reply = await pipe.chat("What is your name?", params=params)
            assert reply.audio is not None
            if reply.audio.seconds >= SPOKEN:
                break
    return max((tmp_path / "capsules").iterdir())  # their names begin with the time


def replayed(capsule: Path, stage: str, *sources: Path) -> dict[str, object]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sources))} if sources else dict(os.environ)
    command = [sys.executable, "-m", "omni_core.cli", "replay", str(capsule), "--stage", stage, "--json"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    document: dict[str, object] = json.loads(ended.stdout)
    return document


async def test_thinker_talker_and_vocoder_are_replayed_and_on_another_checkout_too(
    capsule: Path, tmp_path: Path
) -> None:
    for stage, least in (("thinker", 4), ("talker_ar", 8)):
        found = replayed(capsule, stage)
        assert (found["difference"], found["environment"]) == ("", [])
        assert found["equal"] == found["recorded"] >= least  # type: ignore[operator]
    copies = []
    for package in PACKAGES:
        copies.append(tmp_path / "checkout" / package / "src")
        shutil.copytree(ROOT / package / "src", copies[-1], ignore=shutil.ignore_patterns("__pycache__"))
    with (copies[1] / "omni_qwen3/__init__.py").open("a") as file:
        file.write("# another checkout\n")
    found = replayed(capsule, "code2wav", *copies)
    assert (found["difference"], found["ended"]) == ("", "completed")
    assert found["environment"] == ["omni_qwen3: its sources are not those of then"]
