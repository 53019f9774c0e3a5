"""The session that CI runs: every list of sessions runs to its end, and a failure of any of them fails it."""

from __future__ import annotations

import os
import re
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


TESTS = """
import sys
from pathlib import Path

import nox

from nox_tests import beside, run_tests


@nox.session(venv_backend="venv", venv_params=["--without-pip"])
def tests(session):
    environment = {{"PYTHONPATH": {packages!r}, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}}
    try:
        with beside(session, "test_idle.py", env=environment):
            run_tests(session, "test_timed.py", env=environment)
    finally:
        session.run("sh", "-c", "echo end >> ran.txt", external=True)
"""

CASE = """
from pathlib import Path


def test_{name}():
    ran = Path("ran.txt")
    ran.open("a").write("{name}\\n")
    assert ran.read_text().split().count("{name}") > {failures}
"""


@pytest.mark.parametrize("slow", ["idle", "timed"])
@pytest.mark.parametrize("failures", [0, 1, 2], ids=["pass", "fail once", "fail twice"])
def test_tests_run_beside_others_and_once_more_if_they_fail(tmp_path: Path, slow: str, failures: int) -> None:
    """``slow`` are those that fail so often; the others pass, and all run whatever happens."""
    packages = os.pathsep.join(path for path in sys.path if path.endswith("site-packages"))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")  # not the project's, above a folder of temporary files inside it
    (tmp_path / "noxfile.py").write_text(TESTS.format(root=str(ROOT), packages=packages))
    for name in ("idle", "timed"):
        (tmp_path / f"test_{name}.py").write_text(CASE.format(name=name, failures=failures if name == slow else 0))
    done = subprocess.run(
        [sys.executable, "-m", "nox", "-s", "tests"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    said = done.stdout + done.stderr
    assert (done.returncode != 0) == (failures == 2), said
    ran = (tmp_path / "ran.txt").read_text().split()
    assert ran.count(slow) == min(failures, 1) + 1
    assert len(ran) == ran.count(slow) + 2
    assert ran[-1] == "end"
    found = re.search(rf"passed in the second run only: \S*test_{slow}\.py::test_{slow}\s", said)
    assert (found is not None) == (failures == 1)
    assert "test_idle.py" in said, "the output of those that ran beside others is shown"
