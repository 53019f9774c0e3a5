"""Conformance of a pipeline: a valid topology, equal answers alone, together and streamed, and nothing left of aborted requests."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attrs import evolve

from omni_cli.deploy.declarations import declaration_problems
from omni_cli.deploy.writing import dump_json, load_config
from omni_core.api import AsyncPipe, EndpointsConfig, OmniError, OmniRequest, PipelineConfig, load_plugins, open_async
from omni_core.runtime_api import StageSpec, StreamEvent, encode, prepare, validate
from omni_testing.driving import driven, started
from omni_testing.outputs import check_outputs

_RESOLVE = """
import sys
from omni_core.references import load
for reference in sys.argv[1:]:
    load(reference)
"""


class PipelineStructureConformance:
    """Tests of a pipeline that need no request: subclass it and return the pipeline from :meth:`config`."""

    def config(self) -> PipelineConfig:
        """Return the pipeline, on a small checkpoint."""
        raise NotImplementedError

    def references(self) -> list[str]:
        """Return the references that the pipeline's processes import."""
        prepared = prepare(self.config(), load_plugins())
        stages = [stage for unit in prepared.units for stage in unit.stages]
        return sorted({reference for stage in stages for reference in _references(stage)})

    def test_its_topology_is_valid(self) -> None:
        validate(self.config())

    def test_its_config_survives_a_file(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "pipeline.json"
            path.write_text(dump_json(self.config()))
            assert load_config(path) == self.config()

    def test_its_interface_says_what_its_stages_are(self) -> None:
        config = self.config()
        if config.interface is not None:
            assert list(declaration_problems(config)) == []
            assert config.interface.inputs, "interface.inputs: name the kinds of message parts that it takes"
            assert config.interface.outputs, "interface.outputs: name the modalities that it answers in"

    def test_every_reference_resolves_in_a_new_process(self) -> None:
        done = subprocess.run(
            [sys.executable, "-c", _RESOLVE, *self.references()],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]


class PipelineConformance(PipelineStructureConformance):
    """Subclass it and return the pipeline and some requests; pytest runs every test."""

    def requests(self) -> list[OmniRequest]:
        """Return requests whose answers are always the same (greedy, or with a seed); at least two different ones."""
        raise NotImplementedError

    def inputs(self) -> list[tuple[OmniRequest, list[Any]]]:
        """Return inputs that come as a stream, at least two different ones if the pipeline takes any: what is known before, and chunks."""
        return []

    def same(self, one: dict[str, Any], other: dict[str, Any]) -> bool:
        """Return whether two answers are equal; the default compares every byte."""
        return encode(one) == encode(other)

    def _open(self, folder: str) -> Any:
        return started(open_async(evolve(self.config(), endpoints=EndpointsConfig(folder))))

    @driven
    async def test_streamed_together_or_alone_it_answers_alike(self) -> None:
        requests = self.requests()
        assert len(requests) > 1, "requests() must give at least two"
        with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder:
            async with self._open(folder) as client:
                alone = [await client.submit(request) for request in requests]
                together = await asyncio.gather(*(client.submit(request) for request in requests))
                streamed = await asyncio.gather(*(_events(client, request) for request in requests))
        for number, (one, other, events) in enumerate(zip(alone, together, streamed, strict=True)):
            final = {event.stage: event.data for event in events if event.final}
            assert self.same(one, other), f"request {number} has another answer beside others"
            assert self.same(one, final), f"request {number} has another answer when it is streamed"
            check_outputs(events, self.config().interface, requests[number])

    @driven
    async def test_an_abort_leaves_nothing(self) -> None:
        requests = self.requests()
        with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder:
            async with self._open(folder) as client:
                expected = await client.submit(requests[0])
                for delay in (0.0, 0.005, 0.02, 0.1):
                    tasks = {f"{delay}-{n}": client.submit(each, f"{delay}-{n}") for n, each in enumerate(requests)}
                    running = [asyncio.ensure_future(each) for each in tasks.values()]
                    await asyncio.sleep(delay)
                    for name in tasks:
                        await client.abort(name)
                    for outcome in await asyncio.gather(*running, return_exceptions=True):
                        assert isinstance(outcome, dict | OmniError), outcome
                assert self.same(await client.submit(requests[0]), expected)
                await _nothing_is_left(client)

    @driven
    async def test_inputs_that_stream_are_answered_alike_and_leave_nothing(self) -> None:
        inputs, interface = self.inputs(), self.config().interface
        takes_streams = interface is not None and bool(interface.input_streams)
        assert (len(inputs) > 1) == takes_streams, (
            "inputs() must give at least two if the interface has input_streams, else none"
        )
        if not takes_streams:
            return
        with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder:
            async with self._open(folder) as client:
                alone = [await _sent(client, *each) for each in inputs]
                together = await asyncio.gather(*(_sent(client, *each) for each in inputs))
                for request, chunks in inputs:
                    async with client.open_request(request) as opened:
                        await opened.send(chunks[0])
                await _nothing_is_left(client)
        for number, (one, other) in enumerate(zip(alone, together, strict=True)):
            assert self.same(one, other), f"input {number} has another answer beside others"


def _references(stage: StageSpec) -> Iterator[str]:
    parts = (stage.factory, stage.model_runner, stage.feedback, stage.scheduler)
    named = (*parts, stage.route_fn, stage.wait_for_fn, stage.merge_fn, stage.stream_done_to_fn)
    yield from (each for each in (*named, *stage.project_payload.values()) if each is not None)


async def _events(client: AsyncPipe, request: OmniRequest) -> list[StreamEvent]:
    return [event async for event in client.stream(request)]


async def _sent(client: AsyncPipe, request: OmniRequest, chunks: list[Any]) -> dict[str, Any]:
    """Send an input while its outputs are read. Return the final ones."""
    async with client.open_request(request) as opened:
        reading = asyncio.ensure_future(opened.results())
        for chunk in chunks:
            await opened.send(chunk)
        await opened.finish()
        return await reading


async def _nothing_is_left(client: AsyncPipe) -> None:
    deadline = time.monotonic() + 10
    while left := _left(await client.statistics()):
        assert time.monotonic() < deadline, f"left of aborted requests: {left}"
        await asyncio.sleep(0.05)


def _left(statistics: dict[str, dict[str, dict[str, float]]]) -> dict[str, float]:
    names = ("in_flight", "queued", "running", "pending", "waiting", "slots_in_use")
    return {
        f"{process}.{part}.{name}": counters[name]
        for process, parts in statistics.items()
        for part, counters in parts.items()
        for name in names
        if counters.get(name)
    }
