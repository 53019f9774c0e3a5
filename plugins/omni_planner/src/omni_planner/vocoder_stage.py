"""A vocoder in simulated time: frames become sound in passes of chunks, by the lengths of :func:`omni_torch.vocoder.passes.next_chunk`."""

from __future__ import annotations

from attrs import define, field

from omni_planner.estimate import CLIENT, NOTHING, Costing
from omni_planner.load import Flight
from omni_planner.stages import CHUNK, Inputs, Output, Settings, SimulatedStage, Step
from omni_torch.placement.work import Counts
from omni_torch.vocoder.passes import next_chunk


@define(eq=False)
class _Sound:
    """The frames of a request: ``waiting`` for a pass, and ``decoded``."""

    flight: Flight
    inputs: Inputs = field(factory=Inputs)
    waiting: int = 0
    decoded: int = 0


class VocoderStage(SimulatedStage):
    """Makes one pass a turn, of all requests that have a whole chunk; those that do not fit take their turn in the next one.

    Args:
        settings: ``initial_chunk``, ``chunk``, ``growth`` and ``max_running``, as its factory gets them.
    """

    def __init__(self, name: str, costing: Costing, settings: Settings) -> None:
        super().__init__(name, costing)
        self._initial, self._chunk = int(settings["initial_chunk"]), int(settings["chunk"])
        self._growth: float | None = settings.get("growth", 1.0)
        self._most_running: int | None = settings.get("max_running")
        self._sounds: dict[str, _Sound] = {}
        self._unfinished: dict[str, None] = {}
        """Those that have a chunk already, in the order of their turns."""

    def turn(self) -> list[Step]:
        taken, asking = len(self.inbox), self._unfinished
        for message in self.inbox:
            flight, what, _ = message
            sound = self._sounds.setdefault(flight.name, _Sound(flight))
            sound.inputs.take(message)
            sound.waiting += what == CHUNK
            asking[flight.name] = None
        self.inbox.clear()
        outputs: list[Output] = []
        due = {name: frames for name in asking if (frames := self._frames_due(self._sounds[name]))}
        chosen = list(due)[: self._most_running]
        for name in chosen:
            sound = self._sounds[name]
            sound.waiting -= due[name]
            sound.decoded += due[name]
            outputs.append((sound.flight, CHUNK, [CLIENT], due[name]))
        waited = [*(name for name in due if name not in chosen), *chosen]
        self._unfinished = {name: None for name in waited if self._frames_due(self._sounds[name])}
        for name in asking:
            sound = self._sounds[name]
            if not sound.waiting and sound.inputs.are_complete(sound.flight, self.name):
                del self._sounds[name]
                outputs += self._result(sound.flight)
        if chosen:
            counts = Counts(decodes=len(chosen), positions=sum(due[name] for name in chosen))
            return [(self._costing(counts, 1, taken), outputs)]
        return [(self._costing(NOTHING, 0, taken), outputs)] if taken else []

    def _frames_due(self, sound: _Sound) -> int:
        """Return the frames of a request's next chunk if they have come, or those that are left if no more will come; else 0."""
        wanted = next_chunk(sound.decoded, self._initial, self._chunk, self._growth)
        if sound.waiting >= wanted:
            return wanted
        return sound.waiting if sound.inputs.are_complete(sound.flight, self.name) else 0
