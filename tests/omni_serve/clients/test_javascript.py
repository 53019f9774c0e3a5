"""Clients in JavaScript: OpenAI's Agents SDK and Vercel's AI SDK, in Node.js."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from client_voices import pcm, voice

FOLDER = Path(sys.prefix) / "node"


@pytest.mark.parametrize("name", ["agents", "ai_sdk"])
def test_a_client(name: str, tmp_path: Path) -> None:
    (tmp_path / "voice.pcm").write_bytes(pcm(voice(0.8)))
    environment = {**os.environ, "VOICE": str(tmp_path / "voice.pcm")}
    command = ["node", "--test", f"{name}.test.mjs"]
    ran = subprocess.run(
        command, cwd=FOLDER, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert ran.returncode == 0, ran.stdout
