"""Trials that are probably needed next, simulated by other processes meanwhile.

A search asks for one trial after another, and each depends on what the one before has shown. What it asks next is mostly one of two things,
so both are begun while the first is simulated, the likelier one first. While another process simulates what is asked for, this one
simulates what is likeliest after that. What was begun in vain is thrown away: the plan is the same with any number of processes.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from functools import cache
from itertools import chain, repeat
from multiprocessing import active_children, get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Any, TypeVar

from attrs import define, field, frozen

from omni_core.config.schema import PipelineConfig
from omni_planner.children import end_with_parent
from omni_planner.estimate import portable
from omni_planner.objectives import Objectives
from omni_planner.profile import Hardware, PipelineProfile
from omni_planner.trials import Load, Settings, Trial, attempt

WORTH = 1.0
"""Seconds of a trial from which processes are started, which takes some three seconds each."""

TOKEN = 3e-5
"""Seconds that a trial takes for each token of its requests, about."""

MOST = 8
"""Processes that simulate at once, at most: each has some 300 MB, and no search expects more trials than that."""

T = TypeVar("T")


@frozen
class Attempt:
    """Arguments of :func:`omni_planner.trials.attempt`, all but the profile and the objectives."""

    config: PipelineConfig
    settings: Settings
    load: Load
    cost: int
    gpus: Sequence[int] = ()
    cores: int | None = None

    def seconds(self, profile: PipelineProfile) -> float:
        """Return how long it will take, about, by the tokens of its requests."""
        total = sum(self.load.mix.values())
        tokens = sum(
            weight / total * visit.outputs / len(profile.kinds[kind])
            for kind, weight in self.load.mix.items()
            for sample in profile.kinds.get(kind, ())
            for visit in sample.values()
        )
        return (self.load.total + 2 * self.load.around) * tokens * TOKEN

    def made(self, profile: PipelineProfile, objectives: Objectives) -> Trial | str:
        """Simulate it; see :func:`omni_planner.trials.attempt`."""
        return attempt(
            self.config, self.settings, profile, self.load, objectives, self.cost, gpus=self.gpus, cores=self.cores
        )


@define
class Ahead:
    """Makes the trials of a search, those that it will probably ask for in other processes. A context: its end is that of the processes.

    Attributes:
        processes: that simulate at once, this one included.
    """

    profile: PipelineProfile
    objectives: Objectives
    processes: int = field(factory=lambda: min(MOST, Hardware.here().cores))
    _begun: list[tuple[Attempt, Future[Trial | str]]] = field(factory=list)
    _next: Attempt | None = None
    _longest: float = 0.0
    _pool: ProcessPoolExecutor | None = None
    _given: Path | None = None
    _file: Any = None
    _workers: set[BaseProcess] = field(factory=set)

    def __enter__(self) -> Ahead:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the processes, whatever they simulate."""
        self._begun.clear()
        if self._file is not None:
            self._file.close()
            self._given = self._file = None
        if self._pool is None:
            return
        self._pool.shutdown(wait=False, cancel_futures=True)
        for worker in self._workers:
            worker.terminate()
        self._workers.clear()
        self._pool = None

    def trial(self, wanted: Attempt) -> Trial | str:
        """Return the trial, or why it cannot be made: what another process has begun, or else simulated here."""
        for each in self._begun:
            if each[0] == wanted:
                self._begun.remove(each)
                if not each[1].done():
                    self._make_next()
                try:
                    return each[1].result()
                except Exception:  # a process was killed, for its memory perhaps, or could not be told; an error of the trial comes again
                    self.processes = 1
                    break
        if self._next == wanted:
            self._next = None
        if self._pool is None and self.processes > 1 and wanted.seconds(self.profile) >= WORTH:
            self._start()
        began = perf_counter()
        made = wanted.made(self.profile, self.objectives)
        self._longest = max(self._longest, perf_counter() - began)
        return made

    def has_begun(self, wanted: Attempt) -> bool:
        """Return whether another process simulates a trial, or has done so."""
        return any(wanted == begun for begun, _ in self._begun)

    def expect(self, probable: Iterable[Attempt], unlikely: Iterable[Attempt] = (), waiting: int = 0) -> None:
        """Begin trials that will probably be asked for, the likeliest first, as many as there are processes without work.

        Args:
            unlikely: those that are asked for otherwise. This process simulates none of them while it waits for another one.
            waiting: of the first so many, one may be begun as soon as a process is free, whether it is asked for by then or not.
        """
        self._next = None
        if self.processes < 2 or (self._pool is None and self._longest < WORTH):
            return
        each_likely = chain(zip(probable, repeat(True)), zip(unlikely, repeat(False)))
        for number, (each, is_likely) in enumerate(each_likely):
            if not self.has_begun(each):
                if sum(not future.done() for _, future in self._begun) >= self.processes - (number >= waiting):
                    self._next = each if is_likely else None
                    return
                try:
                    self._begun.append((each, self._submit(_made, self._sent(), each)))
                except Exception:  # no process can be started, or a process was killed; what an author says of a pipeline may not be sent
                    self.processes = 1
                    return

    def _make_next(self) -> None:
        """Simulate the likeliest trial that is not begun yet, while another process simulates what is asked for."""
        wanted, self._next = self._next, None
        if wanted is None:
            return
        made: Future[Trial | str] = Future()
        try:
            made.set_result(wanted.made(self.profile, self.objectives))
        except Exception:  # it comes again if this is asked for
            return
        self._begun.append((wanted, made))

    def _start(self) -> None:
        """Start a process, so that it has made its imports by the time that the first trial is made."""
        try:
            self._submit(_ready, self._sent())
        except Exception:  # see `expect`
            self.processes = 1

    def _sent(self) -> Path:
        """Return a file with what every process needs. Raises an error if that cannot be written.

        It is what the pool itself would send, pickled, but not through a pipe: a process that is started with more than a pipe holds makes
        this one wait until it has made its imports, and where one ends with so much unread, Python before 3.11.5 waits for ever.
        """
        if self._given is None:
            given = pickle.dumps((portable(self.profile), self.objectives))
            if sys.platform == "linux":  # in memory, so that none is left by a search that is killed
                self._file = open(os.memfd_create("omni-plan"), "wb", buffering=0)  # noqa: SIM115 (closed at the end)
                self._given = Path(f"/proc/{os.getpid()}/fd/{self._file.fileno()}")
            else:
                self._file = tempfile.NamedTemporaryFile(prefix="omni-plan-", buffering=0)  # noqa: SIM115
                self._given = Path(self._file.name)
            self._file.write(given)
        return self._given

    def _submit(self, made: Callable[..., T], *arguments: Any) -> Future[T]:
        """Begin something in another process, which is started if all have work. Of Ctrl-C it hears nothing, from its start on."""
        before = set(active_children())
        masked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            if self._pool is None:
                self._pool = ProcessPoolExecutor(self.processes - 1, get_context("spawn"), end_with_parent)
            return self._pool.submit(made, *arguments)
        finally:
            self._workers |= set(active_children()) - before
            signal.pthread_sigmask(signal.SIG_SETMASK, masked)  # where Ctrl-C was pressed meanwhile, this raises it


@cache
def _given(sent: Path) -> tuple[PipelineProfile, Objectives]:
    """Return what was sent, read once in each process."""
    profile, objectives = pickle.loads(sent.read_bytes())
    return profile, objectives


def _ready(sent: Path) -> None:
    """Make what every trial needs: imports first of all."""
    _given(sent)


def _made(sent: Path, wanted: Attempt) -> Trial | str:
    return wanted.made(*_given(sent))
