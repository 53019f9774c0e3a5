"""A launcher and the processes that it has started, used by :class:`omni_testing.LauncherConformance`: a runner without supervision."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import pytest

from omni_core.api import Launcher, Need, OmniRequest, ProcessSpec, StagePayload, SupervisedProcess
from omni_core.runtime_api import (
    CompleteMessage,
    ControlPlane,
    Placing,
    ReadyMessage,
    StageSpec,
    SubmitMessage,
    UnitSpec,
    coordinator_address,
    decode,
    encode,
    endpoint_of,
)

PATIENCE = 30.0
"""Seconds until something that must happen counts as not happening."""


def report(payload: StagePayload) -> dict[str, Any]:
    """The stage of the suite's processes: where it runs, and its variables."""
    return {"pid": os.getpid(), "environment": dict(os.environ)}


def speak() -> None:
    """Write a line and end the process, instead of building a stage."""
    print("my last words", file=sys.stderr, flush=True)
    os._exit(7)


class Run:
    """A launcher and the processes that it has started: the runner without its supervision.

    Args:
        variables: of each process.
    """

    def __init__(
        self, launcher: Launcher, run: str, needs: list[Need], variables: Mapping[str, str] | None = None
    ) -> None:
        self.launcher = launcher
        self._variables = dict(variables or {})
        self.ended: list[SupervisedProcess] = []
        self._run = run
        self._ready: set[tuple[str, int]] = set()
        self._results: dict[str, Any] = {}
        self._changed = asyncio.Event()
        self._needs = needs
        self.units = {need.unit: self._unit(need) for need in needs}
        self._processes: list[SupervisedProcess] = []
        self.control: ControlPlane | None = None

    async def acquire(self) -> None:
        """Let the launcher claim what the units need, and listen."""
        async with asyncio.timeout(PATIENCE):
            await self.launcher.acquire(self._needs)
        network, addresses = self.launcher.network(), {self._run: coordinator_address(self.launcher.here)}
        self.control = ControlPlane(self._run, self._on_message, addresses, network)
        self.control.listen()
        units, own = list(self.units.values()), network.address if network is not None else ""
        self.placing = Placing(self.launcher, self._run, units, own)

    def add(self, need: Need) -> None:
        """Take in one more unit, which the launcher has added."""
        self.units[need.unit] = self._unit(need)
        self.placing.add(self.units[need.unit])

    def _unit(self, need: Need) -> UnitSpec:
        stage = StageSpec(
            name=need.unit,
            factory="omni_testing.launcher_run:report",
            terminal=True,
            gpu=need.gpus[0] if need.gpus else None,
            injected={
                **{"stage_name": need.unit, "replica": 0, "tp_rank": 0, "tp_size": 1},
                "device": f"cuda:{need.gpus[0]}" if need.gpus else "cpu",
            },
        )
        endpoint = endpoint_of(self._run, need.unit)
        process = ProcessSpec(
            name=need.unit,
            stages=[stage],
            endpoint=endpoint,
            coordinator_endpoint=self._run,
            stage_endpoints={need.unit: {0: endpoint}},
            network=self.launcher.network_spec,
            own_env=self._variables,
        )
        return UnitSpec(name=need.unit, group=need.unit, processes=[process])

    def _on_message(self, message: Any) -> None:
        if isinstance(message, ReadyMessage):
            self._ready.add((message.process, message.pid))
        elif isinstance(message, CompleteMessage):
            self._results[message.request_id] = message.error or decode(message.body or b"\xc0")
        self._changed.set()

    async def until(self, condition: Callable[[], bool], what: str, seconds: float | None = None) -> None:
        """Wait until a condition is true, by default for :data:`PATIENCE`."""
        seconds = PATIENCE if seconds is None else seconds
        try:
            async with asyncio.timeout(seconds):
                while not condition():
                    self._changed.clear()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(0.05):
                            await self._changed.wait()
        except TimeoutError:
            pytest.fail(f"{what}: not within {seconds:g} s")

    async def start(self, unit: str) -> SupervisedProcess:
        """Place a unit, start its process, and wait until that is ready."""
        spec = self.units[unit]
        async with asyncio.timeout(PATIENCE):
            (process_spec,), launch = await self.placing.place(spec, len(self._processes))
        process = launch(process_spec, self.ended.append)
        self._processes.append(process)
        await self.until(
            lambda: process.launched.done() and ((unit, process.pid) in self._ready or not process.running),
            f"the process of {unit} is ready",
        )
        assert process.running, f"the process of {unit} has ended: {process.reason}{process.last_lines}"
        assert self.control is not None
        self.control.peer_is_up(spec.endpoint, self.placing.address(spec.endpoint))
        return process

    async def ask(self, unit: str) -> Any:
        """Send a request to the process of a unit, and return its answer."""
        request_id = f"{unit}-{len(self._results)}"
        body = encode(StagePayload(request_id, OmniRequest({}), None))
        assert self.control is not None
        self.control.send(self.units[unit].endpoint, SubmitMessage(request_id, unit, body, False))
        await self.until(lambda: request_id in self._results, f"the answer of {unit}")
        return self._results[request_id]

    async def close(self) -> None:
        """End every process, as a runner does, and release the launcher."""
        for process in self._processes:
            process.kill()
        try:
            async with asyncio.timeout(PATIENCE):
                await asyncio.gather(*(process.ended for process in self._processes))
        finally:
            await self.launcher.release()
            if self.control is not None:
                self.control.close()
