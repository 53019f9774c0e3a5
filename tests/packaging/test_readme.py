"""README's second screen works as written: the command serves the demo, and the client's program prints and saves what it says."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import time
import wave
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

README = (Path(__file__).parents[2] / "README.md").read_text()
ADDRESS = "http://127.0.0.1:8000"
_, SERVE, *_ = re.split(r"^## ", README.partition("## Try it")[2], flags=re.MULTILINE)


def blocks(language: str) -> list[str]:
    """The code of the section about serving."""
    return re.findall(rf"^```{language}\n(.*?)^```", SERVE, re.DOTALL | re.MULTILINE)


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Start what the command of the page serves, on a port that is free."""
    (commands,) = blocks("bash")
    (serve,) = [line for line in commands.splitlines() if line.startswith("omni ")]
    words = shlex.split(serve, comments=True)
    assert words == ["omni", "serve", "demo"]
    assert f"{ADDRESS}/v1" in serve
    log = tmp_path / "log"
    with log.open("w") as output:
        command = [sys.executable, "-m", "omni_core.cli", *words[1:], "--port", "0"]
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        while not (found := re.findall(r"^Serving demo at (\S+)/v1$", log.read_text(), re.MULTILINE)):
            assert process.poll() is None, log.read_text()
            time.sleep(0.05)
        yield found[0]
        process.terminate()
        assert process.wait(20) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()


@pytest.mark.timeout(120)
def test_the_demo_is_served_and_speaks_to_openais_client(address: str, tmp_path: Path) -> None:
    client, direct = blocks("python")
    program = client.replace(ADDRESS, address)
    assert program != client
    for code, file, printed in (
        (program, "name.wav", re.findall(r"print\(.*\)  # (.*)", client)),
        (direct, "reply.wav", []),
    ):
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == printed
        with wave.open(str(tmp_path / file)) as sound:
            samples = np.frombuffer(sound.readframes(sound.getnframes()), "<i2")
            assert 0.8 < len(samples) / sound.getframerate() < 4
        assert np.abs(samples).max() > 3000
