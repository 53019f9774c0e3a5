"""Speakers of omni-transformers that stream: the time to the first sound and to the last, beside the model's own call, which is whole.

    OMP_NUM_THREADS=1 python benchmarks/first_sound.py [--quick] [--json FILE] [--seconds 10] [--only NAME]

The checkpoints have random weights and are made here (:mod:`larger`). Both compute the same frames with the same seed, in
turns, in one process and one thread; the stage is asked without a pipeline. Times are CPU seconds: other programs disturb them less.

With ``--written``: seconds from the first token of a text that is written at 20 tokens a second to the first sound, where the text is
spoken while it is written, and where it is spoken when it is whole.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import larger
import numpy as np
import torch
import transformers
from report import Row, alone, compare, json_option, publish, quick_option
from tiny_transformers.heard import SAY

from omni_core.api import AudioChunk, IncomingMessage, OmniRequest, Scheduler, StagePayload, TextChunk, load
from omni_transformers.pipeline import transformers as pipeline

TEXTS = {False: "Hello there, my friends.", True: "Hi."}
"""Without and with ``--quick``. Of Pocket TTS and Phonon, 10 and 3 s of sound."""

WRITTEN = (
    "Of course. The fox sleeps by the sea, in a red house with two doors. Nobody knows why it came here, or from where."
)
TOKENS_PER_SECOND, CHARACTERS_PER_TOKEN = 20.0, 4

SEED = 3
WARM = "warm"
"""The request before those that are measured; it ends with its first sound."""


@contextmanager
def started(folder: Path) -> Iterator[Scheduler]:
    """Run the stage of a checkpoint until the end of the block."""
    [stage] = pipeline(str(folder)).stages
    assert stage.factory is not None
    scheduler: Scheduler = load(stage.factory)(str(folder), **stage.factory_args)
    thread = threading.Thread(target=scheduler.start, daemon=True)
    thread.start()
    yield scheduler
    scheduler.stop()
    thread.join()


def ask(
    scheduler: Scheduler, text: str, name: str = "asked", clock: Callable[[], float] = time.process_time
) -> tuple[float, float, np.ndarray]:
    """Speak once; return the seconds to the first sound and to the end, and the sound."""
    request = OmniRequest({"messages": [{"role": "user", "content": text}]}, {"speech": {"seed": SEED}})
    begin = clock()
    scheduler.inbox.put(IncomingMessage(name, "new_request", StagePayload(name, request)))
    first, pieces = 0.0, [np.zeros(0, np.float32)]
    while True:
        message = scheduler.outbox.get(600)
        if message is None or message.type == "error":
            raise SystemExit(f"no sound: {message and message.data}")
        if message.request_id != name:
            continue
        if message.type == "result":
            return first, clock() - begin, np.concatenate(pieces)
        if isinstance(message.data, AudioChunk) and len(message.data.samples):
            first = first or clock() - begin
            pieces.append(message.data.samples)
            if name == WARM:
                scheduler.abort(name)
                return first, first, pieces[-1]


def measure(architecture: str, text: str, seconds: float, rounds: int, folder: Path) -> list[Row]:
    """Speak by both, in turns."""
    size = larger.made(architecture, seconds, folder)
    own: Any = getattr(transformers, architecture).from_pretrained(folder).eval()
    speak = SAY[architecture](own, transformers.AutoTokenizer.from_pretrained(folder), folder)
    interface = pipeline(str(folder)).interface
    assert interface is not None
    firsts, wholes, theirs = [], [], []
    with started(folder) as scheduler:
        ask(scheduler, text, WARM)
        for _ in range(rounds):
            first, whole, samples = ask(scheduler, text)
            torch.manual_seed(SEED)
            begin = time.process_time()
            with torch.inference_mode():
                length = speak(text).numel()
            theirs.append(time.process_time() - begin)
            firsts.append(first)
            wholes.append(whole)
            assert length == len(samples), f"{architecture}: {len(samples)} samples, and {length} by its own call"
    name = f"{architecture.removesuffix('ForConditionalGeneration')}, {size / 1e6:.0f} M"
    return [
        compare(f"{name}, first sound", "CPU s", firsts, theirs, "its own call", higher_is_better=False),
        compare(f"{name}, whole", "CPU s", wholes, theirs, "its own call", higher_is_better=False),
        alone(f"{name}, sound", "s", [len(samples) / interface.sample_rate]),
    ]


def first_of_written(scheduler: Scheduler, *, streams: bool) -> float:
    """Write a text token by token; return the seconds to the first sound of it, spoken while it is written or when it is whole."""
    tokens = [WRITTEN[at : at + CHARACTERS_PER_TOKEN] for at in range(0, len(WRITTEN), CHARACTERS_PER_TOKEN)]
    begin = time.monotonic()

    def put(kind: Any, data: Any = None) -> None:
        scheduler.inbox.put(IncomingMessage(WARM, kind, data))

    def write() -> None:
        for number, token in enumerate(tokens, 1):
            time.sleep(max(0.0, begin + number / TOKENS_PER_SECOND - time.monotonic()))
            if streams:
                put("stream_chunk", TextChunk(token))
        if streams:
            put("stream_done")

    if not streams:
        write()
        ask(scheduler, WRITTEN, WARM)
        return time.monotonic() - begin
    put("new_request", StagePayload(WARM, OmniRequest({"messages": []}, {"speech": {"seed": SEED}})))
    writing = threading.Thread(target=write)
    writing.start()
    message = scheduler.outbox.get(600)
    first = time.monotonic() - begin
    assert message is not None
    assert isinstance(message.data, AudioChunk), message.data
    writing.join()
    scheduler.abort(WARM)
    return first


def measure_written(architecture: str, seconds: float, rounds: int, folder: Path) -> list[Row]:
    """Speak a text while it is written and when it is whole, in turns."""
    size = larger.made(architecture, seconds, folder)
    with started(folder) as scheduler:
        ask(scheduler, "Hello.", WARM)
        figures: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(rounds):
            for streams, found in figures.items():
                found.append(first_of_written(scheduler, streams=streams))
                ask(scheduler, "Hello.", "asked")  # what was aborted is over
    name = f"{architecture.removesuffix('ForConditionalGeneration')}, {size / 1e6:.0f} M, first sound of a text at 20 tokens/s"
    return [compare(name, "s", figures[True], figures[False], "when it is whole", higher_is_better=False)]


@click.command()
@quick_option
@json_option
@click.option("--seconds", default=10.0, help="Of sound; the text says those of Pocket TTS and Phonon.")
@click.option("--only", help="The beginning of a model's name.", default="")
@click.option("--written", is_flag=True, help="Measure texts that are spoken while they are written.")
def main(quick: bool, json_path: Path | None, seconds: float, only: str, written: bool) -> None:
    """Measure each model."""
    torch.set_num_threads(1)
    rows: list[Row] = []
    for architecture in larger.LARGER:
        if architecture.startswith(only):
            with tempfile.TemporaryDirectory() as folder:
                length, rounds = min(seconds, 1.0) if quick else seconds, 1 if quick else 2
                if written:
                    rows += measure_written(architecture, length, rounds, Path(folder))
                else:
                    rows += measure(architecture, TEXTS[quick], length, rounds, Path(folder))
    publish(rows, json_path)


if __name__ == "__main__":
    main()
