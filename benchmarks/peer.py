"""Runs the pipelines of sglang-omni 0.1.9, the peer of the runtime benchmark, in its own virtual environment.

    VENV/bin/python benchmarks/peer.py --serve SHAPE...

Started by ``peer_running``, this file builds the pipeline of that shape and runs the workloads that it reads from
stdin, one JSON document per line in both directions; the peer's own output goes to stderr. At module level only the
standard library is imported: the benchmark, the served side and the peer's stage processes all import this file.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import statistics
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import IO, Any

PEER_NAME = "sglang-omni"
START_SECONDS = 300.0
MEASURE_SECONDS = 1200.0
STOP_SECONDS = 60.0


class PeerError(RuntimeError):
    """The peer did not start, failed a workload or died; the message ends with its last output."""


class Peer:
    """A served pipeline of the peer's, from the benchmark's side."""

    def __init__(self, process: Process, log: IO[bytes]) -> None:
        self._process = process
        self._log = log
        self.stages: list[int] = []

    async def wait_ready(self) -> None:
        self.stages = (await self._answer(START_SECONDS))["stages"]

    async def measure(self, workload: str, **arguments: Any) -> float:
        """Run one round of a function of ``workloads.py``."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"workload": workload, "arguments": arguments}).encode() + b"\n")
        with suppress(ConnectionError):  # a dead peer is noticed by the missing answer
            await self._process.stdin.drain()
        return float((await self._answer(MEASURE_SECONDS))["figure"])

    async def _answer(self, seconds: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        try:
            line = await asyncio.wait_for(self._process.stdout.readline(), seconds)
        except TimeoutError:
            raise PeerError(f"{PEER_NAME} did not answer within {seconds:g} s:\n{self._log_tail()}") from None
        answer: dict[str, Any] = json.loads(line) if line else {"error": "it ended"}
        if "error" in answer:
            raise PeerError(f"{PEER_NAME}: {answer['error']}\n{self._log_tail()}")
        return answer

    def _log_tail(self) -> str:
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - 4000))
        return self._log.read().decode(errors="replace")

    async def stop(self) -> None:
        """Close stdin, which stops the pipeline; kill what is still alive, the stages before their parent."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), STOP_SECONDS)
        except TimeoutError:
            for pid in (*self.stages, self._process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, 9)
            await self._process.wait()


@asynccontextmanager
async def peer_running(venv: Path, *shape: str) -> AsyncIterator[Peer]:
    """A pipeline of the peer's, ready to measure."""
    environment = {**os.environ, "SGLANG_USE_CPU_ENGINE": "1"}
    environment.pop("PYTHONPATH", None)  # of our environment, not of the peer's
    with tempfile.TemporaryFile() as log:
        process = await asyncio.create_subprocess_exec(
            str(venv / "bin" / "python"), __file__, "--serve", *shape,
            stdin=PIPE, stdout=PIPE, stderr=log, env=environment,
        )  # fmt: skip
        peer = Peer(process, log)
        try:
            await peer.wait_ready()
            yield peer
        finally:
            await peer.stop()


async def peer_start(venv: Path) -> tuple[float, float]:
    """Return the seconds from the start of the process to a ready pipeline of three no-op processes, and the median of
    their USS in MB.
    """
    import psutil

    begin = time.perf_counter()
    async with peer_running(venv, "chain", "3", "0") as peer:
        seconds = time.perf_counter() - begin
        await peer.measure("latency", count=1)
        return seconds, statistics.median(psutil.Process(pid).memory_full_info().uss for pid in peer.stages) / 1e6


# --- the served side, in the peer's environment ----------------------------------------------------------------------
def hide_torchvision() -> None:
    """Hide a package: its build for GPUs breaks the import of transformers beside a torch for CPUs, and no stage here
    needs it.
    """
    sys.modules.setdefault("torchvision", None)  # type: ignore[arg-type]


def pipeline(shape: str, *arguments: str) -> Any:
    """Return the ``PipelineConfig`` of a shape, such as ``chain 3 0``."""
    from sglang_omni.config.schema import PipelineConfig, StageConfig

    def stage(name: str, factory: str, process: str | None = None, **fields: Any) -> Any:
        return StageConfig(name=name, factory_path=f"peer_stages.{factory}", process=process or name, **fields)

    def chain(factories: list[str], process: str | None) -> list[Any]:
        last = len(factories) - 1
        return [
            stage(f"s{i}", factory, process, **({"terminal": True} if i == last else {"next": f"s{i + 1}"}))
            for i, factory in enumerate(factories)
        ]

    branches = ["image_encoder", "audio_encoder", "aggregate"]
    if shape == "chain":
        number, together = arguments
        stages = chain(["entry", *["noop"] * (int(number) - 1)], "all" if together == "1" else None)
    elif shape == "tensors":
        stages = chain(["attach", "noop", "read"], None)
    elif shape == "diamond":
        sources, fan_in = ["preprocess", *branches[:2]], "peer_stages.merge"
        stages = [
            stage("preprocess", "entry", next=branches),
            *(stage(name, "noop", next="aggregate") for name in branches[:2]),
            stage("aggregate", "noop", wait_for=sources, merge_fn=fan_in, terminal=True),
        ]
    elif shape == "stream":
        stages = [
            stage("producer", "Producer", next="consumer", stream_to=["consumer"]),
            stage("consumer", "Consumer", terminal=True, can_accept_stream_before_payload=True),
        ]
    else:
        raise ValueError(f"unknown shape {shape!r}")
    return PipelineConfig(model_path="none", stages=stages)


async def serve(answers: IO[str], *shape: str) -> None:
    """Run the pipeline, report the processes of its stages, and measure line by line until stdin ends."""
    import workloads
    from sglang_omni.pipeline.mp_runner import MultiProcessPipelineRunner
    from sglang_omni.proto import OmniRequest

    def answer(**fields: Any) -> None:
        print(json.dumps(fields), file=answers, flush=True)

    logging.getLogger().setLevel(logging.WARNING)  # otherwise a log line per request would be measured
    runner = MultiProcessPipelineRunner(pipeline(*shape))
    await runner.start()
    try:
        names = itertools.count()

        async def submit(inputs: Any) -> Any:
            return await runner.coordinator.submit(f"r{next(names)}", OmniRequest(inputs=inputs))

        answer(stages=[process.pid for group in runner.groups for process in group.processes])
        while line := await asyncio.to_thread(sys.stdin.readline):
            order = json.loads(line)
            try:
                answer(figure=await getattr(workloads, order["workload"])(submit, **order["arguments"]))
            except Exception as error:
                answer(error=repr(error))
    finally:
        await runner.stop()


def main() -> None:
    """Keep stdout for answers alone, then serve."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    asyncio.run(serve(answers, *sys.argv[2:]))


if __name__ in ("__main__", "__mp_main__"):  # the second is the name of this file in a stage process
    hide_torchvision()
if __name__ == "__main__":
    if sys.argv[1:2] != ["--serve"]:
        raise SystemExit(__doc__)
    main()
