"""``omni plugins check --full``: the suites of what is installed, from the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PLUGIN = """
from omni_core.hookspecs import Component, hookimpl

@hookimpl
def omni_payload_projections():
    return [
        Component("right", "mine:right", "keeps the number", conformance="mine_suites:Right"),
        Component("also", "mine:right", "the same suite", conformance="mine_suites:Right"),
        Component("wrong", "mine:wrong", "changes its input", conformance="mine_suites:Wrong"),
        Component("lost", "mine:right", "its suite is not there", conformance="mine_suites:NoSuch"),
        Component("bare", "mine:right", "it names no suite"),
        Component("misspelt", "mine:rihgt", "its target is not there", conformance="mine_suites:Right"),
        Component("unimportable", "mine_broken:right", "its target raises", conformance="mine_suites:Broken"),
        Component("away", "mine:right", "cannot work here", requires=("no_such_module",), conformance="mine_suites:Away"),
    ]
"""
SOUND = """
from omni_core.hookspecs import Component, hookimpl

@hookimpl
def omni_payload_projections():
    return [Component("sound", "mine:right", "keeps the number", conformance="mine_suites:Right")]
"""
FUNCTIONS = """
def right(payload):
    return {"n": payload.data["n"]}

def wrong(payload):
    return {"n": payload.data.pop("n")}
"""
BROKEN = """
right = None
raise SystemExit("it ends here")
"""
SUITES = """
from omni_testing import ProjectionConformance

class Right(ProjectionConformance):
    projection = "mine:right"

    def payloads(self):
        return [{"n": 1}]

class Wrong(Right):
    projection = "mine:wrong"

class Broken(Right):
    projection = "mine_broken:right"
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    for name, source in {
        "mine_plugin": PLUGIN,
        "mine": FUNCTIONS,
        "mine_suites": SUITES,
        "mine_broken": BROKEN,
    }.items():
        (tmp_path / f"{name}.py").write_text(source)
    (tmp_path / "sound_plugin.py").write_text(SOUND)
    info = tmp_path / "mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[omni]\nmine = mine_plugin [payload-projections-1]\nsound = sound_plugin [payload-projections-1]\n"
    )
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}


def check(environment: dict[str, str], *arguments: str, before: str = "") -> subprocess.CompletedProcess[str]:
    code = f"import sys\n{before}\nfrom omni_core.cli import main\nmain(['plugins', 'check', *sys.argv[1:]])"
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_each_component_gets_a_line_and_failures_a_reason(environment: dict[str, str]) -> None:
    done = check(environment, "--full", "mine", "mine")  # whoever names it twice is answered once
    lines = done.stdout.splitlines()

    def of(about: str) -> list[str]:
        found = [line for line in lines if line.startswith(("ok  ", "no  ")) and f"{about} (mine): " in line]
        return [f"{line.split()[0]} {line.partition('(mine): ')[2].rpartition(' (')[0]}" for line in found]

    assert done.returncode == 1, done.stdout + done.stderr
    assert of("projection right") == ["ok 4 passed"]
    assert of("projection also") == []  # once is enough
    assert of("projection wrong") == ["no 2 passed, 2 FAILED"]
    assert of("projection lost")[-1] == "no 1 FAILED"
    assert of("projection away")[-1] == "ok 1 skipped: module 'no_such_module' is not installed"
    assert of("projection misspelt")[-1] == of("projection unimportable")[-1] == "no 1 FAILED"
    assert of("plugin mine") == ["no 7 passed, 1 FAILED"]  # its targets do not resolve
    assert any(line.startswith("-") and "projection bare" in line for line in lines)
    assert "test_it_leaves_its_input_as_it_is" in done.stdout
    assert "which other stages get too" in done.stdout
    assert "its conformance 'mine_suites:NoSuch': module 'mine_suites' has no attribute 'NoSuch'" in done.stdout
    reported = done.stdout[done.stdout.index("projection misspelt (mine): test_it_can_be_tested") :].splitlines()[1]
    assert "its target 'mine:rihgt': module 'mine' has no attribute 'rihgt'; did you mean 'right'?" in reported
    reported = done.stdout[done.stdout.index("projection unimportable (mine): test_it_can_be_tested") :].splitlines()[1]
    assert reported == "its target 'mine_broken:right' cannot be imported: SystemExit: it ends here"


def test_what_is_right_exits_with_0(environment: dict[str, str]) -> None:
    done = check(environment, "--full", "sound")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ok  projection sound (mine): 4 passed" in done.stdout
    assert "right" not in done.stdout


@pytest.mark.parametrize("missing", ["pytest", "omni_testing"])
def test_without_its_distribution_it_says_what_to_install(environment: dict[str, str], missing: str) -> None:
    done = check(environment, "--full", "mine", before=f"sys.modules[{missing!r}] = None")
    assert done.returncode == 1
    assert "this needs omni-testing: pip install omni-testing" in done.stderr
    assert "Traceback" not in done.stderr


def test_new_without_its_distribution_says_what_to_install(tmp_path: Path) -> None:
    code = "import sys; sys.modules['omni_testing'] = None; from omni_core.cli import main; main()"
    command = [sys.executable, "-c", code, "plugins", "new", "omni-mine", "--kind", "relay"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr == "Error: this needs omni-testing: pip install omni-testing\n"
    for others in (["list"], ["--help"]):
        shown = subprocess.run(
            [*command[:3], "plugins", *others], capture_output=True, text=True, timeout=60, check=False
        )
        assert shown.returncode == 0, shown.stderr


def test_the_suites_say_that_they_need_pytest() -> None:
    code = "import sys; sys.modules['pytest'] = None; from omni_testing import RelayConformance"
    imported = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert "ImportError: the conformance suites need pytest" in imported.stderr


def test_an_unknown_name_is_an_error_that_lists_the_known(environment: dict[str, str]) -> None:
    done = check(environment, "--full", "no-such")
    assert done.returncode == 1
    assert "no plugin is called 'no-such'; installed are:" in done.stderr
