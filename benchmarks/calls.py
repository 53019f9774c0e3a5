"""Models whose own loops share the engine: eight requests at once, beside their own calls one after the other.

    OMP_NUM_THREADS=1 python benchmarks/calls.py [--quick] [--json FILE] [--only NAME]

A recogniser and speakers of about 100 M with random weights (:mod:`larger`). Both compute the same requests with the same seeds, in turns,
in one process and one thread; the stage is asked without a pipeline. Times are CPU seconds: other programs disturb them less.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import larger
import numpy as np
import torch
import transformers
from first_sound import started
from report import Row, compare, json_option, publish, quick_option
from tiny_transformers.heard import SAY
from tiny_transformers.tiny_whisper import tone

from omni_core.api import IncomingMessage, OmniRequest, Scheduler, StagePayload
from omni_core.plugins import load_plugins
from omni_torch.operations.installed_kernels import install
from omni_torch.operations.kernel_specs import kernel_specs

MANY = 8
TEXT = "Hello there, my friends."
SPEAKERS = ("CsmForConditionalGeneration", "HiggsAudioV2ForConditionalGeneration", "PocketTTSForConditionalGeneration")
WHISPER = "WhisperForConditionalGeneration"


def seconds(call: Callable[[], object]) -> float:
    """Return the CPU seconds of a call."""
    begin = time.process_time()
    call()
    return time.process_time() - begin


def ask(scheduler: Scheduler, requests: list[OmniRequest]) -> list[Any]:
    """Send requests at once; return their results."""
    for number, request in enumerate(requests):
        scheduler.inbox.put(IncomingMessage(str(number), "new_request", StagePayload(str(number), request)))
    results: dict[str, Any] = {}
    while len(results) < len(requests):
        message = scheduler.outbox.get(600)
        if message is None or message.type == "error":
            raise SystemExit(f"no answer: {message and message.data}")
        if message.type == "result":
            results[message.request_id] = message.data
    return [results[str(number)] for number in range(len(requests))]


def speaker(architecture: str, length: float, folder: Path) -> tuple[int, list[OmniRequest], Callable[[int], Any]]:
    """Return the size of a speaker, requests, and its own call for each."""
    size = larger.made(architecture, length, folder)
    own: Any = getattr(transformers, architecture).from_pretrained(folder).eval()
    speak = SAY[architecture](own, transformers.AutoTokenizer.from_pretrained(folder), folder)

    def call(number: int) -> int:
        torch.manual_seed(number)
        with torch.inference_mode():
            return int(speak(TEXT).numel())

    message = {"role": "user", "content": TEXT}
    asked = [OmniRequest({"messages": [message]}, {"speech": {"seed": number}}) for number in range(MANY)]
    return size, asked, call


def whisper(tokens: int, folder: Path) -> tuple[int, list[OmniRequest], Callable[[int], Any]]:
    """Return the size of a recogniser, requests, and its own call for each."""
    size = larger.listening(tokens, folder)
    own = transformers.WhisperForConditionalGeneration.from_pretrained(folder).eval()
    own.generation_config.update(
        logprob_threshold=None, compression_ratio_threshold=None
    )  # which need several temperatures
    processor = transformers.WhisperProcessor.from_pretrained(folder)
    sounds = [tone(5.0, number) for number in range(MANY)]

    def call(number: int) -> int:
        inputs = processor(sounds[number], sampling_rate=16_000, return_tensors="pt")
        with torch.inference_mode():
            return int(
                own.generate(
                    **inputs, return_timestamps=False, task="transcribe", force_unique_generate_call=True
                ).shape[1]
            )

    parts = [{"type": "audio", "samples": each, "sample_rate": 16_000} for each in sounds]
    return size, [OmniRequest({"messages": [{"role": "user", "content": [part]}]}, {}) for part in parts], call


def measure(architecture: str, quick: bool, rounds: int, folder: Path) -> list[Row]:
    """Compute by both, in turns."""
    made = (
        whisper(8 if quick else 64, folder)
        if architecture == WHISPER
        else speaker(architecture, 0.5 if quick else 3.0, folder)
    )
    size, asked, call = made
    count = 2 if quick else MANY
    one, many, own = [], [], []
    with started(folder) as scheduler:
        ask(scheduler, asked[:1])
        for _ in range(rounds):
            one.append(seconds(lambda: ask(scheduler, asked[:1])))
            many.append(seconds(lambda: ask(scheduler, asked[:count])) / count)
            own.append(seconds(lambda: [call(number) for number in range(count)]) / count)
    name = f"{architecture.removesuffix('ForConditionalGeneration')}, {size / 1e6:.0f} M"
    beside = "its own calls, one by one"
    return [
        compare(f"{name}, one request", "CPU s", one, own, beside, higher_is_better=False),
        compare(f"{name}, each of {count} at once", "CPU s", many, own, beside, higher_is_better=False),
    ]


@click.command()
@quick_option
@json_option
@click.option("--only", help="The beginning of a model's name.", default="")
def main(quick: bool, json_path: Path | None, only: str) -> None:
    """Measure each model."""
    torch.set_num_threads(1)
    np.random.seed(0)
    specs = kernel_specs(load_plugins())
    install({name: [each for each in some if each.device == "cpu"] for name, some in specs.items()})
    rows: list[Row] = []
    for architecture in (WHISPER, *SPEAKERS[: 1 if quick else None]):
        if architecture.startswith(only):
            with tempfile.TemporaryDirectory() as folder:
                rows += measure(architecture, quick, 1 if quick else 3, Path(folder))
    publish(rows, json_path)


if __name__ == "__main__":
    main()
