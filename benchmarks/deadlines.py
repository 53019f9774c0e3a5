"""Late sound with deadlines and without: the demo at 8, 16, 32 and 64 requests at once, in turns.

    python benchmarks/deadlines.py [--quick] [--json FILE] [--load N ...] [--checkpoint mid|DIR] [--frames N] [--dtype D]
        [--requests N] [--growth]

Two pipelines of the same checkpoint are open, one with ``policy`` by deadlines and one in the order of arrival, and take turns under
the same closed loop. A listener plays from the first piece of sound at real time; a piece that comes when nothing is left to play is late,
with all of its seconds. ``ours`` is the policy by deadlines, ``other`` the order of arrival; with ``--growth`` pieces of sound that grow
beside pieces of one size after the first, both in the order of arrival. A ratio above 1 means less late sound, or more sound per second.
Needs a machine that does nothing else.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import click
from attrs import define, field, frozen
from report import Row, compare, json_option, publish, quick_option

import omni_core
from omni_core.client import AsyncPipe
from omni_core.client.chat_request import chat_request
from omni_core.protocol.messages import OmniRequest
from omni_core.protocol.outputs import AudioChunk

TEXTS = ("What is your name?", "Say hello.", "Who are you?", "How are you?")
DEADLINES = "omni_torch.vocoder.deadlines:Deadlines"
STAGES = ("thinker", "talker_ar", "code2wav")


@define
class Heard:
    """Sound as one listener heard it.

    Attributes:
        sound: seconds. late: seconds of the pieces that came too late. pauses: seconds. first: seconds to the first piece.
    """

    sound: float = 0.0
    late: float = 0.0
    pauses: float = 0.0
    first: float = 0.0

    @classmethod
    def of(cls, begin: float, pieces: Sequence[tuple[float, float]]) -> Heard:
        """Play pieces, each the moment of its arrival and its seconds."""
        heard, until = cls(), None
        for arrival, seconds in pieces:
            if until is None:
                heard.first = arrival - begin
                until = arrival
            elif arrival > until:
                heard.late += seconds
                heard.pauses += arrival - until
                until = arrival
            until += seconds
            heard.sound += seconds
        return heard


@frozen
class Round:
    """One closed loop: how long it took, and what its listeners heard."""

    seconds: float
    heard: list[Heard]

    @property
    def late(self) -> float:
        """The share of the sound that was late, in percent."""
        return 100 * sum(each.late for each in self.heard) / sum(each.sound for each in self.heard)

    @property
    def pauses(self) -> float:
        """The seconds of pauses that were heard, in percent of the sound."""
        return 100 * sum(each.pauses for each in self.heard) / sum(each.sound for each in self.heard)

    @property
    def rate(self) -> float:
        """Seconds of sound made per second."""
        return sum(each.sound for each in self.heard) / self.seconds

    @property
    def first(self) -> float:
        """Milliseconds to the first sound that 95 of 100 had."""
        return 1000 * statistics.quantiles([each.first for each in self.heard], n=20)[-1]


async def listen(pipe: AsyncPipe, request: OmniRequest) -> Heard:
    """Run one request."""
    begin, pieces = time.perf_counter(), list[tuple[float, float]]()
    async for event in pipe.stream(request):
        if isinstance(event.data, AudioChunk):
            pieces.append((time.perf_counter(), len(event.data.samples) / event.data.sample_rate))
    return Heard.of(begin, pieces)


async def run_round(pipe: AsyncPipe, requests: Sequence[OmniRequest], at_once: int, total: int) -> Round:
    """Keep so many requests under way until all have been asked. What the first of them hear is left out: they come all at once."""
    numbers, heard, begin = iter(range(at_once + total)), list[Heard](), time.perf_counter()

    async def client() -> None:
        nonlocal begin
        for number in numbers:
            if number == at_once:
                begin = time.perf_counter()
            found = await listen(pipe, requests[number % len(requests)])
            if number >= at_once:
                heard.append(found)

    await asyncio.gather(*(client() for _ in range(at_once)))
    return Round(time.perf_counter() - begin, heard)


@define
class Load:
    """The rounds of one number of requests at once."""

    at_once: int
    other_name: str
    ours: list[Round] = field(factory=list)
    other: list[Round] = field(factory=list)

    def rows(self) -> list[Row]:
        """Return the figures."""
        return [
            compare(
                f"{self.at_once} at once: {what}",
                unit,
                [getattr(each, name) for each in self.ours],
                [getattr(each, name) for each in self.other],
                self.other_name,
                higher_is_better=name == "rate",
            )
            for what, unit, name in (
                ("late sound", "%", "late"),
                ("pauses", "%", "pauses"),
                ("sound per second", "s/s", "rate"),
                ("first sound p95", "ms", "first"),
            )
        ]


async def run(
    loads: Sequence[int], rounds: int, each: int, checkpoint: str | None, frames: int, dtype: str | None, growth: bool
) -> list[Row]:
    """Open both pipelines and let them take turns. A checkpoint's speech has so many ``frames``; the demo ends by itself."""
    found = [Load(at_once, "of one size" if growth else "in order") for at_once in loads]
    model = {} if checkpoint is None else {"model": checkpoint}
    name = "demo" if checkpoint is None else "qwen3-omni"
    async with AsyncExitStack() as stack:
        given = {} if dtype is None else {f"{stage}.factory_args.dtype": dtype for stage in STAGES[:2]}
        by_deadlines = {f"{stage}.factory_args.policy": DEADLINES for stage in STAGES}
        of_ours, of_other = ({}, {f"{STAGES[2]}.factory_args.growth": None}) if growth else (by_deadlines, {})
        ours = await stack.enter_async_context(omni_core.open_async(name, **model, set={**given, **of_ours}))
        other = await stack.enter_async_context(omni_core.open_async(name, **model, set={**given, **of_other}))
        requests = [await chat_request(ours.interface, ours.media, text) for text in TEXTS]
        if checkpoint is not None:
            for request in requests:
                request.params["thinker"] = {"max_new_tokens": 32, "ignore_eos": True, "seed": 1}
                request.params["talker"] = {"max_new_tokens": frames, "seed": 1}
        for pipe in (ours, other):
            await run_round(pipe, requests, 8, 24)  # predictions are learnt, kernels are warm
        for load in found:
            for turn in range(rounds):
                pairs = [(ours, load.ours), (other, load.other)]
                for pipe, into in pairs if turn % 2 else reversed(pairs):
                    into.append(await run_round(pipe, requests, load.at_once, each * load.at_once))
    return [row for load in found for row in load.rows()]


@click.command()
@quick_option
@json_option
@click.option(
    "--load", "loads", type=int, multiple=True, help="Requests at once; may be repeated.  [default: 8 16 32 64]"
)
@click.option("--checkpoint", help="A folder of a Qwen3-Omni checkpoint, or `mid`: a random one of middle size.")
@click.option(
    "--frames",
    type=click.IntRange(1),
    default=60,
    show_default=True,
    help="Speech of a checkpoint's request; 12.5 are 1 s.",
)
@click.option(
    "--requests",
    "each",
    type=click.IntRange(1),
    help="Requests of each client that count.  [default: 4, or 3 with --quick]",
)
@click.option("--growth", is_flag=True, help="Compare pieces that grow with pieces of one size, not deadlines.")
@click.option("--dtype", help="Of the thinker and the talker, such as bfloat16.")
def main(
    quick: bool,
    json_path: Path | None,
    loads: tuple[int, ...],
    checkpoint: str | None,
    frames: int,
    each: int | None,
    dtype: str | None,
    growth: bool,
) -> None:
    """By deadline beside in order of arrival."""
    loads = loads or ((8, 32) if quick else (8, 16, 32, 64))
    with tempfile.TemporaryDirectory() as folder:
        if checkpoint == "mid":
            from omni_testing.tiny.qwen3 import write_tiny_checkpoint

            checkpoint = str(write_tiny_checkpoint(Path(folder) / "mid", shape="mid"))
        rows = asyncio.run(
            run(loads, 2 if quick else 5, each or (3 if quick else 4), checkpoint, frames, dtype, growth)
        )
    publish(rows, json_path)


if __name__ == "__main__":
    main()
