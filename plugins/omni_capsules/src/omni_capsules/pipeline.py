"""Capsules in the parent: which requests leave one, and the collection of their records from all processes."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import asdict, define, evolve, field

from omni_capsules.capsule import SUFFIX, Capsule, StageRecord, prune, record_of, write
from omni_capsules.messages import CapsuleReport, CapsuleRequest
from omni_capsules.options import Options
from omni_capsules.records import name_of, stored
from omni_capsules.worker import folder_of
from omni_core.config.requests import with_parts
from omni_core.control.lanes import Tasks
from omni_core.coordinator.requests import RequestState
from omni_core.errors import CodecError, ConfigError, InvalidRequestInStageError, OverloadedError, RequestFailedError
from omni_core.interface import SEED, Interface, Parameter
from omni_core.launch.running import Running
from omni_core.processes.family import MARK
from omni_core.protocol.messages import OmniRequest, StageSpan
from omni_core.protocol.specs import ProcessSpec

logger = logging.getLogger(__name__)

_ANSWER_SECONDS = 5.0
"""The time that a process has to send its records; then they are read from its folder, where that is on this machine."""

_MOST_AT_ONCE = 4
"""Capsules that are collected at once; requests that end meanwhile leave none, and are counted."""

_SECRETS = ("TOKEN", "KEY", "SECRET", "PASSWORD", "CREDENTIAL")


@define(eq=False)
class _Collection:
    """The answers that are waited for, and those that have come."""

    missing: set[str]
    done: asyncio.Future[None]
    reports: dict[str, CapsuleReport] = field(factory=dict)

    def take(self, report: CapsuleReport) -> None:
        self.reports[report.process] = report
        self.missing.discard(report.process)
        if not self.missing and not self.done.done():
            self.done.set_result(None)


class Capsules:
    """See :class:`omni_core.launch.running.RequestRecorder`. It sees requests as the coordinator's telemetry does, and hands on to that.

    Raises:
        ConfigError: a setting is wrong, or the folder cannot be made.
    """

    def __init__(self, running: Running) -> None:
        self._running = running
        self._options = Options.of(running.config.capsules)
        self._folder = Path(self._options.folder)
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"capsules.folder: {self._folder} cannot be made: {error.strerror}") from error
        self._inner, running.coordinator.telemetry = running.coordinator.telemetry, self
        running.observation.handlers[CapsuleReport] = self._take
        interface = running.config.interface
        self._interface = None if interface is None else with_parts(interface, running.config.stages, running.registry)
        self._begun: dict[str, tuple[float, int, OmniRequest]] = {}
        self._collections: dict[str, _Collection] = {}
        self._tasks = Tasks()
        self._skipped = 0
        self._is_closed = False

    # --- telemetry -----------------------------------------------------------------------------------------------------
    def begin(self, request_id: str, request: OmniRequest) -> OmniRequest:
        """A request was admitted. One that samples gets a seed if it has none: without, no stage could be run again."""
        if self._inner is not None:
            request = self._inner.begin(request_id, request)
        request = evolve(request, params=seeded(self._interface, request.params))
        self._begun[request_id] = (time.monotonic(), time.time_ns(), request.without_inputs())
        return request

    def stage(self, request_id: str, report: StageSpan) -> None:
        """Hand on the time of a stage."""
        if self._inner is not None:
            self._inner.stage(request_id, report)

    def end(self, request_id: str, state: str, error: BaseException | None) -> None:
        """Begin to collect, if the request has failed or was slow."""
        if self._inner is not None:
            self._inner.end(request_id, state, error)
        begun = self._begun.pop(request_id, None)
        if begun is None or self._is_closed:
            return
        since, wall, request = begun
        seconds = time.monotonic() - since
        reason = self._reason(state, error, seconds)
        if not reason:
            return
        if len(self._collections) >= _MOST_AT_ONCE:
            self._skipped += 1
            return
        capsule = Capsule(
            request_id=request_id,
            reason=reason,
            state=state,
            seconds=seconds,
            wall=wall,
            error=_error(error),
            request=self._asked(request),
            pipeline=self._running.config.resolved_name,
            options=asdict(self._options),
        )
        serving = self._serving()
        collection = _Collection(set(serving), asyncio.get_running_loop().create_future())
        self._collections[request_id] = collection
        for process in serving.values():
            self._running.control.tell(process.endpoint, CapsuleRequest(request_id))
        self._tasks.start(self._collect(capsule, collection))

    def _reason(self, state: str, error: BaseException | None, seconds: float) -> str:
        """Return why a request leaves a capsule; empty if it does not. A request that is itself at fault, or refused, leaves none."""
        if isinstance(error, OverloadedError):
            return ""
        at_fault = isinstance(error, InvalidRequestInStageError)
        if state == RequestState.FAILED.value and self._options.failed and not at_fault:
            return "failed"
        return "slow" if self._options.slow is not None and seconds >= self._options.slow else ""

    def _asked(self, request: OmniRequest) -> dict[str, Any]:
        """Return what a request asked for; of its metadata, which may hold anything, the values only where inputs are recorded."""
        metadata = request.metadata if self._options.inputs else dict.fromkeys(request.metadata, "...")
        names = ("params", "modalities", "stream", "timeout")
        return {**{name: getattr(request, name) for name in names}, "metadata": metadata}

    # --- collection ----------------------------------------------------------------------------------------------------
    async def close(self) -> None:
        """Write the capsules that are being collected, and no more."""
        self._is_closed = True
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=_ANSWER_SECONDS + 1.0)

    def _take(self, report: CapsuleReport) -> None:
        collection = self._collections.get(report.request_id)
        if collection is not None:
            collection.take(report)

    def _serving(self) -> dict[str, ProcessSpec]:
        units = [unit for unit in self._running.units.values() if unit.life.serves]
        return {each.spec.name: each.spec for unit in units for each in unit.processes if each.spec.rank == 0}

    async def _collect(self, capsule: Capsule, collection: _Collection) -> None:
        try:
            if collection.missing:
                await asyncio.wait([collection.done], timeout=_ANSWER_SECONDS)
            path = await asyncio.to_thread(self._write, capsule, collection.reports, self._specs())
        except Exception as error:
            logger.warning(
                "request %s (%s) left no capsule: %s: %s",
                capsule.request_id,
                capsule.reason,
                type(error).__name__,
                error,
            )
            return
        finally:
            del self._collections[capsule.request_id]
        skipped, self._skipped = self._skipped, 0
        more = f"; {skipped} further requests left none meanwhile" if skipped else ""
        how = f"was slow ({capsule.seconds:.1f} s)" if capsule.reason == "slow" else "failed"
        logger.warning("request %s %s: omni replay %s%s", capsule.request_id, how, path, more)

    def _specs(self) -> dict[str, tuple[ProcessSpec, int, str]]:
        """Return every process that reads for its stages, by name: its spec, its pid and its machine, as they are now."""
        found = {}
        for unit in self._running.units.values():
            for each in unit.processes or ():
                if each.spec.rank == 0:
                    found[each.spec.name] = (each.spec, each.pid, self._running.placing.address(each.spec.endpoint))
        return found

    def _write(
        self, capsule: Capsule, reports: Mapping[str, CapsuleReport], specs: Mapping[str, tuple[ProcessSpec, int, str]]
    ) -> Path:
        """Write the capsule of what processes have sent, and of what those that cannot have left on this machine."""
        records: list[StageRecord] = []
        missing: dict[str, str] = {}
        for name, (_, _, address) in specs.items():
            report = reports.get(name)
            if report is not None:
                found = report.records
            elif address.startswith("ipc://"):
                found = stored(folder_of(Path(address.removeprefix("ipc://"))), capsule.request_id)
                missing[name] = "did not answer; its records were read from its folder"
            else:
                found, missing[name] = [], "did not answer, and is on another machine"
            for data in found:
                try:
                    record = record_of(data)
                except CodecError as error:
                    missing[name] = str(error)
                    continue
                if record is not None:
                    records.append(record)
        order = {stage.name: place for place, stage in enumerate(self._running.config.stages)}
        records.sort(key=lambda each: (each.wall, order.get(each.stage, 0)))
        there = {record.process for record in records}
        capsule = evolve(
            capsule,
            stages=records,
            missing=missing,
            processes={name: _process(spec, self._options) for name, (spec, _, _) in specs.items() if name in there},
            environments={name: report.environment for name, report in reports.items() if name in there},
        )
        when = time.strftime("%Y%m%d-%H%M%S", time.gmtime(capsule.wall / 1e9))
        stem = f"{when}.{capsule.wall // 1000 % 1_000_000:06}-{capsule.reason}-{name_of(capsule.request_id)[:10]}-{secrets.token_hex(2)}"
        path = self._folder / f"{stem}{SUFFIX}"
        write(capsule, path, self._options.size)
        prune(self._folder, self._options.keep)
        return path


def seeded(interface: Interface | None, params: dict[str, Any]) -> dict[str, Any]:
    """Return parameters in which every group that has a seed has one, and so has the whole request if that takes one."""
    if interface is None:
        return params
    added = dict(params)
    for parameter in interface.params:
        if parameter.name == SEED and added.get(SEED) is None:
            added[SEED] = _seed(parameter)
    for group in interface.groups:
        for parameter in group.parameters:
            given = added.get(group.name, {})
            if parameter.name == SEED and given.get(SEED) is None:
                added[group.name] = {**given, SEED: _seed(parameter)}
    return added


def _seed(parameter: Parameter) -> int:
    most = 2**31 - 1 if parameter.maximum is None else min(int(parameter.maximum), 2**31 - 1)
    return secrets.randbelow(most + 1)


def _error(error: BaseException | None) -> dict[str, Any] | None:
    if error is None:
        return None
    if isinstance(error, RequestFailedError):
        return {"stage": error.stage, "error_type": error.error_type, "message": error.message}
    return {"stage": None, "error_type": type(error).__name__, "message": str(error)}


def _process(spec: ProcessSpec, options: Options) -> dict[str, Any]:
    """Return what a replay needs of a process's launch spec, as plain data."""
    return {
        "stages": [asdict(stage) for stage in spec.stages],
        "kernels": {operation: [asdict(each) for each in kernels] for operation, kernels in spec.kernels.items()},
        "env": _recorded({**spec.env, **spec.own_env}),
        "ranks": 1 + len(spec.followers),
        "gpu_memory": spec.gpu_memory,
    }


def _recorded(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without secrets, and without the mark of the run."""
    return {
        name: value
        for name, value in env.items()
        if name != MARK and not any(word in name.upper() for word in _SECRETS)
    }
