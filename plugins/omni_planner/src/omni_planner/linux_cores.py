"""The processors of a simulated machine as Linux gives them out (docs/decisions/0065-processors-as-linux-gives-them.md)."""

from __future__ import annotations

import heapq
import math

from omni_planner.machine import NEVER, Clock, Cores, Process

HOT = 0.0005
"""Seconds after a process has run in which no other processor takes it: Linux's ``migration_cost``."""

HALF_LIFE = 0.032
"""Seconds after which use of a processor counts half in its average: Linux's per-entity load tracking."""

TRIES = 2
"""Ticks at which a free processor leaves what has just run elsewhere there."""

FALLS = 8
"""Times that a processor falls idle for each time that it takes work from another one. Linux 6.18 did so one time of 4 to 24, by load, in
which there was some to take."""


class LinuxCores(Cores):
    """The processors of a machine as Linux gives them to processes: each has a queue of its own.

    A process that wakes goes to the processor where it ran last, if that one is free, or else to another free one; but where processors
    are much used, nobody looks for another one (``SIS_UTIL`` of Linux 6.0 and later). Of the processes of a processor the one that is
    furthest behind the mean of what they have had is next, and takes the place of one that has had more when it wakes; what it is behind
    or ahead when it sleeps it is when it wakes (EEVDF: Stoica and Abdel-Wahab, 1995; Linux 6.6 and later). A processor that falls idle
    seldom takes work from others, one that is idle at a tick does; none takes what has just run elsewhere.
    """

    __slots__ = ("_count", "_failed", "_falls", "_is_balancing", "_may_wait", "_most_used", "_share", "_since")

    def __init__(self, clock: Clock, first: int, cores: int, tick: float) -> None:
        super().__init__(clock, first, cores, tick)
        # An average processor may be used so much: Linux looks at `cores * (1 - 1.17 * used ** 2)` of them, 1.17 its `imbalance_pct`.
        self._most_used = math.sqrt((1.0 - 1.0 / cores) / 1.17)
        self._share = self._since = 0.0
        self._count = self._failed = self._falls = 0
        self._is_balancing = self._may_wait = False  # the second: whether a queue may hold a process

    def wake(self, process: Process) -> None:
        core = process.home
        if core < 0 or self.running[core] is not None:
            self._look()
            if core < 0 or (self._count < self.total and self._share < self._most_used):
                found = self._freed()
                core = found if found >= 0 else core
            if core < 0:
                core = min(range(self.total), key=lambda each: len(self._queues[each]))
        else:
            self._free.remove(core)
        process.home = core
        running = self.running[core]
        if running is None:
            self._begin(process, core)
            return
        now, queue = self.clock.now, self._queues[core]
        used = running.used + (now - running.began if running.current is not None else 0.0)
        count = 1 + len(queue)
        behind = process.behind
        if behind < 0.0:  # it has slept meanwhile
            behind = min(0.0, behind + now - process.began)
        process.used = (used + sum(each[0] for each in queue)) / count - behind * (count + 1) / count
        if process.used < used and running.current is not None:
            self._stop(running)
            heapq.heappush(queue, (running.used, self.clock.number(), running))
            running.core, running.current = -1, None
            self._run(process, core)
        else:
            heapq.heappush(queue, (process.used, self.clock.number(), process))
            if running.current is not None:
                self.expect(running, running.current)
        self._may_wait = True
        self._expect_balance()

    def _freed(self) -> int:
        known = len(self.running)
        core = super()._freed()
        if len(self.running) > known:
            self._queues[core] = []
        return core

    def _look(self) -> None:
        """Bring the share of the processors that were used lately up to date."""
        now = self.clock.now
        if now > self._since:
            self._share += (self._count / self.total - self._share) * (1.0 - 0.5 ** ((now - self._since) / HALF_LIFE))
            self._since = now

    def _begin(self, process: Process, core: int) -> None:
        """Run a process on a processor that was free."""
        self._look()
        self._count += 1
        self._run(process, core)

    def _leave(self, process: Process) -> None:
        core, process.core, process.current = process.core, -1, None
        queue = self._queues[core]
        process.behind = 0.0
        if queue:
            behind = (process.used + sum(each[0] for each in queue)) / (1 + len(queue)) - process.used
            process.behind = min(max(behind, -self._tick), self._tick)
            self._run(heapq.heappop(queue)[2], core)
            return
        self._look()
        self._count -= 1
        self.running[core] = None
        self.clock.ends[self.first + core] = NEVER
        self._free.append(core)
        self._falls += 1
        if self._may_wait and (self._falls % FALLS or not self._pull(core)):
            self._expect_balance()

    def _pull(self, core: int, slept: float = HOT) -> bool:
        """Let a free processor take the process that waits for another one and has not run for longest; ``False``: none has waited for so
        long.
        """
        latest, found = self.clock.now - slept, None
        for queue in self._queues:
            for entry in queue:
                if entry[2].began <= latest and (found is None or entry[2].began < found[2].began):
                    found = entry
        if found is None:
            return False
        process = found[2]
        self._queues[process.home].remove(found)
        heapq.heapify(self._queues[process.home])
        self._free.remove(core)
        self._begin(process, core)
        return True

    def _expect_balance(self) -> None:
        """Look at the next tick for processes that wait while a processor is free."""
        if self._is_balancing or self._count == self.total:
            return
        self._is_balancing = self._may_wait = any(self._queues)
        if self._is_balancing:
            now, tick = self.clock.now, self._tick
            left = (now // tick + 1.0) * tick - now
            self.clock.after(left if left > 0.0 and now + left > now else left + tick, self._balance)

    def _balance(self) -> None:
        self._is_balancing = False
        while any(self._queues) and (core := self._freed()) >= 0:
            self._free.append(core)
            if not self._pull(core, HOT if self._failed < TRIES else 0.0):
                self._failed += 1
                break
            self._failed = 0
        self._expect_balance()
