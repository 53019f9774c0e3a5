"""A vocoder in simulated time: its chunks are made by the runtime's own :class:`omni_torch.vocoder.scheduler.VocoderScheduler`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from omni_core.protocol.messages import OmniRequest, StagePayload
from omni_core.protocol.outputs import AudioResult
from omni_core.scheduling.base import IncomingMessage, OutgoingMessage
from omni_planner.profile import CLIENT, Costing, StageProfile
from omni_planner.requests import Flight
from omni_planner.stages import CHUNK, PAYLOAD, Settings, SimulatedStage, Step, Watch
from omni_torch.vocoder.scheduler import VocoderScheduler


class _Silence:
    """A vocoder without a network: a frame is two samples, in all 80 ms. It notes its passes."""

    device, sample_rate, codebooks, codebook_size = torch.device("cpu"), 25, 1, 1

    def __init__(self, passed: Callable[[int, int], None]) -> None:
        self._passed = passed

    def begin(self) -> None:
        """Keep nothing of a stream."""

    def decode(self, work: list[tuple[None, Any]]) -> list[Any]:
        self._passed(len(work), sum(len(frames) for _, frames in work))
        return [range(2 * len(frames)) for _, frames in work]


class _Collecting(VocoderScheduler[None]):
    """The scheduler, whose frames and samples have a number only: tensors of them would take longer than all decisions."""

    def on_chunk(self, state: Any, chunk: Any, metadata: dict[str, Any] | None) -> None:
        state.waiting.append(chunk)

    def _join(self, frames: list[Any]) -> Any:
        return frames

    def _for_client(self, wave: Any) -> Any:
        return wave

    def _whole(self, state: Any) -> AudioResult:
        return _ALL


_ALL = AudioResult(None, _Silence.sample_rate)


class _Inbox:
    """A queue of one thread, with what the scheduler uses of a :class:`MessageQueue`."""

    closed = False

    def __init__(self) -> None:
        self.items: list[IncomingMessage] = []

    def __len__(self) -> int:
        return len(self.items)

    def put(self, item: IncomingMessage) -> None:
        self.items.append(item)

    def get(self, timeout: float | None = None) -> IncomingMessage | None:
        return self.items.pop(0) if self.items else None

    def drain(self) -> list[IncomingMessage]:
        items, self.items = self.items, []
        return items

    def remove(self, unwanted: Callable[[IncomingMessage], bool]) -> None:
        self.items = [item for item in self.items if not unwanted(item)]


class _Outbox:
    """Hands messages on at once."""

    def __init__(self, put: Callable[[OutgoingMessage], None]) -> None:
        self.put = put


class VocoderStage(SimulatedStage):
    """The runtime's vocoder scheduler, whose network takes no time here; every pass is a step.

    Args:
        settings: ``initial_chunk``, ``chunk``, ``growth`` and ``max_running``, as its factory gets them.
    """

    def __init__(self, name: str, profile: StageProfile, costing: Costing, settings: Settings) -> None:
        super().__init__(name, profile, costing)
        self._inbox = _Inbox()
        self._scheduler = _Collecting(
            _Silence(self._passed),
            initial_chunk=int(settings["initial_chunk"]),
            chunk=int(settings["chunk"]),
            **{name: settings[name] for name in ("growth",) if name in settings},
            max_running=settings.get("max_running"),
            policy=settings.get("policy"),
        )
        queues: Any = self._inbox, _Outbox(self._put)
        self._scheduler.inbox, self._scheduler.outbox = queues
        self._scheduler.clock = lambda: self.now() + self._watch.elapsed
        self._flights: dict[str, Flight] = {}
        self._frames: dict[str, IncomingMessage] = {}
        """By request, the message of a frame: all of its are alike."""
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
            self._kind = self.inbox[0][0].kind
        self._steps = [(self._costing(self._kind, (0, 0, 0, len(self.inbox), self.woken)), [])]
        put = self._inbox.put
        for flight, what, source in self.inbox:
            name = flight.name
            if what == CHUNK:
                if name not in self._frames:
                    self._flights[name] = flight
                    self._frames[name] = IncomingMessage(name, "stream_chunk", None, source)
                put(self._frames[name])
            else:
                self._flights[name] = flight
                data = StagePayload(name, OmniRequest(), None) if what == PAYLOAD else None
                put(IncomingMessage(name, what, data, source))  # type: ignore[arg-type]
        self.inbox.clear()
        self._scheduler.turn()
        self.wait = self._scheduler.wait
        return self._steps if taken or len(self._steps) > 1 or self._steps[0][1] else []

    def drop(self, flight: Flight) -> None:
        self._frames.pop(flight.name, None)
        if self._flights.pop(flight.name, None) is not None:
            self._scheduler.abort(flight.name)

    def _passed(self, streams: int, frames: int) -> None:
        self._steps.append((self._costing(self._kind, (1, streams, frames)), []))
        self._watch.spend(sum(self._steps[-1][0]))

    def _put(self, message: OutgoingMessage) -> None:
        if message.type == "error":
            raise message.data
        flight = self._flights[message.request_id]
        if message.type == "stream":
            self._steps[-1][1].append((flight, CHUNK, [CLIENT], len(message.data.samples) // 2))
        else:
            del self._flights[message.request_id]
            self._frames.pop(message.request_id, None)
            self._steps[-1][1].extend(self._result(flight))
