"""The view into a running pipeline: counters, profiles, traces, status.

Each process counts (:mod:`omni_core.observe.metrics`) and, while profiling is on, records events that become one Chrome trace
(:mod:`omni_core.observe.recording`). The parent makes OpenTelemetry spans of requests (:mod:`omni_core.observe.telemetry`). Other programs
of the same user ask a running pipeline through its control socket (:class:`~omni_core.protocol.messages.StatusRequest`).
"""

from omni_core.observe.metrics import Histogram, StageMetrics
from omni_core.observe.recording import ProfileSummary, Recorder, StageRecorder

__all__ = ["Histogram", "ProfileSummary", "Recorder", "StageMetrics", "StageRecorder"]
