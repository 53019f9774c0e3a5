"""The plugin of docs/plugins.md, taken out of the page, installed, and run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "plugins.md"


def test_the_documented_plugin_answers(tmp_path: Path) -> None:
    files = re.findall(r"```python\n# (\S+)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert [name for name, _ in files] == ["omni_echo/plugin.py", "omni_echo/pipeline.py"]
    (tmp_path / "omni_echo").mkdir()
    for name, code in files:
        (tmp_path / name).write_text(code)
    info = tmp_path / "omni_echo-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: omni-echo\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[omni]\necho = omni_echo.plugin\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "omni_core.cli", "run", "echo", "--text", "hello there"]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout == "hello there\n"
