"""A replica of a stage in simulated time: the threads of its process and the devices of its ranks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from omni_planner.machine import Action, Clock, Device, Process
from omni_planner.profile import CLIENT, WAIT
from omni_planner.requests import Flight
from omni_planner.stages import PAYLOAD, Output, SimulatedStage, Step

LOCKED = 2e-3
"""Processor seconds of a step in which it holds Python's lock, where other stages of its process want it: about what an engine or a vocoder
takes in Python for a step. The rest are kernels, which run without it.
"""


class Work(Protocol):
    """A thread: works for so many processor seconds after all that it was given before, then calls ``then``."""

    def __call__(self, seconds: float, then: Action) -> None: ...


class Loop(Protocol):
    """The part of a process that sends and receives. ``worked``: processor seconds that it was given."""

    worked: float

    def do(self, seconds: float, then: Action, waking: float = 0.0) -> None:
        """Work, see :class:`Work`; ``waking``: seconds more if it had nothing to do before."""

    def kill(self) -> None:
        """End the process."""


class OwnThread:
    """A thread with a processor of its own, so that one event tells its end."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._free = self.worked = 0.0
        self._is_dead = False

    def do(self, seconds: float, then: Action, waking: float = 0.0) -> None:
        """Work, see :class:`Loop`; it never wakes, because estimates have no seconds for it."""
        self._clock.after(self.charge(seconds), partial(self._done, then))

    def charge(self, seconds: float) -> float:
        """Work for so many processor seconds after all that it was given before. Returns the seconds until that is done."""
        self.worked += seconds
        now = self._clock.now
        self._free = free = (self._free if self._free > now else now) + seconds
        return free - now

    def kill(self) -> None:
        """End it."""
        self._is_dead = True

    def _done(self, then: Action) -> None:
        if not self._is_dead:
            then()


class Replica:
    """A stage in its process: its inputs, its scheduler's thread, and the thread of its process that sends and receives.

    Attributes:
        computing: seconds in which it made turns. worked: processor seconds of them. is_on_loop: they are counted in
            ``loop.worked`` too, but those ``beside``, in which other stages of its process could work.

    Args:
        devices: those of its ranks.
        loop: sends and receives; where it is an :class:`OwnThread`, the scheduler's thread has a processor of its own too.
        send: is called with what a step sends.
        thread: the scheduler's thread, which gets processors beside ``loop``; ``None``: a :class:`Process` is both.
        shares: other stages of its process wait for Python's lock, which a step holds at first (:data:`LOCKED`): so long ``loop`` is both.
        crowded: several networks are in its process, so that an :class:`OwnThread` is the one thread of all that has Python's lock.
    """

    def __init__(
        self,
        stage: SimulatedStage,
        clock: Clock,
        devices: Sequence[Device],
        loop: Loop,
        send: Callable[[Replica, list[Output]], None],
        thread: Process | None = None,
        shares: bool = False,
        crowded: bool = False,
    ) -> None:
        self._thread, self._shares = thread, shares
        self.stage, self.loop, self._devices = stage, loop, devices
        self.computing = self.worked = self.beside = 0.0
        stage.now = lambda: clock.now
        self._clock, self._send = clock, send
        self._own: OwnThread | None = None
        if isinstance(loop, OwnThread):
            self._own = loop if crowded else OwnThread(clock)
        together = loop if thread is None or shares else thread
        self.is_on_loop = crowded or (together is loop and isinstance(loop, Process))
        self._compute: Work = together.compute if isinstance(together, Process) else self._own.do  # type: ignore[union-attr]
        self._is_busy = self._is_dead = False
        self._locked = LOCKED  # what is left of it in a turn
        self._payloads: dict[str, int] = {}
        self._jobs: set[int] = set()
        self._steps: list[Step] = []
        self._next, self._since, self._ended = 0, 0.0, self._end_step
        self._rested = -float("inf")  # when its last turn ended

    def deliver(self, flight: Flight, what: str, source: str) -> None:
        """Take a message in and begin a turn."""
        self.put(flight, what, source)
        self.wake()

    def put(self, flight: Flight, what: str, source: str) -> None:
        """Take a message in; a payload counts when those of all sources have come."""
        if flight.is_withdrawn:
            return
        if what == PAYLOAD:
            stage = self.stage.name
            sources = flight.sample[stage].sources
            if len(sources) > 1:
                needed = sum(name == CLIENT or stage in flight.sample[name].targets for name in sources)
                if needed > 1:
                    came = self._payloads.get(flight.name, 0) + 1
                    self._payloads[flight.name] = came
                    if came < needed:
                        return
                    self._payloads.pop(flight.name)
        self.stage.inbox.append((flight, what, source))

    def wake(self) -> None:
        """Begin a turn if there is something to do."""
        if not self._is_busy and self.stage.inbox:
            self._begin()

    def drop(self, flight: Flight) -> None:
        """Forget a request."""
        self._payloads.pop(flight.name, None)
        self.stage.inbox = deque(each for each in self.stage.inbox if each[0] is not flight)
        self.stage.drop(flight)

    def kill(self) -> None:
        """End it with its process."""
        self._is_dead = True
        if self._own is not None:
            self._own.kill()
        if self._thread is not None:
            self._thread.kill()
        for device in self._devices:
            device.drop(self._jobs)

    def _begin(self) -> None:
        """Begin a turn. A thread that has waited takes what has come until it has a processor, except where stages share a process: the
        step would queue a second time for their lock.
        """
        if self._own is not None or self._shares:
            self._turn()
            return
        self._is_busy = True
        self._compute(0.0, self._turn)

    def _turn(self) -> None:
        stage = self.stage
        stage.woken = int(self._clock.now - self._rested > WAIT)
        self._locked = LOCKED
        steps = stage.turn()
        if self._own is not None:  # what sends nothing needs no event
            while steps and not steps[-1][1] and not steps[-1][0][1]:
                seconds = steps.pop()[0][0]
                self._own.charge(seconds)
                self.worked += seconds
        if steps:
            self._is_busy = True
            self._since = self._clock.now
            self._steps = steps
            self._next = 0
            self._work()
            return
        self._is_busy = False
        if stage.wait is not None:
            self._clock.after(stage.wait, self._again)

    def _again(self) -> None:
        if not self._is_busy and not self._is_dead:
            self._begin()

    def _work(self) -> None:
        """Make the next step of the turn."""
        seconds, on_device = self._steps[self._next][0]
        self.worked += seconds
        if not self._devices:
            seconds += on_device
            if self._thread is None or not self._shares:
                self._compute(seconds, self._ended)
                return
            locked = min(seconds, self._locked)
            if self.stage.is_in_parts:
                self._locked -= locked
            if locked == seconds:
                self._compute(seconds, self._ended)
            else:
                self.beside += seconds - locked
                self._compute(locked, partial(self._thread.compute, seconds - locked, self._ended))
        elif on_device:
            self._compute(seconds, partial(self._on_devices, on_device))
        else:
            self._compute(seconds, self._ended)

    def _end_step(self) -> None:
        outputs = self._steps[self._next][1]
        if outputs:
            self._send(self, outputs)
        self._next += 1
        if self._next < len(self._steps):
            self._work()
            return
        self._rested = self._clock.now
        self.computing += self._rested - self._since
        self._turn()

    def _on_devices(self, seconds: float) -> None:
        """Compute on every device of the stage's ranks at once; go on when the last one is done."""
        left = len(self._devices)
        numbers: list[int] = []

        def done() -> None:
            nonlocal left
            left -= 1
            if not left:
                self._jobs.difference_update(numbers)
                self._end_step()

        numbers += [device.compute(seconds, done) for device in self._devices]
        self._jobs.update(numbers)
