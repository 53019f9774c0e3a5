"""Image requests of mixed numbers of steps: omni's stages beside diffusers' pipeline, in turns, in one process.

    python benchmarks/diffusion.py [--rounds 3] [--requests 8] [--quick] [--json FILE]

Eight requests of one size and of different numbers of steps, on a checkpoint of about 40 M with random weights, on one thread.
``one by one``: diffusers makes each image alone. diffusers' pipeline takes one number of steps per call, so a static batch of mixed
requests has two policies. ``grouped``: those of equal numbers of steps are a batch. ``longest``: all are one batch, with the largest
number of steps. First all requests come at once. Then one comes after every sixteenth of the time that all took together, so that the
server is never idle; a static batch takes the requests that wait when it begins (``grouped``: those with the steps of the first).
``throughput`` is requests per second from the first arrival to the last image, ``mean wait`` the seconds from an arrival to its image. A
ratio over 1: ours is better. ``--quick``: one round, six requests, a quarter of the steps, smaller images; a smoke test.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import click
import torch
from report import compare, json_option, publish, quick_option

from omni_core.protocol.messages import OmniRequest, StagePayload
from omni_core.scheduling.base import IncomingMessage
from omni_core.stage.groups import Groups
from omni_diffusion.parts import parts
from omni_diffusion.qwen_image.decoder import create_decoder
from omni_diffusion.qwen_image.denoiser import create_denoiser
from omni_diffusion.qwen_image.encoder import create_encoder
from omni_testing.tiny.qwen_image import write_tiny_checkpoint

STEPS = [4, 12, 6, 20, 4, 8, 12, 6]


class Ours:
    """The three stages in turn, in one thread."""

    def __init__(self, folder: str, size: int) -> None:
        self.size = size
        self.stages = [create_encoder(folder, prompt_cache=0), create_denoiser(folder), create_decoder(folder)]
        self.groups = [Groups("encode", parts), Groups("denoise", None), Groups("decode", None)]
        self.given: dict[str, OmniRequest] = {}
        self.done: dict[str, float] = {}

    def put(self, name: str, steps: int) -> None:
        params = {"steps": steps, "width": self.size, "height": self.size, "seed": steps}
        request = OmniRequest({"messages": [{"role": "user", "content": f"a red circle {name}"}]}, params)
        self.given[name] = request
        self._hand(0, StagePayload(name, request))

    def _hand(self, number: int, payload: StagePayload) -> None:
        message = IncomingMessage(
            payload.request_id, "new_request", payload, None, None, payload.request.without_inputs()
        )
        for part in self.groups[number].expand(message):
            self.stages[number].inbox.put(part)
        if number == 2:
            self.stages[2].inbox.put(IncomingMessage(payload.request_id, "stream_done"))

    def turn(self) -> bool:
        """Let every stage that has work make one turn. Returns whether there was any."""
        worked = False
        for number, stage in enumerate(self.stages):
            if not len(stage.inbox) and not stage.statistics().get("running"):
                continue
            worked = True
            stage.turn()
            for output in stage.outbox.drain():
                whole = self.groups[number].collect(output)
                if whole is None or whole.type == "stream":
                    continue
                if whole.type == "error":
                    raise whole.data
                self.groups[number].end(whole.request_id)
                if number == 2:
                    self.done[whole.request_id] = time.perf_counter()
                else:
                    self._hand(
                        number + 1,
                        StagePayload(whole.request_id, self.given[whole.request_id].without_inputs(), whole.data),
                    )
        return worked


class Theirs:
    """diffusers' pipeline."""

    def __init__(self, folder: str, size: int) -> None:
        from diffusers import QwenImagePipeline

        self.size = size
        self.pipe = QwenImagePipeline.from_pretrained(folder)
        self.pipe.set_progress_bar_config(disable=True)

    def make(self, names: list[str], steps: int) -> None:
        self.pipe(
            prompt=[f"a red circle {name}" for name in names],
            negative_prompt=[" "] * len(names),
            width=self.size,
            height=self.size,
            num_inference_steps=steps,
            generator=[torch.Generator().manual_seed(steps) for _ in names],
            output_type="np",
        )


def at_once(ours: Ours, theirs: Theirs, asked: dict[str, int]) -> dict[str, float]:
    """Return seconds for all requests, by who makes them."""

    def together() -> None:
        for name, steps in asked.items():
            ours.put(name, steps)
        while ours.turn():
            continue

    def one_by_one() -> None:
        for name, steps in asked.items():
            theirs.make([name], steps)

    def grouped() -> None:
        for steps in sorted(set(asked.values())):
            theirs.make([name for name, each in asked.items() if each == steps], steps)

    def longest() -> None:
        theirs.make(list(asked), max(asked.values()))

    return {
        "ours": timed(together),
        "one by one": timed(one_by_one),
        "grouped": timed(grouped),
        "longest": timed(longest),
    }


def timed(work: Callable[[], None]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def arriving(ours: Ours, theirs: Theirs, asked: dict[str, int], every: float) -> dict[str, tuple[float, float]]:
    """Return requests per second and the mean wait in seconds, by who makes the images; one request arrives every ``every`` seconds."""
    ours.done = {}
    found = {"ours": replayed(asked, every, ours.put, ours.turn, ours.done)}
    for policy in ("grouped", "longest"):
        waiting: dict[str, int] = {}
        done: dict[str, float] = {}

        def turn(policy: str = policy, waiting: dict[str, int] = waiting, done: dict[str, float] = done) -> bool:
            if not waiting:
                return False
            first = next(iter(waiting.values()))
            batch = {name: steps for name, steps in waiting.items() if policy == "longest" or steps == first}
            theirs.make(list(batch), max(batch.values()))
            for name in batch:
                del waiting[name]
                done[name] = time.perf_counter()
            return True

        found[policy] = replayed(asked, every, waiting.__setitem__, turn, done)
    return found


def replayed(
    asked: dict[str, int],
    every: float,
    put: Callable[[str, int], None],
    turn: Callable[[], bool],
    done: dict[str, float],
) -> tuple[float, float]:
    """Let requests arrive until all are ``done``. Returns requests per second, and the mean wait."""
    begin, due = time.perf_counter(), list(asked.items())
    while len(done) < len(asked):
        while due and (len(asked) - len(due)) * every <= time.perf_counter() - begin:
            put(*due.pop(0))
        if not turn():
            time.sleep(0.001)
    waits = [done[name] - begin - number * every for number, name in enumerate(asked)]
    return len(asked) / (max(done.values()) - begin), statistics.mean(waits)


@click.command()
@click.option("--rounds", default=3, show_default=True)
@click.option("--requests", default=8, show_default=True)
@quick_option
@json_option
def main(rounds: int, requests: int, quick: bool, json_path: Path | None) -> None:
    torch.set_num_threads(1)
    steps = [max(2, each // 4) for each in STEPS] if quick else STEPS
    requests = min(requests, 6) if quick else requests
    asked = {f"r{number}": steps[number % len(steps)] for number in range(requests)}
    with tempfile.TemporaryDirectory() as folder:
        path = str(write_tiny_checkpoint(Path(folder) / "mid", shape="mid"))
        size = 64 if quick else 128
        ours, theirs = Ours(path, size), Theirs(path, size)
    at_once(ours, theirs, {"warm": 2})
    found: dict[str, list[float]] = {}
    for _ in range(1 if quick else rounds):
        seconds = at_once(ours, theirs, asked)
        for name, value in seconds.items():
            found.setdefault(name, []).append(requests / value)
        for name, values in arriving(ours, theirs, asked, seconds["ours"] / 16).items():
            for figure, value in zip(("throughput", "mean wait"), values, strict=True):
                found.setdefault(f"{figure}, {name}", []).append(value)
    rows = [
        compare("at once, throughput", "1/s", found["ours"], found[other], f"diffusers, {other}", higher_is_better=True)
        for other in ("one by one", "grouped", "longest")
    ]
    rows += [
        compare(
            f"arrivals, {figure}",
            unit,
            found[f"{figure}, ours"],
            found[f"{figure}, {other}"],
            f"diffusers, {other}",
            higher_is_better=figure == "throughput",
        )
        for figure, unit in (("throughput", "1/s"), ("mean wait", "s"))
        for other in ("grouped", "longest")
    ]
    publish(rows, json_path)


if __name__ == "__main__":
    main()
