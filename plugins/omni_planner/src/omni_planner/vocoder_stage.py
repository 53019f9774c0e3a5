"""A vocoder in simulated time: its chunks are made by the runtime's own :class:`omni_torch.vocoder.VocoderScheduler`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from omni_core.protocol.messages import OmniRequest, StagePayload
from omni_core.scheduling.base import IncomingMessage, OutgoingMessage
from omni_planner.profile import CLIENT, Costing, StageProfile
from omni_planner.requests import Flight
from omni_planner.stages import CHUNK, PAYLOAD, Settings, SimulatedStage, Step, Watch
from omni_torch.vocoder import VocoderScheduler


class _Silence:
    """A vocoder without a network: a frame is two samples, in all 80 ms. It notes its passes."""

    device, sample_rate, codebooks, codebook_size = torch.device("cpu"), 25, 1, 1

    def __init__(self, passed: Callable[[int, int], None]) -> None:
        self._passed = passed

    def begin(self) -> None:
        """Keep nothing of a stream."""

    def decode(self, work: list[tuple[None, torch.Tensor]]) -> list[torch.Tensor]:
        self._passed(len(work), sum(len(frames) for _, frames in work))
        return [_wave(2 * len(frames)) for _, frames in work]


@cache
def _wave(samples: int) -> torch.Tensor:
    """Return silence, which nobody writes to."""
    return torch.zeros(samples)


_FRAME = torch.zeros(1, dtype=torch.int64)


class _Collecting(VocoderScheduler[None]):
    """The scheduler, without the test of each frame's codes, of which there are none."""

    def on_chunk(self, state: Any, chunk: torch.Tensor, metadata: dict[str, Any] | None) -> None:
        state.waiting.append(chunk)


class VocoderStage(SimulatedStage):
    """The runtime's vocoder scheduler, whose network takes no time here; every pass is a step.

    Args:
        settings: ``initial_chunk``, ``chunk`` and ``max_running``, as its factory gets them.
    """

    def __init__(self, name: str, profile: StageProfile, costing: Costing, settings: Settings) -> None:
        super().__init__(name, profile, costing)
        self._scheduler = _Collecting(
            _Silence(self._passed),
            initial_chunk=int(settings["initial_chunk"]),
            chunk=int(settings["chunk"]),
            max_running=settings.get("max_running"),
            policy=settings.get("policy"),
        )
        self._scheduler.outbox.tap = self._put
        self._scheduler.clock = lambda: self.now() + self._watch.elapsed
        self._flights: dict[str, Flight] = {}
        self._steps: list[Step] = []
        self._kind = ""
        self._watch = Watch()

    def turn(self) -> list[Step]:
        taken = bool(self.inbox)
        self._watch.turn(self.now())
        if not taken and not self._scheduler.unfinished and self._scheduler.wait is None:
            self.wait = None
            return []
        self._scheduler.wait = 0.0
        if taken:
            self._kind = self.inbox[0].flight.arrival.kind
        self._steps = [(self._seconds(self._kind, taken=len(self.inbox), woken=self.woken), [])]
        while self.inbox:
            message = self.inbox.popleft()
            name = message.flight.name
            self._flights[name] = message.flight
            data: Any = _FRAME if message.what == CHUNK else None
            if message.what == PAYLOAD:
                data = StagePayload(name, OmniRequest(), None)
            self._scheduler.inbox.put(IncomingMessage(name, message.what, data, message.source))  # type: ignore[arg-type]
        self._scheduler.turn()
        self._scheduler.outbox.drain()
        self.wait = self._scheduler.wait
        return self._steps if taken or len(self._steps) > 1 or self._steps[0][1] else []

    def drop(self, flight: Flight) -> None:
        if self._flights.pop(flight.name, None) is not None:
            self._scheduler.abort(flight.name)

    def _passed(self, streams: int, frames: int) -> None:
        self._steps.append((self._seconds(self._kind, turns=1, streams=streams, frames=frames), []))
        self._watch.spend(sum(self._steps[-1][0]))

    def _put(self, action: str, messages: list[OutgoingMessage]) -> None:
        if action != "put":
            return
        for message in messages:
            if message.type == "error":
                raise message.data
            flight = self._flights[message.request_id]
            if message.type == "stream":
                self._steps[-1][1].append((flight, CHUNK, [CLIENT], len(message.data.samples) // 2))
            else:
                del self._flights[message.request_id]
                self._steps[-1][1].extend(self._result(flight))
