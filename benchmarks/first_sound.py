"""Speakers of omni-transformers that stream: the time to the first sound and to the last, beside the model's own call, which is whole.

    OMP_NUM_THREADS=1 python benchmarks/first_sound.py [--quick] [--json FILE] [--seconds 10] [--only NAME]

The checkpoints have random weights and are made here (:mod:`larger_speakers`). Both compute the same frames with the same seed, in
turns, in one process and one thread; the stage is asked without a pipeline. Times are CPU seconds, so that other programs disturb them less.
"""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import click
import larger_speakers
import torch
import transformers
from report import Row, alone, compare, json_option, publish, quick_option
from tiny_transformers.heard import SAY

from omni_core.api import AudioChunk, IncomingMessage, OmniRequest, Scheduler, StagePayload, load
from omni_transformers.pipeline import transformers as pipeline

TEXTS = {False: "Hello there, my friends.", True: "Hi."}
"""Without and with ``--quick``. Of Pocket TTS and Phonon, 10 and 3 s of sound."""

SEED = 3
WARM = "warm"
"""The request before those that are measured; it ends with its first sound."""


def ask(scheduler: Scheduler, text: str, name: str = "asked") -> tuple[float, float, int]:
    """Speak once; return the seconds to the first sound and to the end, and the samples."""
    request = OmniRequest({"messages": [{"role": "user", "content": text}]}, {"speech": {"seed": SEED}})
    begin = time.process_time()
    scheduler.inbox.put(IncomingMessage(name, "new_request", StagePayload(name, request)))
    first, samples = 0.0, 0
    while True:
        message = scheduler.outbox.get(600)
        if message is None or message.type == "error":
            raise SystemExit(f"no sound: {message and message.data}")
        if message.request_id != name:
            continue
        if message.type == "result":
            return first, time.process_time() - begin, samples
        if isinstance(message.data, AudioChunk) and len(message.data.samples):
            first = first or time.process_time() - begin
            samples += len(message.data.samples)
            if name == WARM:
                scheduler.abort(name)
                return first, first, samples


def measure(architecture: str, text: str, seconds: float, rounds: int, folder: Path) -> list[Row]:
    """Speak by both, in turns."""
    size = larger_speakers.made(architecture, seconds, folder)
    own: Any = getattr(transformers, architecture).from_pretrained(folder).eval()
    speak = SAY[architecture](own, transformers.AutoTokenizer.from_pretrained(folder), folder)
    config = pipeline(str(folder))
    [stage] = config.stages
    assert config.interface is not None
    rate = config.interface.sample_rate
    assert stage.factory is not None
    scheduler: Scheduler = load(stage.factory)(str(folder), **stage.factory_args)
    thread = threading.Thread(target=scheduler.start, daemon=True)
    thread.start()
    firsts, wholes, theirs = [], [], []
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
        assert length == samples, f"{architecture}: {samples} samples, and {length} by its own call"
    scheduler.stop()
    thread.join()
    name = f"{architecture.removesuffix('ForConditionalGeneration')}, {size / 1e6:.0f} M"
    return [
        compare(f"{name}, first sound", "CPU s", firsts, theirs, "its own call", higher_is_better=False),
        compare(f"{name}, whole", "CPU s", wholes, theirs, "its own call", higher_is_better=False),
        alone(f"{name}, sound", "s", [samples / rate]),
    ]


@click.command()
@quick_option
@json_option
@click.option("--seconds", default=10.0, help="Of sound; the text says those of Pocket TTS and Phonon.")
@click.option("--only", help="The beginning of a model's name.", default="")
def main(quick: bool, json_path: Path | None, seconds: float, only: str) -> None:
    """Measure each model."""
    torch.set_num_threads(1)
    rows: list[Row] = []
    for architecture in larger_speakers.LARGER:
        if architecture.startswith(only):
            with tempfile.TemporaryDirectory() as folder:
                rows += measure(
                    architecture, TEXTS[quick], min(seconds, 1.0) if quick else seconds, 1 if quick else 2, Path(folder)
                )
    publish(rows, json_path)


if __name__ == "__main__":
    main()
