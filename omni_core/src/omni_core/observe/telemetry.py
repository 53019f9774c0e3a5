"""OpenTelemetry: a span for every request and stage, made in the parent by a service if the application uses OpenTelemetry.

Stage processes only report times. Nothing of OpenTelemetry is imported by this package.
"""

from __future__ import annotations

import logging
from typing import Protocol

from omni_core import __version__
from omni_core.errors import PluginError
from omni_core.protocol.messages import OmniRequest, StageSpan
from omni_core.references import imported
from omni_core.services import TELEMETRY

logger = logging.getLogger(__name__)

TRACEPARENT = "traceparent"


class Telemetry(Protocol):
    """The spans of one pipeline's requests. Called from the coordinator's event loop."""

    def begin(self, request_id: str, request: OmniRequest) -> OmniRequest:
        """Open the span of a request; return the request with the context that its stages see."""

    def stage(self, request_id: str, report: StageSpan) -> None:
        """Add the span of one stage."""

    def end(self, request_id: str, state: str, error: BaseException | None) -> None:
        """Close the span of a request."""


def telemetry(pipeline: str) -> Telemetry | None:
    """Return a maker of spans if this process uses OpenTelemetry: its API was imported and has a provider that records."""
    trace = imported("opentelemetry.trace")
    provider = None if trace is None else trace.get_tracer_provider()
    if provider is None or isinstance(provider, trace.NoOpTracerProvider | trace.ProxyTracerProvider):
        return None
    try:
        return TELEMETRY.need("OpenTelemetry spans need")(trace, provider.get_tracer("omni", __version__), pipeline)
    except PluginError as error:
        logger.warning("requests make no spans: %s", error)
        return None
