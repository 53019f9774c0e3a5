"""Profiles of a running pipeline: asks its processes to record, and writes one trace of all of them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from omni_cli.tracing.recorder import ProfilePart, Recorder, clock_ahead, merge
from omni_core.api import ConfigError, OmniError, PipelineConfig, ProcessSpec, did_you_mean
from omni_core.runtime_api import (
    Answers,
    ControlPlane,
    Coordinator,
    ProfileMessage,
    ProfileReport,
    ProfileSummary,
    Supervisor,
)

logger = logging.getLogger(__name__)

_PROFILE_SECONDS = 60.0
"""The time that a process has to begin a profile (torch's own takes a while) or to write one."""


class PipelineProfile:
    """Records in all processes of a pipeline, and in its coordinator. Called on its event loop.

    Args:
        units: its units by name, as they are now.
        machine_of: the number of the machine of the process at an endpoint; 0: this one.
    """

    def __init__(
        self,
        config: PipelineConfig,
        machine_of: Callable[[str], int],
        units: Mapping[str, Supervisor],
        coordinator: Coordinator,
        control: ControlPlane,
    ) -> None:
        self._config, self._machine_of, self._units = config, machine_of, units
        self._coordinator, self._control = coordinator, control
        self._reports: Answers[ProfileReport] = Answers()
        self._asked: dict[str, int] = {}
        self._clocks: dict[str, int] = {}
        self._recorder: Recorder | None = None
        self._is_profiling = False

    async def start(self, torch: Sequence[str] = ()) -> None:
        """Record in every process from now on. ``torch``: stages in whose processes torch's own profiler runs too.

        Raises:
            ConfigError: no such stage. OmniError: a profile is running already.
        """
        stages = [stage.name for stage in self._config.stages]
        unknown = [name for name in torch if name not in stages]
        if unknown:
            raise ConfigError(f"torch: no stage is called {unknown[0]!r}{did_you_mean(unknown[0], stages)}")
        if self._is_profiling:
            raise OmniError("a profile is running already; stop it first")
        self._is_profiling = True
        try:
            await self._ask(ProfileMessage(start=True, torch=list(torch)))
        except BaseException:
            self._is_profiling = False
            raise
        self._recorder = self._coordinator.recorder = Recorder("client")

    async def stop(self, path: str | Path) -> ProfileSummary:
        """Stop recording, and write one trace of all processes to ``path``.

        Raises:
            OmniError: no profile is running, or ``path`` cannot be written.
        """
        recorder, self._recorder, self._coordinator.recorder = self._recorder, None, None
        if recorder is None:
            raise OmniError("no profile is running; start one first")
        try:
            reports, missing = await self._ask(ProfileMessage(start=False))
            parts = [self._part(report) for report in reports if report.events]
            try:
                count = await asyncio.to_thread(merge, parts, recorder.finish(), Path(path))
            except OSError as error:
                raise OmniError(f"the trace cannot be written to {path}: {error.strerror}") from error
        finally:
            self._is_profiling = False
        return ProfileSummary(count, recorder.dropped + sum(report.dropped for report in reports), missing)

    def take(self, report: ProfileReport) -> None:
        """Take the report of a process."""
        if report.clock is not None:
            asked = self._asked.get(report.process, 0)
            self._clocks[report.process] = clock_ahead(asked, report.clock, time.monotonic_ns())
        self._reports.take(report.process, report)

    def _part(self, report: ProfileReport) -> ProfilePart:
        processes = [each for unit in self._units.values() for each in unit.spec.processes]
        endpoint = next((each.endpoint for each in processes if each.name == report.process), None)
        machine = 0 if endpoint is None else self._machine_of(endpoint)  # it may have left since
        return ProfilePart(report.events, machine, self._clocks.get(report.process, 0))

    async def _ask(self, message: ProfileMessage) -> tuple[list[ProfileReport], list[str]]:
        """Send a message to every process that serves; the reports, and the names of processes with a problem or no answer."""
        serving = [process for unit in self._units.values() if unit.life.serves for process in unit.spec.processes]
        questions = {each.name: self._question(each, message) for each in serving}
        reports = await self._reports.ask(questions, _PROFILE_SECONDS)
        problems = {name: "no answer" for name in questions if name not in reports}
        problems |= {name: report.problem for name, report in reports.items() if report.problem}
        for name, problem in problems.items():
            logger.warning("profile of %s: %s", name, problem)
        return list(reports.values()), list(problems)

    def _question(self, process: ProcessSpec, message: ProfileMessage) -> Callable[[], None]:
        def ask() -> None:
            self._asked[process.name] = time.monotonic_ns()
            self._control.tell(process.endpoint, message)

        return ask
