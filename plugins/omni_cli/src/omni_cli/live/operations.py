"""The operations on a running pipeline: one at a time, for the Python client and for commands, and those that go by themselves."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from omni_cli.live.autoscaler import Autoscaler
from omni_cli.live.changes import group_of, replaced, scaled
from omni_cli.live.units import OnStep, Units
from omni_core.api import OmniError, watched
from omni_core.runtime_api import (
    Change,
    OperationCancel,
    OperationDone,
    OperationRequest,
    OperationStep,
    Role,
    Running,
    is_interrupt,
    message_of,
    process_groups,
    replicated_group,
    traceback_of,
)

logger = logging.getLogger(__name__)

_CANCELLED = "cancelled: every unit that serves goes on, and one that was to end does so when its requests are over"


class BusyError(OmniError):
    """Another operation runs."""


class Operations:
    """See :class:`omni_core.launch.running.RunningOperations`.

    Raises:
        ConfigError: the ``autoscale`` of a stage is wrong.
    """

    def __init__(self, running: Running) -> None:
        self._running = running
        self._units = Units(running)
        self._going_on = ""
        self._since = 0.0
        self._asked: dict[str, asyncio.Future[None]] = {}
        self._autoscaler = Autoscaler(running, self.scale_soon)

    def begin(self) -> None:
        """There is work: look after the stages that scale by themselves. Costs nothing while that goes on."""
        self._autoscaler.begin()

    def close(self) -> None:
        """Begin no more steps: the runner ends all units."""
        self._autoscaler.close()
        for task in self._asked.values():
            task.cancel()
        self._units.close()

    async def replace(
        self,
        stage: str,
        settings: Mapping[str, Any] | None = None,
        on_step: OnStep | None = None,
        *,
        wait: bool = True,
    ) -> Change:
        """Replace every unit of a stage, one after another, with ``settings`` changed. The new config is that of the pipeline as soon as
        the first of them serves. With ``wait``, an old one has ended before the next is replaced.

        Cancelled before a new unit serves, it leaves the old one as it was; later, the old one still ends. Further units stay.

        Raises:
            ConfigError: a setting is wrong. StartupError: a new unit did not start, and the old one serves. OmniError: another operation
                runs.
        """
        say = _logged if on_step is None else _guarded(on_step)
        async with self._only(f"replace {stage}"):
            group, stages = group_of(self._running.config, stage)
            config = await asyncio.to_thread(replaced, self._running.config, stages, settings or {})
            self._choose(group)
            change = Change(group)
            for slot, old in sorted(self._units.serving(group).items()):
                new = await self._units.join(config, group, slot, say)
                self._running.config = config
                new.role = Role.SERVING
                leaving = self._units.leave(old, say)  # from now on, new requests are the new unit's
                change.started.append(new.spec.name)
                change.ended.append(old.spec.name)
                if wait:
                    await asyncio.shield(leaving)
            return change

    async def scale(
        self,
        stage: str,
        replicas: int,
        settings: Mapping[str, Any] | None = None,
        on_step: OnStep | None = None,
        *,
        wait: bool = True,
    ) -> Change:
        """Change the number of units of a stage. With ``wait``, it ends when those that are taken away have ended.

        Raises:
            ConfigError: the number or a setting is wrong. StartupError: a new unit did not start; those before it serve. OmniError: another
                operation runs.
        """
        say = _logged if on_step is None else _guarded(on_step)
        async with self._only(f"scale {stage} {replicas}"):
            before = self._running.config
            group, stages = group_of(before, stage)
            config = await asyncio.to_thread(scaled, before, stages, replicas, settings or {})
            self._choose(group)
            change, serving = Change(group), self._units.serving(group)
            for slot in [slot for slot in range(replicas) if slot not in serving]:
                new = await self._units.join(config, group, slot, say)
                new.role = Role.SERVING
                change.started.append(new.spec.name)
                now = group_of(config, stage)[1]
                self._running.config = await asyncio.to_thread(scaled, config, now, slot + 1, {})
            self._running.config = config
            leaving = [serving[slot] for slot in sorted(serving, reverse=True) if slot >= replicas]
            ends = [self._units.leave(unit, say) for unit in leaving]
            if wait:
                for end in ends:
                    await asyncio.shield(end)
            change.ended.extend(unit.spec.name for unit in leaving)
            return change

    async def scale_soon(self, stage: str, replicas: int, settings: Mapping[str, Any]) -> bool:
        """Scale a stage without waiting for the end of units. Returns False if another operation runs."""
        try:
            await self.scale(stage, replicas, settings, wait=False)
        except BusyError:
            return False
        return True

    def _choose(self, group: str) -> None:
        """Let the coordinator place requests on the units of a group, if it does not yet."""
        stages = process_groups(self._running.config)[group]
        self._running.choice.add(replicated_group(group, stages, self._running.registry))

    @asynccontextmanager
    async def _only(self, operation: str) -> AsyncIterator[None]:
        if self._going_on:
            seconds = time.monotonic() - self._since
            raise BusyError(
                f"{operation}: {self._going_on!r} has run for {seconds:.0f} s; repeat this when it has ended"
            )
        self._going_on, self._since = operation, time.monotonic()
        try:
            yield
        finally:
            self._going_on = ""

    def handle(self, message: Any) -> None:
        """Handle a message of a command."""
        if isinstance(message, OperationRequest):
            task = self._asked[message.endpoint] = watched(self._answer(message), "an operation")
            task.add_done_callback(lambda _: self._asked.pop(message.endpoint, None))
        elif isinstance(message, OperationCancel) and message.endpoint in self._asked:
            self._asked[message.endpoint].cancel()

    async def _answer(self, request: OperationRequest) -> None:
        is_over = False

        def say(line: str) -> None:
            logger.info("%s", line)
            if not is_over:  # later steps, as of a unit that drains, have no command to hear of them
                self._running.control.tell(request.endpoint, OperationStep(line))

        stage, replicas, settings, wait = request.stage, request.replicas, request.settings, request.wait
        try:
            if replicas is None:
                done = OperationDone(await self.replace(stage, settings, say, wait=wait))
            else:
                done = OperationDone(await self.scale(stage, replicas, settings, say, wait=wait))
        except asyncio.CancelledError:
            done = OperationDone(problem=_CANCELLED)
        except OmniError as error:
            done = OperationDone(problem=str(error))
        except BaseException as error:  # a launcher's, or a balance's
            if issubclass(type(error), asyncio.CancelledError) or is_interrupt(error):
                raise
            logger.error("an operation has failed\n%s", traceback_of(error))
            done = OperationDone(problem=message_of(error, with_type=True))
        is_over = True
        await self._running.observation.tell_client(request.endpoint, done)


def _logged(line: str) -> None:
    logger.info("%s", line)


def _guarded(on_step: OnStep) -> OnStep:
    """Return ``on_step`` so that an exception of it is logged: an operation that ended in the middle would leave units behind."""

    def say(line: str) -> None:
        try:
            on_step(line)
        except BaseException as error:
            if is_interrupt(error):
                raise
            logger.error("on_step has failed at %r; the operation goes on\n%s", line, traceback_of(error))

    return say
