"""Runs of pytest in forks of a warm interpreter, ended with everything that they have started."""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
import types
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from _pytest.main import pytest_runtestloop

HEAVY = (
    *("torch", "torch._dynamo", "numpy", "hypothesis.extra.numpy", "schemathesis.pytest.plugin", "xdist.plugin"),
    *("anyio.pytest_plugin", "requests", "pydantic", "fastapi", "openai", "httpx2", "av", "transformers", "soundfile"),
    *(
        "safetensors.torch",
        "cattrs.preconf.json",
        "prometheus_client",
        "click",
        "ruamel.yaml",
        "soxr",
        "msgpack",
        "zmq",
    ),
    *("uvicorn", "websockets"),
)
"""Imported once, before the runs are forked."""
MARK = "OMNI_MUTANT_RUN"
"""The variable by which the processes of a run are found."""


class Run(NamedTuple):
    """The result of a run.

    Attributes:
        started: ids of tests that ran, in their order.
        failed: ids of tests that failed, or of files that could not be collected.
        late: whether the run was ended; what failed is then the test that was running too.
        functions: by test, the functions that it called, as ``path:qualified name``, if they were watched.
        seconds: by test, how long it took, likewise.
    """

    started: list[str]
    failed: list[str]
    late: bool
    functions: dict[str, list[str]]
    seconds: dict[str, float]


class Notes:
    """A plugin of pytest that writes what happens to a file, line by line, since the process may be ended."""

    def __init__(self, file: int, wanted: list[str], done: set[str], folders: list[str] | None) -> None:
        self._file, self.wanted, self._done, self._folders = file, wanted, done, folders
        self._seen: set[Any] = set()

    def note(self, *what: Any) -> None:
        os.write(self._file, (json.dumps(what) + "\n").encode())

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out what was not asked for; an id that there is no longer is no error."""
        chosen = [item for item in items if any(is_of(item.nodeid, each) for each in self.wanted)]
        items[:] = [item for item in chosen if item.nodeid not in self._done]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[Any]:
        self.note("started", item.nodeid)
        began = time.monotonic()
        if self._folders is None:
            return (yield)
        self._seen = set()
        threading.setprofile(self._called)
        sys.setprofile(self._called)
        try:
            return (yield)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
            own = [each for each in self._seen if each.co_filename.startswith(tuple(self._folders))]
            names = {f"{os.path.relpath(each.co_filename)}:{each.co_qualname}" for each in own}
            self.note("reached", item.nodeid, sorted(names), time.monotonic() - began)

    def _called(self, frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            self._seen.add(frame.f_code)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.note("failed", report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.note("failed", report.nodeid)


def is_of(test: str, wanted: str) -> bool:
    """Return whether a test is the wanted one, one of its cases, or in that class, file or folder."""
    return test.startswith(wanted) and test[len(wanted) :][:1] in ("", "[", ":", "/")


def functions_of(root: str) -> dict[tuple[str, str], list[types.FunctionType]]:
    """Return the functions of imported modules below a folder, by file and qualified name."""
    found: dict[tuple[str, str], list[types.FunctionType]] = {}
    for each in gc.get_objects():
        if type(each) is types.FunctionType and each.__code__.co_filename.startswith(root):
            found.setdefault((each.__code__.co_filename, each.__code__.co_qualname), []).append(each)
    return found


class Runner:
    """Runs tests of a copy of the tree.

    Args:
        root: the copy. folders: those in it from which packages are imported.
    """

    def __init__(self, root: Path, folders: list[Path]) -> None:
        self._root, self._folders = root, [str(each) for each in folders]
        self._changes = time.time_ns() // 10**9 - 10**8
        self._session: pytest.Session | None = None
        self._functions: dict[tuple[str, str], list[types.FunctionType]] = {}
        inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        sys.path[:] = [each for each in sys.path if each not in inherited]
        os.environ |= {
            "PYTHONPATH": os.pathsep.join(self._folders),
            "OMP_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        for name in HEAVY:
            try:
                importlib.import_module(name)
            except ImportError:
                continue
        sys.path[:0] = self._folders

    def collected(self, tests: list[str], work: Callable[[], int]) -> int:
        """Collect tests once, and return what ``work`` does, whose runs are forks in which they are collected."""
        results = list[int]()

        class Loop:
            @staticmethod
            def pytest_runtestloop(session: pytest.Session) -> bool:
                self._session, self._functions = session, functions_of(str(self._root))
                gc.freeze()  # or every fork would copy what its collector looks at
                results.append(work())
                return True

        os.chdir(self._root)
        found = [each for each in tests if os.path.exists(each)]
        pytest.main(
            ["-qqs", "-p", "no:cacheprovider", "--no-summary", f"--rootdir={self._root}", *found], plugins=[Loop()]
        )
        return results[0] if results else 1  # interrupted

    def write(self, path: Path, source: str) -> None:
        """Write a module with a time that no earlier version had, or bytecode of that would be used."""
        path.write_text(source)
        self._changes += 1
        os.utime(path, (self._changes, self._changes))

    def run(
        self,
        tests: Iterable[str],
        limit: float,
        *,
        most: int = 3,
        done: Iterable[str] = (),
        changed: tuple[Path, str] | None = None,
        fresh: bool = False,
        watch: bool = False,
    ) -> Run:
        """Run tests in a fork.

        Args:
            tests: ids, files or folders.
            limit: seconds after which it is ended.
            most: failures after which it ends.
            done: ids of tests that are left out.
            changed: a module and the function of it that its file has in another form.
            fresh: import and collect anew.
            watch: note which functions each test calls.
        """
        temporary = tempfile.mkdtemp(prefix="m", dir="/tmp")
        with tempfile.TemporaryFile() as file:
            notes = Notes(file.fileno(), [*tests], {*done}, self._folders if watch else None)
            child = os.fork()
            if child == 0:
                self._be_child(notes, most, temporary, changed, fresh)
            ended = os.pidfd_open(child)
            late = not select.select([ended], [], [], limit)[0]
            os.close(ended)
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            end_marked(temporary)
            file.seek(0)
            lines = [json.loads(each) for each in file.read().decode().splitlines()]
        shutil.rmtree(temporary, ignore_errors=True)
        if ["unpatched"] in lines:
            return self.run(tests, limit, most=most, done=done, fresh=True)
        started, failed = ([line[1] for line in lines if line[0] == kind] for kind in ("started", "failed"))
        reached = [line[1:] for line in lines if line[0] == "reached"]
        functions, seconds = {each[0]: each[1] for each in reached}, {each[0]: each[2] for each in reached}
        return Run(started, list(dict.fromkeys([*failed, *(started[-1:] if late else [])])), late, functions, seconds)

    def _be_child(self, notes: Notes, most: int, temporary: str, changed: tuple[Path, str] | None, fresh: bool) -> None:
        try:
            os.setsid()
            os.chdir(self._root)
            os.environ |= {MARK: temporary, "TMPDIR": temporary}
            tempfile.tempdir = None
            output = os.open(self._root / "output.txt", os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(output, 1)
            os.dup2(output, 2)
            if self._session is None or fresh:
                named = dict.fromkeys(each.partition("::")[0] for each in notes.wanted)
                files = [each for each in named if os.path.exists(each)]
                options = ["-q", "-p", "no:cacheprovider", f"--maxfail={most}", f"--rootdir={self._root}"]
                if files:
                    self._forget()
                    pytest.main([*options, *files], plugins=[notes])
            elif changed is not None and not self._patch(*changed):
                notes.note("unpatched")
            else:
                self._session.config.option.maxfail = most
                self._session.config.option.continue_on_collection_errors = True
                self._session.config.pluginmanager.register(notes)
                notes.pytest_collection_modifyitems(self._session.items)
                pytest_runtestloop(self._session)
            sys.stdout.flush()
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(0)

    def _patch(self, path: Path, function: str) -> bool:
        """Give a function that has been imported the code that its file has now; return whether that was possible."""
        outer, codes = function.partition(".<locals>")[0], [compile(path.read_text(), str(path), "exec")]
        for code in codes:  # grows on the way
            codes += [each for each in code.co_consts if isinstance(each, types.CodeType)]
        named = [each for each in codes if each.co_qualname == outer]
        if len(named) != 1:  # such as those of a property
            return False
        try:
            for each in self._functions.get((str(path), outer), ()):
                each.__code__ = named[0]
        except ValueError:  # it has other free variables
            return False
        return True

    def _forget(self) -> None:
        """Remove what was imported from the copy."""
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None) or "").startswith(str(self._root)):
                del sys.modules[name]


def end_marked(mark: str) -> None:
    """End the processes that a run has left behind."""
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and f"{MARK}={mark}".encode() in (folder / "environ").read_bytes():
                os.kill(int(folder.name), signal.SIGKILL)
        except OSError:
            continue
