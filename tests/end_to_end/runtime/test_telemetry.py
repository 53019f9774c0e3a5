"""Spans of requests and stages, in the caller's trace, when the application uses OpenTelemetry; nothing otherwise."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pipelines import make_pipeline

from omni_core.client import open_async
from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.errors import RequestFailedError
from omni_core.protocol.messages import OmniRequest


@pytest.fixture(scope="module")
def provider() -> TracerProvider:
    """The SDK, set up once: OpenTelemetry refuses a second time."""
    made = TracerProvider()
    trace.set_tracer_provider(made)
    return made


@pytest.fixture
def exporter(provider: TracerProvider) -> Iterator[InMemorySpanExporter]:
    made = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(made))
    yield made
    made.shutdown()


def three(folder: Path) -> PipelineConfig:
    names = ["start", "middle", "end"]
    return make_pipeline(
        folder,
        *(
            StageConfig(
                name=name,
                factory=f"pipeline_stages:{name}",
                process=name,
                next=names[number + 1] if number < 2 else None,
                terminal=number == 2,
            )
            for number, name in enumerate(names)
        ),
    )


async def spans_of(exporter: InMemorySpanExporter, count: int) -> dict[str, list[object]]:
    for _ in range(1000):
        if len(exporter.get_finished_spans()) >= count:
            break
        await asyncio.sleep(0.02)
    found: dict[str, list[object]] = {}
    for span in exporter.get_finished_spans():
        found.setdefault(span.name, []).append(span)
    return found


async def test_a_request_inside_a_span_is_part_of_its_trace(run_folder: Path, exporter: InMemorySpanExporter) -> None:
    tracer = trace.get_tracer("test")
    async with open_async(three(run_folder)) as client:
        with tracer.start_as_current_span("outer") as outer:
            await client.submit(OmniRequest({"sleep": 0.05}), "r1")
        spans = await spans_of(exporter, 5)
    (request,) = spans["omni.request"]
    assert request.parent.span_id == outer.get_span_context().span_id  # type: ignore[attr-defined]
    assert request.attributes["omni.request_id"] == "r1"  # type: ignore[attr-defined]
    for name in ("start", "middle", "end"):
        (stage,) = spans[name]
        assert stage.parent.span_id == request.context.span_id  # type: ignore[attr-defined]
        assert request.start_time <= stage.start_time + 1_000_000_000  # type: ignore[attr-defined]
    (middle,) = spans["middle"]
    assert 45e6 < middle.end_time - middle.start_time < 30e9  # type: ignore[attr-defined]


async def test_a_traceparent_in_the_metadata_is_continued_and_failures_are_marked(
    run_folder: Path, exporter: InMemorySpanExporter
) -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with open_async(three(run_folder)) as client:
        with pytest.raises(RequestFailedError):
            await client.submit(OmniRequest({"poison": "exception"}, metadata={"traceparent": parent}))
        spans = await spans_of(exporter, 2)
    (request,) = spans["omni.request"]
    assert f"{request.context.trace_id:032x}" == parent.split("-")[1]  # type: ignore[attr-defined]
    assert f"{request.parent.span_id:016x}" == parent.split("-")[2]  # type: ignore[attr-defined]
    assert request.status.status_code is trace.StatusCode.ERROR  # type: ignore[attr-defined]
    assert spans["start"][0].status.description == "ValueError"  # type: ignore[attr-defined]


def test_nothing_is_imported_for_an_application_without_it() -> None:
    script = "import omni_core.client, sys; print('opentelemetry' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
