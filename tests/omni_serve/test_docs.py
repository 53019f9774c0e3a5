"""The commands of docs/serving.md and docs/authentication.md, and the requests of other pages, do what the pages say."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import av
import pytest
from omni_serve_clients import SECRET

from omni_serve.auth import KeyRing

DOCS = Path(__file__).parents[2] / "docs"


def blocks(page: Path) -> list[str]:
    """Return a page's blocks of shell."""
    return re.findall(r"^```bash\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


BLOCKS = blocks(DOCS / "serving.md")
SCRIPTS = [block for block in BLOCKS if "127.0.0.1:8000" in block]
(KEYS,) = blocks(DOCS / "authentication.md")
(ADMIN,) = [block for block in BLOCKS if "--unix-socket" in block]


def test_every_command_is_run() -> None:
    """A new block needs a test."""
    others = [block for block in BLOCKS if block not in (*SCRIPTS, ADMIN)]
    assert others == [
        "pip install ./plugins/omni_serve       # in a checkout; when released: omni-serve\nomni serve demo\n"
    ]  # README's test runs that
    assert sum(script.count("curl ") for script in SCRIPTS) >= 8


def run(command: str, folder: Path) -> str:
    """Return what a line of shell prints."""
    environment = {**os.environ, "OMNI_API_KEY": SECRET, "KEY": SECRET}
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


def test_keys_are_made_as_written(tmp_path: Path) -> None:
    *add, serve = KEYS.strip().splitlines()
    for line in add:
        assert run(line.replace("omni ", f"{sys.executable} -m omni_core.cli ", 1), tmp_path).startswith("sk-omni-")
    (file,) = tmp_path.iterdir()
    assert serve == f"omni serve demo --keys {file.name}"
    alice, monitor = KeyRing.open(file).keys.values()
    assert (alice.limits.requests_per_minute, alice.limits.concurrent, alice.limits.share) == (60, 8, 2)
    assert monitor.scopes == ("metrics",)


def test_the_operators_socket(demo: str, demo_admin: Path, tmp_path: Path) -> None:
    serve, *asked = ADMIN.strip().splitlines()
    path = serve.split("--admin ")[1]
    for line in asked:
        assert path in line
        units = json.loads(run(line.replace(path, str(demo_admin)), tmp_path))["units"]
        assert all(unit["state"] == "ready" for unit in units.values())


def requests(script: str, demo: str, key: str = "") -> list[str]:
    """Return the requests of a block, sent to the demo, with an option for its key. They fail where the answer is an error."""
    script = script.replace("http://127.0.0.1:8000", demo.removesuffix("/v1")).strip()
    found = [command for command in re.split(r"\n(?=curl)", script) if "curl " in command]
    return [command[command.index("curl ") :].replace("curl ", f"curl --fail-with-body {key}", 1) for command in found]


OTHERS = {page.name: script for page in DOCS.glob("*.md") for script in blocks(page) if "curl " in script}
del OTHERS["serving.md"]


@pytest.mark.parametrize("page", OTHERS)
def test_the_requests_of_other_pages(demo: str, page: str, tmp_path: Path) -> None:
    key = "" if "Authorization" in OTHERS[page] else '-H "Authorization: Bearer $KEY" '
    for command in requests(OTHERS[page], demo, key):
        assert "error" not in json.loads(run(command, tmp_path))


def test_the_curl_lines_work(demo: str, tmp_path: Path) -> None:
    outputs: list[str] = []
    (tmp_path / "docs").symlink_to(DOCS)  # as in a checkout
    for script in SCRIPTS:
        outputs += [run(command, tmp_path) for command in requests(script, demo)]
    assert json.loads(outputs[0])["choices"][0]["message"]["content"] == "Hello, nice to meet you."
    assert outputs[1].endswith("data: [DONE]\n\n")
    with av.open(str(tmp_path / "hello.mp3")) as file:
        assert sum(frame.samples for frame in file.decode(audio=0)) > 10_000
    [shown] = re.findall(r'^# .*\{"text":"(.*)", \.\.\.', "".join(SCRIPTS), re.MULTILINE)
    assert json.loads(outputs[3])["text"] == shown
    assert "omni_audio_ttfa_seconds_count" in outputs[-1]
    assert json.loads(outputs[-2]) == {"status": "ready"}
