"""Image requests of mixed numbers of steps: omni's stages beside diffusers' pipeline, in turns, in one process.

    python benchmarks/diffusion.py [--rounds 5] [--requests 8] [--quick] [--json FILE]

Eight requests of one size and of different numbers of steps, on a checkpoint of about 40 M with random weights, on one thread.
``one by one``: diffusers makes each image alone. ``static batch``: diffusers makes one batch of those with equal numbers of steps.
``longest``: one batch of all, with the largest number of steps, as a server without a step scheduler has to. ``arrivals``: a
request arrives after every tenth of the time that all take together; a static batch takes those of one number of steps that wait when
it begins; the figure is the mean time from an arrival to its image. A ratio over 1: ours is better.
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
from omni_qwen_image.decoder import create_decoder
from omni_qwen_image.denoiser import create_denoiser
from omni_qwen_image.encoder import create_encoder
from omni_qwen_image.tiny_checkpoint import write_tiny_checkpoint

STEPS = [4, 12, 6, 20, 4, 8, 12, 6]
SIZE = 128


class Ours:
    """The three stages in turn, in one thread."""

    def __init__(self, folder: str) -> None:
        self.stages = [create_encoder(folder, prompt_cache=0), create_denoiser(folder), create_decoder(folder)]
        self.groups = [Groups("encode", parts), Groups("denoise", None), Groups("decode", None)]
        self.given: dict[str, OmniRequest] = {}
        self.done: dict[str, float] = {}

    def put(self, name: str, steps: int) -> None:
        params = {"steps": steps, "width": SIZE, "height": SIZE, "seed": steps}
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

    def __init__(self, folder: str) -> None:
        from diffusers import QwenImagePipeline

        self.pipe = QwenImagePipeline.from_pretrained(folder)
        self.pipe.set_progress_bar_config(disable=True)

    def make(self, names: list[str], steps: int) -> None:
        self.pipe(
            prompt=[f"a red circle {name}" for name in names],
            negative_prompt=[" "] * len(names),
            width=SIZE,
            height=SIZE,
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

    def static() -> None:
        for steps in sorted(set(asked.values())):
            theirs.make([name for name, each in asked.items() if each == steps], steps)

    def longest() -> None:
        theirs.make(list(asked), max(asked.values()))

    return {
        "ours": timed(together),
        "one by one": timed(one_by_one),
        "static batch": timed(static),
        "longest": timed(longest),
    }


def timed(work: Callable[[], None]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def arriving(ours: Ours, theirs: Theirs, asked: dict[str, int], every: float) -> dict[str, float]:
    """Return the mean seconds from a request's arrival to its image; one arrives every ``every`` seconds."""
    waits = {}
    begin, due, ours.done = time.perf_counter(), dict(enumerate(asked.items())), {}
    while len(ours.done) < len(asked):
        now = time.perf_counter() - begin
        for number in [number for number in due if number * every <= now]:
            ours.put(*due.pop(number))
        if not ours.turn():
            time.sleep(0.001)
    arrived = {name: begin + number * every for number, name in enumerate(asked)}
    waits["ours"] = statistics.mean(ours.done[name] - arrived[name] for name in asked)
    begin, due, done = time.perf_counter(), dict(enumerate(asked.items())), {}
    waiting: dict[str, int] = {}
    while len(done) < len(asked):
        now = time.perf_counter() - begin
        for number in [number for number in due if number * every <= now]:
            name, steps = due.pop(number)
            waiting[name] = steps
        if not waiting:
            time.sleep(0.001)
            continue
        first = next(iter(waiting.values()))
        batch = [name for name, steps in waiting.items() if steps == first]
        theirs.make(batch, first)
        for name in batch:
            del waiting[name]
            done[name] = time.perf_counter()
    arrived = {name: begin + number * every for number, name in enumerate(asked)}
    waits["static batch"] = statistics.mean(done[name] - arrived[name] for name in asked)
    return waits


@click.command()
@click.option("--rounds", default=5, show_default=True)
@click.option("--requests", default=8, show_default=True)
@quick_option
@json_option
def main(rounds: int, requests: int, quick: bool, json_path: Path | None) -> None:
    torch.set_num_threads(1)
    asked = {f"r{number}": STEPS[number % len(STEPS)] for number in range(requests)}
    with tempfile.TemporaryDirectory() as folder:
        path = str(write_tiny_checkpoint(Path(folder) / "mid", shape="mid"))
        ours, theirs = Ours(path), Theirs(path)
    at_once(ours, theirs, {"warm": 2})
    found: dict[str, list[float]] = {}
    for _ in range(2 if quick else rounds):
        seconds = at_once(ours, theirs, asked)
        waits = arriving(ours, theirs, asked, seconds["ours"] / 10)
        for name, value in seconds.items():
            found.setdefault(name, []).append(value)
        for name, value in waits.items():
            found.setdefault(f"arrivals, {name}", []).append(value)
    rows = [
        compare(f"{requests} requests", "s", found["ours"], found[other], f"diffusers, {other}", higher_is_better=False)
        for other in ("one by one", "static batch", "longest")
    ]
    waits = [found[f"arrivals, {name}"] for name in ("ours", "static batch")]
    rows.append(compare("arrivals, mean wait", "s", *waits, "diffusers, static batch", higher_is_better=False))
    publish(rows, json_path)


if __name__ == "__main__":
    main()
