"""OpenTelemetry: a span for every request, with a span for each of its stages, as part of the caller's trace.

Spans are made in the parent, where the application has set up its SDK; stage processes only report times. So nothing of it is
imported, and nothing is sent, unless the application uses OpenTelemetry. A caller's trace goes on if the request's metadata hold a
W3C ``traceparent``, or if the request is submitted inside a span.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from attrs import evolve

from omni_core.api import OmniRequest
from omni_core.runtime_api import TRACEPARENT, StageSpan

_REMEMBERED = 1_000
"""Requests that have ended and are remembered: the times of their last stages may come later."""


class RequestSpans:
    """The spans of one pipeline's requests. Called from the coordinator's event loop.

    Args:
        api: the module ``opentelemetry.trace``.
        tracer: that of the application's provider.
    """

    def __init__(self, api: Any, tracer: Any, pipeline: str) -> None:
        self._api = api
        self._tracer = tracer
        self._pipeline = pipeline
        self._spans: dict[str, Any] = {}
        self._ended: OrderedDict[str, Any] = OrderedDict()

    def begin(self, request_id: str, request: OmniRequest) -> OmniRequest:
        """Open the span of a request; return the request with the context that its stages see."""
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        propagator = TraceContextTextMapPropagator()
        given = {key: value for key, value in request.metadata.items() if key in (TRACEPARENT, "tracestate")}
        context = propagator.extract(given) if given else None
        attributes = {"omni.pipeline": self._pipeline, "omni.request_id": request_id}
        span = self._tracer.start_span("omni.request", context, attributes=attributes)
        if not span.is_recording():
            return request
        self._spans[request_id] = span
        carrier: dict[str, str] = {}
        propagator.inject(carrier, self._api.set_span_in_context(span))
        return evolve(request, metadata={**request.metadata, **carrier})

    def stage(self, request_id: str, report: StageSpan) -> None:
        """Add the span of one stage."""
        parent = self._spans.get(request_id) or self._ended.get(request_id)
        if parent is None:
            return
        context = self._api.set_span_in_context(parent)
        attributes = {"omni.stage": report.stage}
        span = self._tracer.start_span(report.stage, context, attributes=attributes, start_time=report.begin_ns)
        if report.error:
            span.set_status(self._api.StatusCode.ERROR, report.error)
        span.end(report.end_ns)

    def end(self, request_id: str, state: str, error: BaseException | None) -> None:
        """Close the span of a request."""
        span = self._spans.pop(request_id, None)
        if span is None:
            return
        span.set_attribute("omni.state", state)
        if error is not None:
            span.set_status(self._api.StatusCode.ERROR, str(error))
        span.end()
        self._ended[request_id] = span
        if len(self._ended) > _REMEMBERED:
            self._ended.popitem(last=False)
