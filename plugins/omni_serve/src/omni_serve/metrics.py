"""Metrics in Prometheus' format. One process owns them: stages send their numbers over the control channel when they are asked."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

if TYPE_CHECKING:
    from omni_serve.limits import Admission

Statistics = dict[str, dict[str, dict[str, float]]]

_SECONDS = tuple(2.0**power for power in range(-10, 8))
"""1 ms to 128 s in powers of two."""

_EDGE = ("process", "source", "target")

_ON_EDGE = re.compile(r"edge\.(?P<target>.+)\.(?P<what>bytes|messages|seconds)")
"""A stage's counter of what it has sent to another: bytes only to another process, where a relay or a socket carries them."""


class Metrics:
    """Counts what happens to requests. Labels have few values: no ids, no prompts, no voices."""

    def __init__(self, pipeline: str, admission: Admission) -> None:
        self.registry = CollectorRegistry()
        common: dict[str, Any] = {"registry": self.registry}
        self.requests = Counter("omni_requests", "Requests by endpoint and status", ["endpoint", "status"], **common)
        self.duration = Histogram(
            "omni_request_duration_seconds", "From arrival to the last byte", ["endpoint"], buckets=_SECONDS, **common
        )
        self.ttft = Histogram(
            "omni_request_ttft_seconds", "From arrival to the first piece of text", buckets=_SECONDS, **common
        )
        self.ttfa = Histogram(
            "omni_audio_ttfa_seconds", "From arrival to the first piece of speech", buckets=_SECONDS, **common
        )
        self.gap = Histogram("omni_audio_gap_seconds", "Between pieces of speech", buckets=_SECONDS, **common)
        self.rtf = Histogram(
            "omni_audio_rtf", "Seconds of work per second of speech, from its first piece", buckets=_SECONDS, **common
        )
        self.underruns = Counter(
            "omni_audio_underruns", "Pieces that came too late for a client that plays as it receives", **common
        )
        self.audio_seconds = Counter("omni_audio_seconds", "Speech that was made", **common)
        self.images = Counter("omni_images", "Images that were made", **common)
        self.tokens = Counter("omni_tokens", "Tokens, as far as the pipeline counts them", ["kind"], **common)
        self.cancelled = Counter("omni_requests_cancelled", "Requests whose client went away", **common)
        self._answers: dict[tuple[str, int], tuple[Counter, Histogram]] = {}
        self.of_keys = Counter(
            "omni_key_requests", "Requests by the name of their key, and status", ["key", "status"], **common
        )
        self._of_keys: dict[tuple[str, int], Counter] = {}
        self.sessions = Gauge("omni_sessions", "Open sessions on WebSockets", ["endpoint"], **common)
        self.live = Gauge(
            "omni_live_requests", "Open requests whose input is still coming, or read, by its kind", ["kind"], **common
        )
        self.overruns = Counter(
            "omni_live_overruns", "Turns that are not written down because the recogniser does not keep up", **common
        )
        self._snapshot = _Snapshot(pipeline, admission)
        self.registry.register(self._snapshot)

    def answered(self, endpoint: str, status: int, seconds: float, key: str | None = None) -> None:
        """Count a request that is over. ``endpoint``: the path of its route, not of the request; ``key``: the name of its key."""
        if key is not None:
            counter = self._of_keys.get((key, status))
            if counter is None:
                counter = self._of_keys[key, status] = self.of_keys.labels(key, str(status))
            counter.inc()
        found = self._answers.get((endpoint, status))
        if found is None:  # finding them by their labels takes as long as counting
            found = self.requests.labels(endpoint, str(status)), self.duration.labels(endpoint)
            self._answers[endpoint, status] = found
        found[0].inc()
        found[1].observe(seconds)

    def exposition(self, statistics: Statistics, ready: bool) -> bytes:
        """Return all metrics, with a snapshot of the stages' counters."""
        self._snapshot.statistics, self._snapshot.ready = statistics, ready
        return generate_latest(self.registry)


class _Snapshot:
    """A collector of the numbers that stages and the queue have now."""

    def __init__(self, pipeline: str, admission: Admission) -> None:
        self._pipeline = pipeline
        self._admission = admission
        self.statistics: Statistics = {}
        self.ready = False

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("omni_requests_running", "Requests in the pipeline", self._admission.running)
        yield GaugeMetricFamily("omni_requests_waiting", "Requests in the queue", self._admission.waiting)
        info = GaugeMetricFamily("omni_ready", "1 if every stage serves", labels=["pipeline"])
        info.add_metric([self._pipeline], float(self.ready))
        yield info
        queue = GaugeMetricFamily("omni_stage_queue", "Requests that wait in a stage", labels=["process", "stage"])
        running = GaugeMetricFamily("omni_stage_running", "Requests that a stage computes", labels=["process", "stage"])
        sent = {
            "bytes": CounterMetricFamily("omni_edge_bytes", "Bytes sent from stage to stage", labels=_EDGE),
            "messages": CounterMetricFamily("omni_edge_messages", "Messages from stage to stage", labels=_EDGE),
            "seconds": CounterMetricFamily("omni_edge_seconds", "Time of sending them", labels=_EDGE),
        }
        restarts = CounterMetricFamily("omni_unit_restarts", "Restarts of a process", labels=["process"])
        counters = GaugeMetricFamily(
            "omni_stage_counter", "Further counters of a stage", labels=["process", "stage", "counter"]
        )
        for process, parts in self.statistics.items():
            for part, numbers in parts.items():
                for name, value in numbers.items():
                    if name == "waiting" and part not in ("relay", "process"):
                        queue.add_metric([process, part], value)
                    elif name == "running" and part not in ("relay", "process"):
                        running.add_metric([process, part], value)
                    elif found := _ON_EDGE.fullmatch(name):
                        sent[found["what"]].add_metric([process, part, found["target"]], value)
                    elif part == "process" and name == "restarts":
                        restarts.add_metric([process], value)
                    else:
                        counters.add_metric([process, part, name], value)
        yield from (queue, running, *sent.values(), restarts, counters)
