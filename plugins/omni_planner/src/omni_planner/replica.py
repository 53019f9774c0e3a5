"""A replica of a stage in simulated time: its scheduler's thread, the GPUs of its ranks, and the simulated stage of its config."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

from omni_core.api import ConfigError, StageConfig, load
from omni_planner.clock import Clock, Gpu, Thread
from omni_planner.engine_stage import BLOCK, EngineStage
from omni_planner.estimate import CLIENT, StageEstimate
from omni_planner.load import Flight
from omni_planner.stages import PAYLOAD, FunctionStage, Output, Settings, SimulatedStage, Step, StreamStage
from omni_planner.vocoder_stage import VocoderStage


class Process:
    """A process. ``messages``: the thread that sends and receives."""

    def __init__(self, clock: Clock, name: str) -> None:
        self.name = name
        self.messages = Thread(clock)


class Replica:
    """A stage in its process. ``busy``: seconds in which it made turns.

    Args:
        gpus: those of its ranks.
        send: is called with what a step sends.
    """

    def __init__(
        self,
        stage: SimulatedStage,
        clock: Clock,
        process: Process,
        gpus: Sequence[Gpu],
        send: Callable[[Replica, list[Output]], None],
    ) -> None:
        self.stage, self.process = stage, process
        self.busy = 0.0
        stage.now = lambda: clock.now
        self._clock, self._gpus, self._send = clock, gpus, send
        self._is_busy = False
        self._payloads: dict[str, int] = {}

    def put(self, flight: Flight, what: str, source: str) -> None:
        """Take a message in; a payload counts when those of all sources have come."""
        if what == PAYLOAD:
            name, sources = self.stage.name, flight.sample[self.stage.name].sources
            needed = sum(each == CLIENT or name in flight.sample[each].targets for each in sources)
            if needed > 1:
                came = self._payloads.pop(flight.name, 0) + 1
                if came < needed:
                    self._payloads[flight.name] = came
                    return
        self.stage.inbox.append((flight, what, source))

    def wake(self) -> None:
        """Begin a turn if there is something to do."""
        if not self._is_busy:
            self._turn()

    def _turn(self) -> None:
        steps = self.stage.turn()
        self._is_busy = bool(steps)
        if steps:
            self._step(steps, 0, self._clock.now)
        elif self.stage.wait is not None:
            self._clock.after(self.stage.wait, self.wake)

    def _step(self, steps: list[Step], number: int, since: float) -> None:
        """Make a step: its part on a processor, and then that on every GPU of the stage's ranks at once."""
        if number == len(steps):
            self.busy += self._clock.now - since
            self._turn()
            return
        (processor, device), outputs = steps[number]
        left = len(self._gpus)

        def done() -> None:
            if outputs:
                self._send(self, outputs)
            self._step(steps, number + 1, since)

        def one_is_done() -> None:
            nonlocal left
            left -= 1
            if not left:
                done()

        def compute() -> None:
            for gpu in self._gpus:
                gpu.compute(device, one_is_done)

        if device and self._gpus:
            self._clock.after(processor, compute)
        else:
            self._clock.after(processor + device, done)


def simulated(stage: StageConfig, estimate: StageEstimate) -> SimulatedStage:
    """Make the simulated stage of a config.

    Raises:
        ConfigError: the chunks of a vocoder are not known.
    """
    costing, settings = estimate.costing(stage), settings_of(stage)
    if estimate.kind == "function":
        return FunctionStage(stage.name, costing, settings)
    if estimate.kind == "stream":
        return StreamStage(stage.name, costing)
    if estimate.kind == "engine":
        blocks = estimate.kv_blocks(stage, int(settings.get("block_size") or BLOCK))
        return EngineStage(stage.name, costing, settings, estimate.admit_after, blocks)
    missing = [name for name in ("initial_chunk", "chunk") if name not in settings]
    if missing:
        raise ConfigError(f"stages[{stage.name}].factory_args: its chunks are not known; set {' and '.join(missing)}")
    return VocoderStage(stage.name, costing, settings)


def settings_of(stage: StageConfig) -> Settings:
    """Return a stage's ``factory_args`` over its factory's defaults."""
    defaults: Settings = {}
    if stage.factory is not None:
        parameters = inspect.signature(load(stage.factory)).parameters.values()
        defaults = {each.name: each.default for each in parameters if each.default is not each.empty}
    return {**defaults, **stage.factory_args}
