"""Simulated time: timers, the processors of machines with their threads, and devices that are shared equally."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Any

Action = Callable[[], None]

NEVER = float("inf")

TICK = 0.004
"""Seconds between two looks of a system's scheduler at a running thread, by default: Linux with 250 a second."""

SHORTEST_SLICE = 0.35
"""Share of a tick that a thread runs at least before another one gets its processor."""

LOCK_SHARE = 0.5
"""Share of the time of a message in which the scheduler of its process, on another processor, waits for Python's lock. The rest of that
time the scheduler computes in kernels, or the message is in system calls; both run without the lock
(docs/decisions/0087-messages-hold-pythons-lock.md).
"""

_DONE = 1e-12

_Queue = list[tuple[float, int, "Process"]]
"""Processes that wait for a processor, a heap: seconds that each has used, a number, the process."""

_Job = list[Any]
"""``[processor seconds that are left, what follows]``: a list, because it is made faster than an object of a class."""


class Device:
    """A device whose jobs all get an equal share of it.

    Attributes:
        place: its index in :attr:`Clock.ends`. served: seconds of the device that a job which ran all the time has had. Every job gets
            the same, so the one that is done first is known without looking at the others.
        busy: seconds in which it computed. jobs: ``(served seconds at which it is done, number, what follows)``, a heap.
    """

    __slots__ = ("_clock", "busy", "jobs", "place", "served", "since")

    def __init__(self, clock: Clock, place: int) -> None:
        self._clock, self.place = clock, place
        self.served = self.busy = self.since = 0.0
        self.jobs: list[tuple[float, int, Action]] = []

    def compute(self, seconds: float, then: Action) -> int:
        """Compute for so many seconds, then call ``then``. Returns the number of the job."""
        self._advance(self._clock.now)
        number = self._clock.number()
        heapq.heappush(self.jobs, (self.served + seconds, number, then))
        self._expect()
        return number

    def drop(self, numbers: set[int]) -> None:
        """Forget jobs."""
        self._advance(self._clock.now)
        self.jobs = [job for job in self.jobs if job[1] not in numbers]
        heapq.heapify(self.jobs)
        self._expect()

    def due(self) -> None:
        """End the job whose time has come."""
        self._advance(self._clock.now)
        self.served = max(self.served, self.jobs[0][0])  # without the rounding of the division
        then = heapq.heappop(self.jobs)[2]
        self._expect()
        then()

    def _advance(self, now: float) -> None:
        elapsed, running = now - self.since, len(self.jobs)
        self.since = now
        if running and elapsed > 0.0:
            self.served += elapsed / running
            self.busy += elapsed

    def _expect(self) -> None:
        left = max(0.0, self.jobs[0][0] - self.served) * len(self.jobs) if self.jobs else NEVER
        self._clock.ends[self.place] = self._clock.now + left


class Process:
    """A thread; or the threads of a process of which one runs at a time, as Python's lock has it: messages before turns of schedulers.

    Attributes:
        worked: processor seconds that it was given, at the usual speed. wakes: how often the thread of its messages woke. used: the seconds
            that it has had, or would have had if it had waited for them as long as others.
        urgent: the jobs of messages, turns: those of schedulers.
        scheduler: of a thread of messages, the one that has Python's lock in turn with it.
        core: the processor that it has; -1: none. home: the one that it had last. current: the job that runs there, since ``began``.
        slice_end: when another process may get its processor.
    """

    __slots__ = (
        "_clock", "_cores", "began", "behind", "core", "current", "home", "is_dead", "scheduler", "slice_end", "turns", "urgent", "used",
        "wakes", "worked",
    )  # fmt: skip

    def __init__(self, cores: Cores) -> None:
        self._cores, self._clock = cores, cores.clock
        self.urgent: deque[_Job] = deque()
        self.turns: deque[_Job] = deque()
        self.current: _Job | None = None
        self.scheduler: Process | None = None
        self.core = self.home = -1
        self.wakes = 0
        self.is_dead = False
        self.began = self.behind = self.slice_end = self.used = self.worked = 0.0

    def do(self, seconds: float, then: Action, waking: float = 0.0) -> None:
        """Let the thread of its messages work for so many processor seconds after all that it was given before, then call ``then``.

        ``waking``: what it needs beside that if it has nothing to do before.
        """
        urgent, slowness = self.urgent, self._clock.slowness
        if self.is_dead:
            return
        slow = slowness[int(self._clock.now) % len(slowness)] if slowness else 1.0
        if urgent:
            self.worked += seconds
            urgent.append(self._message(slow * seconds, then))
            return
        if not seconds:
            then()
            return
        seconds += waking
        self.wakes += 1
        self.worked += seconds
        urgent.append(self._message(slow * seconds, then))
        if self.core < 0:
            if not self.turns:
                self._cores.wake(self)
        elif self.current is not None:
            self._cores.interrupt(self)

    def _message(self, seconds: float, then: Action) -> _Job:
        return [seconds, then if self.scheduler is None else partial(self._release, LOCK_SHARE * seconds, then)]

    def _release(self, seconds: float, then: Action) -> None:
        """End a message. A turn that runs at its end has waited for Python's lock, and ends so much later."""
        scheduler = self.scheduler
        assert scheduler is not None
        job = scheduler.current
        if job is not None:
            job[0] += seconds
            self._cores.expect(scheduler, job)
        then()

    def compute(self, seconds: float, then: Action) -> None:
        """Let the thread of a scheduler work for so many processor seconds, then call ``then``."""
        if self.is_dead:
            return
        self.worked += seconds
        slowness = self._clock.slowness
        if slowness:
            seconds *= slowness[int(self._clock.now) % len(slowness)]
        self.turns.append([seconds, then])
        if self.core < 0:
            if len(self.turns) == 1 and not self.urgent:
                self._cores.wake(self)
        elif self.current is not None:
            self._cores.expect(self, self.current)  # from now on they take turns

    def kill(self) -> None:
        """End it: nothing that it was given goes on, and it is given nothing more."""
        self.is_dead = True
        self.urgent.clear()
        self.turns.clear()
        self._cores.forget(self)


class Cores:
    """The processors of one machine and its system's scheduler, of a system that shares them out without loss.

    A process that wakes gets a free processor, or waits for one that is given up, or whose process has had its slice. A slice ends with a
    tick. Of the processes that wait, the one that has used least is next.

    Attributes:
        busy: processor seconds that were used. first: index of processor 0 in :attr:`Clock.ends`. running: the process of each processor
            that was used yet. The lower ones are used first, so those that a load never needs cost nothing.
    """

    __slots__ = ("_base", "_free", "_queues", "_tick", "_waiting", "busy", "clock", "first", "running", "total")

    def __init__(self, clock: Clock, first: int, cores: int, tick: float) -> None:
        self.clock, self.first, self.total, self._tick = clock, first, cores, tick
        self.running: list[Process | None] = []
        self._free: list[int] = []
        self._waiting: _Queue = []
        self._queues: list[_Queue] = []
        """The processes that wait for each processor: all for any, so it is one queue."""
        self._base = self.busy = 0.0

    def wake(self, process: Process) -> None:
        """Take in a process that has something to do again."""
        if process.used < self._base:
            process.used = self._base
        core = self._freed()
        if core >= 0:
            self._run(process, core)
            return
        heapq.heappush(self._waiting, (process.used, self.clock.number(), process))
        if len(self._waiting) == 1:
            for running in self.running:
                if running is not None and running.current is not None:
                    self.expect(running, running.current)

    def _freed(self) -> int:
        """Take a free processor, and return its number; -1: there is none."""
        if not self._free and len(self.running) < self.total:
            self._queues.append(self._waiting)
            self.clock.use(self)
            return len(self.running) - 1
        return self._free.pop() if self._free else -1

    def interrupt(self, process: Process) -> None:
        """Let a message go before the turn that runs."""
        self._stop(process)
        process.current = process.urgent[0]
        self.expect(process, process.current)

    def due(self, core: int) -> None:
        """The job on a processor is done, or its slice is over."""
        process, waiting, clock = self.running[core], self._queues[core], self.clock
        assert process is not None
        urgent, turns, now = process.urgent, process.turns, clock.now
        is_over = now >= process.slice_end and bool(waiting or len(turns) > 1)
        # From here to the call as in `_stop`, and then as in `_leave` and `expect`: most of a simulation's time is spent here.
        job = process.current
        assert job is not None
        elapsed = now - process.began
        process.began = now
        process.used += elapsed
        self.busy += elapsed
        left = job[0] = job[0] - elapsed
        if left <= _DONE or now + left <= now:  # after hours, what is left may be less than the clock can tell
            process.current = None
            if urgent and urgent[0] is job:
                urgent.popleft()
            elif turns[0] is job:
                turns.popleft()
            else:
                turns.remove(job)
            job[1]()
            if self.running[core] is not process:
                return  # it was killed, or lost its processor
        if urgent:
            job = urgent[0]
        elif turns:
            if is_over:
                turns.rotate(-1)
            job = turns[0]
        else:
            self._leave(process)
            return
        process.current = job
        end = now + job[0]
        if waiting or len(turns) > 1:
            if is_over and waiting and waiting[0][0] <= process.used:
                heapq.heappush(waiting, (process.used, clock.number(), process))
                self._leave(process)
                return
            end = self._within_slice(process, end)
        clock.ends[self.first + core] = end

    def forget(self, process: Process) -> None:
        """Take a process away that was killed."""
        if process.core < 0:
            for queue in (self._waiting, *self._queues):
                queue[:] = [each for each in queue if each[2] is not process]
                heapq.heapify(queue)
            return
        if process.current is not None:
            self._stop(process)
        self._leave(process)

    def _stop(self, process: Process) -> None:
        """Count the time that the current job has run."""
        job, now = process.current, self.clock.now
        assert job is not None
        elapsed = now - process.began
        process.began = now
        process.used += elapsed
        self.busy += elapsed
        job[0] -= elapsed

    def _leave(self, process: Process) -> None:
        core, process.core, process.current = process.core, -1, None
        if self._waiting:
            self._base, _, following = heapq.heappop(self._waiting)
            self._run(following, core)
        else:
            self.running[core] = None
            self._free.append(core)
            self.clock.ends[self.first + core] = NEVER

    def _run(self, process: Process, core: int) -> None:
        self.running[core] = process
        process.core = process.home = core
        process.began = now = self.clock.now
        process.slice_end = (now + SHORTEST_SLICE * self._tick) // self._tick * self._tick + self._tick
        urgent, turns = process.urgent, process.turns
        if urgent:
            job = urgent[0]
        else:
            turns.rotate(-1)
            job = turns[0]
        process.current = job
        end = now + job[0]
        if self._queues[core] or len(turns) > 1:
            end = min(end, process.slice_end)
        self.clock.ends[self.first + core] = end

    def expect(self, process: Process, job: _Job) -> None:
        """Say when the current job of a process is done, or its slice over."""
        end = process.began + job[0]
        if self._queues[process.core] or len(process.turns) > 1:
            end = self._within_slice(process, end)
        self.clock.ends[self.first + process.core] = end

    def _within_slice(self, process: Process, end: float) -> float:
        """Return ``end``, or the end of the slice if it is before; one that is over is followed by another one."""
        now = self.clock.now
        if process.slice_end <= now:
            process.slice_end = (now // self._tick + 1.0) * self._tick
            if process.slice_end <= now:  # by rounding
                process.slice_end += self._tick
        return end if end < process.slice_end else process.slice_end


class Clock:
    """The simulated time, in seconds, and all that will happen.

    Args:
        machines: processors of each machine. devices: how many devices there are. tick: see :data:`TICK`. kind: how systems give
            processors out. slowness: by how much longer jobs of processors take in each second, again from the first one when all are over;
            none: they take what is said.

    Attributes:
        ends: when the next thing happens on each processor that was used yet, by machine, and then on each device.
        number: counts what happens, so that what happens at the same time has an order.
    """

    def __init__(
        self,
        machines: list[int],
        devices: int = 0,
        tick: float = TICK,
        kind: type[Cores] = Cores,
        slowness: Sequence[float] = (),
    ) -> None:
        self.now = 0.0
        self.slowness = slowness
        self.number = count(1).__next__
        self.machines = [kind(self, 0, cores, tick) for cores in machines]
        self.devices = [Device(self, place) for place in range(devices)]
        self.ends = [NEVER] * devices
        self._places: list[Action] = [device.due for device in self.devices]
        self._timers: list[tuple[float, int, Action]] = []
        self._is_over = False

    @property
    def busy(self) -> list[float]:
        """Seconds that were used, by machine and then by device."""
        return [*(each.busy for each in self.machines), *(each.busy for each in self.devices)]

    def use(self, machine: Cores) -> None:
        """Take in another processor of a machine."""
        core = len(machine.running)
        place = machine.first + core
        machine.running.append(None)
        self.ends.insert(place, NEVER)
        self._places.insert(place, partial(machine.due, core))
        for other in self.machines[self.machines.index(machine) + 1 :]:
            other.first += 1
        for device in self.devices:
            device.place += 1

    def after(self, seconds: float, action: Action) -> None:
        """Call ``action`` in so many seconds."""
        heapq.heappush(self._timers, (self.now + seconds, self.number(), action))

    def at(self, when: float, number: int, action: Action) -> None:
        """Call ``action`` at a time, among those of the same time in the order of numbers (:attr:`number`)."""
        heapq.heappush(self._timers, (when, number, action))

    def halt(self) -> None:
        """Let nothing happen after what happens now."""
        self._is_over = True

    def run(self, until: float = NEVER) -> None:
        """Go on until nothing is left to happen, or to a time."""
        timers, ends, places, pop = self._timers, self.ends, self._places, heapq.heappop
        while not self._is_over:
            end = min(ends) if ends else NEVER
            if timers and timers[0][0] < end:
                if timers[0][0] > until:
                    break
                self.now, _, action = pop(timers)
                action()
            elif end <= until and end != NEVER:
                self.now = end
                places[ends.index(end)]()
            else:
                break
        if until != NEVER:
            self.now = max(self.now, until)
