"""A simulated process: a real worker in a loop of its own, which starts, dies, stands still and loses connections."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from attrs import evolve

from omni_core.api import ProcessSpec, SupervisedProcess
from omni_core.runtime_api import Worker
from omni_testing.world.clock import Loop
from omni_testing.world.plane import End

if TYPE_CHECKING:
    from omni_testing.world.simulation import World


class Process(SupervisedProcess):
    """A simulated process: a real worker in a loop of its own."""

    def __init__(self, world: World, spec: ProcessSpec, on_exit: Callable[[SupervisedProcess], None]) -> None:
        super().__init__(spec)
        self.world = world
        self.pid = world.new_pid()
        self.address = f"world://{spec.name}/{self.pid}"
        self.launched.set_result(None)
        self.loop = Loop(world.clock, self, world.uncaught)
        self.worker: Worker | None = None
        self.launched_at = world.clock.now
        self._on_exit = on_exit
        self._end = End(world.plane, self.loop, self.address)
        self._is_stopping = False
        self.loop.call_later(world.start_seconds(), self._main)

    @property
    def is_alive(self) -> bool:
        return self.loop.is_alive

    def held(self) -> set[str]:
        """Return the requests that its schedulers hold or compute."""
        parts = self.worker.parts().values() if self.worker is not None else ()
        return {name for part in parts for name in part.scheduler.held}  # type: ignore[attr-defined]

    def _main(self) -> None:
        spec = evolve(self.spec, addresses={**self.world.addresses(), self.spec.endpoint: self.address})
        self.worker = Worker(spec, self._end)
        if self._is_stopping:
            self.worker.stopped.set()
        self.worker.build(lambda stage: None)
        self.worker.start()
        self._task = self.loop.create_task(self._serve(self.worker))

    async def _serve(self, worker: Worker) -> None:
        await worker.stopped.wait()
        worker.close()
        self.die(worker.exit_code)

    def die(self, code: int, poison: int | None = None) -> None:
        """End at once: what it held is lost, what it has written arrives. ``poison``: the plan that is the cause."""
        if not self.loop.is_alive:
            return
        self.world.note(
            f"{self.spec.name} (pid {self.pid}) dies, code {code}"
            + (f", by plan {poison}" if poison is not None else "")
        )
        self.world.died(self, poison)
        self.loop.end()
        self._end.died()
        self.world.parent.call_later(self.world.random.random() * 0.01, self._tell, code)

    def _tell(self, code: int) -> None:
        self.code = code
        self._on_exit(self)
        self.ended.set_result(None)

    def say_stop(self) -> None:
        self._is_stopping = True
        if self.worker is not None:
            self.loop.call_soon(self.worker.stopped.set)

    def kill(self) -> None:
        self.die(-9)

    def cut(self) -> None:
        """Cut one of its connections."""
        self._end.cut(self.world.random)
