"""The commands of docs/serving.md do what the page says."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import av
from omni_serve_clients import SECRET

PAGE = Path(__file__).parents[2] / "docs" / "serving.md"


def test_the_curl_lines_work(demo: str, tmp_path: Path) -> None:
    blocks = re.findall(r"^```bash\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    scripts = [block for block in blocks if "127.0.0.1:8000" in block]
    assert sum(script.count("curl ") for script in scripts) >= 8
    outputs = []
    for script in scripts:
        script = script.replace("http://127.0.0.1:8000/v1", demo).replace(
            "http://127.0.0.1:8000", demo.removesuffix("/v1")
        )
        for command in re.split(r"\n(?=curl)", script.strip()):
            command = command.replace("curl ", "curl --fail-with-body ", 1)
            environment = {**os.environ, "OMNI_API_KEY": SECRET}
            done = subprocess.run(
                ["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
            )
            assert done.returncode == 0, (command, done.stdout, done.stderr)
            outputs.append(done.stdout)
    assert json.loads(outputs[0])["choices"][0]["message"]["content"] == "Hello, nice to meet you."
    assert outputs[1].endswith("data: [DONE]\n\n")
    for name in ("hello.mp3", "hello.wav"):
        with av.open(str(tmp_path / name)) as file:
            assert sum(frame.samples for frame in file.decode(audio=0)) > 10_000
    assert "omni_audio_ttfa_seconds_count" in outputs[-1]
    assert json.loads(outputs[-2]) == {"status": "ready"}
