"""The threads of a process: the processor time that each has used, and how often the first one woke, as the system counts them."""

from __future__ import annotations

from pathlib import Path

from attrs import frozen


@frozen
class Usage:
    """Processor time and wakes of the threads of a process.

    Attributes:
        loop: processor seconds of the first thread, which sends and receives. wakes: how often it began after a wait.
        others: processor seconds of the other threads, which compute.
    """

    loop: float = 0.0
    wakes: int = 0
    others: float = 0.0

    def since(self, before: Usage) -> Usage:
        """Return what was used since."""
        return Usage(self.loop - before.loop, self.wakes - before.wakes, self.others - before.others)


def usage(pid: int) -> Usage | None:
    """Return the usage of a process of this machine; ``None`` where the system does not say."""
    loop, wakes, others = 0.0, 0, 0.0
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            seconds = int((task / "schedstat").read_text().split()[0]) / 1e9
            if task.name != str(pid):
                others += seconds
                continue
            loop = seconds
            lines = (task / "status").read_text().splitlines()
            wakes = next(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))
    except (OSError, ValueError, IndexError, StopIteration):
        return None
    return Usage(loop, wakes, others)
