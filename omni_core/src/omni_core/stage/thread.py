"""The thread of a stage's scheduler, on every rank."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod

from omni_core.errors import contained, message_of, traceback_of
from omni_core.observe.recording import Recorder
from omni_core.protocol.specs import StageSpec
from omni_core.references import imported
from omni_core.scheduling.base import Scheduler
from omni_core.stage_logs import enter_stage

logger = logging.getLogger(__name__)


class StageThread(ABC):
    """Runs a stage's scheduler in a thread of its own."""

    def __init__(self, spec: StageSpec, scheduler: Scheduler) -> None:
        self.spec = spec
        self.name = spec.name
        self.scheduler = scheduler
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=f"scheduler-{self.name}", daemon=True)

    @abstractmethod
    def profile(self, recorder: Recorder | None) -> None:
        """Record what happens to requests here from now on; ``None``: no more."""

    def statistics(self) -> dict[str, float]:
        """Return the counters that the scheduler offers, and ``cpu_seconds``, the processor's time of its threads."""
        offered = getattr(self.scheduler, "statistics", dict)
        counted: dict[str, float] = contained(
            lambda: dict(offered()), {}, f"`statistics` of the scheduler of stage {self.name!r}"
        )
        clock = time.pthread_getcpuclockid(self._thread.ident or 0) if self._thread.is_alive() else None
        own = 0.0 if clock is None else time.clock_gettime(clock)
        return {**counted, "cpu_seconds": own + counted.get("cpu_seconds", 0.0)}

    def running_computes(self) -> dict[str, float]:
        """Return the requests of the running compute, with the ``time.monotonic()`` of its begin, if the scheduler reports it."""
        offered = getattr(self.scheduler, "running_computes", dict)
        return contained(lambda: dict(offered()), {}, f"`running_computes` of the scheduler of stage {self.name!r}")

    @abstractmethod
    def ended(self, error: RuntimeError) -> None:
        """Report that the scheduler's loop has ended by itself. Called in its thread."""

    def start(self) -> None:
        """Begin to compute."""
        self._thread.start()

    def stop(self) -> None:
        """Ask the scheduler to stop after its running step."""
        self._stopping = True
        self.scheduler.stop()

    def join(self, timeout: float) -> None:
        """Wait at most ``timeout`` seconds until the scheduler has stopped; not at all if it was never started.

        It may be in a collective that the other ranks have left.
        """
        if self._thread.is_alive():
            self._thread.join(timeout)

    def _enter(self) -> None:
        """Make the calling thread one of the stage's: its log records name the stage, and it uses the stage's GPU."""
        enter_stage(self.name, getattr(self.scheduler, "running_computes", None))
        _set_device(self.spec.gpu)

    def _run(self) -> None:
        try:
            self._enter()
            if hasattr(self.scheduler, "enter_thread"):
                self.scheduler.enter_thread = self._enter
            self.scheduler.start()
            error, trace = RuntimeError("its loop returned without being told to stop"), ""
        except BaseException as raised:
            error = RuntimeError(f"its loop ended with {message_of(raised, with_type=True)}")
            trace = f"\n{traceback_of(raised)}"
        if not self._stopping:
            logger.error("the scheduler of stage %r: %s%s", self.name, error, trace)
            self.ended(error)


def _set_device(gpu: int | None) -> None:
    """Let the calling thread use the stage's GPU: a new thread uses GPU 0, wherever the stage's tensors lie."""
    torch = imported("torch")
    if gpu is not None and torch is not None and torch.cuda.is_available():
        torch.cuda.set_device(gpu)
