"""The session that CI runs: every list of sessions runs to its end, and a failure of any of them fails it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("nox")

ROOT = Path(__file__).parents[2]

NOXFILE = """
import sys
from pathlib import Path

import nox

sys.path.insert(0, {root!r})

from nox_lanes import WHEELS, run_lanes, run_sessions

BAD = {bad!r}


def note(session):
    with open("begun.txt", "a") as file:
        file.write(session.name + "\\n")
    session.run("sh", "-c", f"echo {{session.name}} >> ran.txt", external=True)
    if session.name == BAD:
        session.error("bad")


@nox.session(python=False)
def ci(session):
    run_sessions(session, "build")
    run_lanes(session, ("a", "b"), ("c", "d"), then=("last",))


@nox.session(python=False)
def build(session):
    note(session)


for name in "a", "b", "c", "d", "last":
    nox.session(python=False, requires=WHEELS, name=name)(lambda session: note(session))
"""


def run(folder: Path, session: str, bad: str | None) -> tuple[int, list[str], str]:
    (folder / "noxfile.py").write_text(NOXFILE.format(root=str(ROOT), bad=bad))
    kept = {name: value for name, value in os.environ.items() if name not in ("OMNI_WHEELS", "NOXSESSION")}
    command = [sys.executable, "-m", "nox", "-s", session]
    done = subprocess.run(command, cwd=folder, env=kept, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, (folder / "ran.txt").read_text().split(), done.stdout + done.stderr


@pytest.mark.parametrize("bad", [None, "a", "d", "last"])
def test_all_sessions_run_and_one_that_fails_fails_all(tmp_path: Path, bad: str | None) -> None:
    code, ran, said = run(tmp_path, "ci", bad)
    assert (code != 0) == (bad is not None), said
    assert ran[0] == "build"
    assert ran[-1] == "last"
    assert sorted(ran[1:-1]) == ["a", "b", "c", "d"], "each once, after wheels that were built once"
    assert ran.index("a") < ran.index("b")
    assert ran.index("c") < ran.index("d")
    assert (tmp_path / "begun.txt").read_text().split().count("last") == 2, "once only to make its environment"
    for name in ("a", "b", "c", "d", "last"):
        assert (f"Session {name} was successful" in said) == (name != bad)


def test_nothing_runs_without_wheels(tmp_path: Path) -> None:
    code, ran, _ = run(tmp_path, "ci", "build")
    assert code != 0
    assert ran == ["build"]


def test_a_session_by_name_builds_the_wheels_first(tmp_path: Path) -> None:
    code, ran, _ = run(tmp_path, "b", None)
    assert code == 0
    assert ran == ["build", "b"]
