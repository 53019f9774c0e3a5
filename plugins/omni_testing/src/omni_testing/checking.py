"""Conformance suites from the command line: runs pytest in this process and prints a line for each component."""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from attrs import define, field

from omni_testing.installed import suites, untested

_FILE = """
from omni_testing.installed import suites
globals().update(suites({only!r}))
"""


@define
class Outcome:
    """Outcomes of the tests of one component or plugin."""

    about: str
    passed: int = 0
    skipped: dict[str, int] = field(factory=dict)
    failed: list[tuple[str, str]] = field(factory=list)
    seconds: float = 0.0

    def __str__(self) -> str:
        counts = [f"{self.passed} passed"] if self.passed else []
        counts += [f"{count} skipped: {reason}" for reason, count in self.skipped.items()]
        counts += [f"{len(self.failed)} FAILED"] if self.failed else []
        return f"{'no  ' if self.failed else 'ok  '}{self.about}: {', '.join(counts)} ({self.seconds:.1f} s)"


class _Listener:
    """A pytest plugin that groups reports by component, and prints a line when the component changes."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.outcomes: list[Outcome] = []
        self.trouble: list[str] = []
        self._say = say
        self._about: dict[str, str] = {}
        self._begin = time.monotonic()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            self._about[item.nodeid] = getattr(getattr(item, "cls", None), "about", item.name)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.trouble.append(report.longreprtext)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        about = self._about[report.nodeid]
        if not self.outcomes or self.outcomes[-1].about != about:
            self.finish()
            self.outcomes.append(Outcome(about))
        outcome = self.outcomes[-1]
        if report.failed:
            outcome.failed.append((report.nodeid.rpartition("::")[2], report.longreprtext))
        elif report.skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else "skipped"
            reason = reason.removeprefix("Skipped: ")
            outcome.skipped[reason] = outcome.skipped.get(reason, 0) + 1
        elif report.when == "call":
            outcome.passed += 1

    def finish(self) -> None:
        """Print the outcome of the last component."""
        if self.outcomes:
            now = time.monotonic()
            self.outcomes[-1].seconds = now - self._begin
            self._begin = now
            self._say(str(self.outcomes[-1]))


def check(only: str | None, say: Callable[[str], None]) -> bool:
    """Test everything that is installed, or one plugin; return whether all passed.

    Args:
        only: the plugin's name.
        say: called with each line for the user.

    Raises:
        PluginError: no plugin has that name.
    """
    if not suites(only):
        say("no plugin is installed")
        return True
    listener = _Listener(say)
    output = io.StringIO()
    with tempfile.TemporaryDirectory(prefix="omni-check-") as folder:
        path = Path(folder) / "test_installed.py"
        path.write_text(_FILE.format(only=only))
        options = ["-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", folder, "--import-mode=importlib"]
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(output):
            patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # what else is installed for pytest has no part in this
            code = pytest.main([str(path), *options], plugins=[listener])
    listener.finish()
    for about in untested(only):
        say(f"-   {about}: no suite; its plugin may name one in Component.conformance")
    for outcome in listener.outcomes:
        for test, text in outcome.failed:
            say(f"\n{outcome.about}: {test}\n{text}")
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        say("\n".join(listener.trouble) or output.getvalue())
    return code == pytest.ExitCode.OK
