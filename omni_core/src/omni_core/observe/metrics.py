"""The counters of a stage: plain numbers, cheap enough to be always on, read over the control channel.

Times are seconds. A histogram's buckets grow by powers of two, so a quantile is right within a factor of two and usually far
better (it is interpolated).
"""

from __future__ import annotations

from collections import defaultdict

from attrs import define, field

_SMALLEST = 1e-5
_BUCKETS = 26
"""From 10 us to about 5 minutes."""


@define
class Histogram:
    """Counts of durations by size."""

    counts: list[int] = field(factory=lambda: [0] * (_BUCKETS + 1))
    total: float = 0.0

    def observe(self, seconds: float) -> None:
        """Count a duration."""
        self.total += seconds
        self.counts[min(_BUCKETS, max(0, int(seconds / _SMALLEST)).bit_length())] += 1

    def quantile(self, share: float) -> float:
        """The duration below which ``share`` of the observations lie; 0 when there are none."""
        wanted = share * sum(self.counts)
        seen = 0
        for index, count in enumerate(self.counts):
            if count and seen + count >= wanted:
                low, high = (0.0 if index == 0 else _bound(index - 1)), _bound(index)
                return low + (high - low) * (wanted - seen) / count
            seen += count
        return 0.0

    def as_counters(self, name: str) -> dict[str, float]:
        """``NAME.count``, ``NAME.sum``, ``NAME.p50``, ``NAME.p99``, and ``NAME.le.BOUND`` for every bucket in use (cumulative)."""
        counters = {f"{name}.count": float(sum(self.counts)), f"{name}.sum": self.total}
        if counters[f"{name}.count"]:
            counters |= {f"{name}.p50": self.quantile(0.5), f"{name}.p99": self.quantile(0.99)}
        cumulative = 0
        for index, count in enumerate(self.counts):
            cumulative += count
            if count:
                counters[f"{name}.le.{_bound(index):g}"] = float(cumulative)
        return counters


def _bound(index: int) -> float:
    return _SMALLEST * float(1 << index)


@define
class EdgeCounters:
    """Counters of one target: messages, their bytes (0 within a process), and the seconds of sending them."""

    messages: int = 0
    nbytes: int = 0
    seconds: float = 0.0


@define
class StageMetrics:
    """The counters of one stage since its process started."""

    completed: int = 0
    failed: int = 0
    aborted: int = 0
    latency: Histogram = field(factory=Histogram)
    edges: defaultdict[str, EdgeCounters] = field(factory=lambda: defaultdict(EdgeCounters))

    def sent(self, target: str, nbytes: int, seconds: float) -> None:
        """Count a message to ``target``."""
        edge = self.edges[target]
        edge.messages += 1
        edge.nbytes += nbytes
        edge.seconds += seconds

    def as_counters(self) -> dict[str, float]:
        """All counters by name; those of a target as ``edge.TARGET.messages``, ``.bytes`` and ``.seconds``."""
        counters = {
            "completed": float(self.completed),
            "failed": float(self.failed),
            "aborted": float(self.aborted),
            **self.latency.as_counters("latency"),
        }
        for target, edge in self.edges.items():
            counters[f"edge.{target}.messages"] = float(edge.messages)
            counters[f"edge.{target}.bytes"] = float(edge.nbytes)
            counters[f"edge.{target}.seconds"] = edge.seconds
        return counters
