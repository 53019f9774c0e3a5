"""Frames/s and real-time factor of our Qwen3-TTS and of the package ``qwen-tts``, and the time to the first sound.

    python benchmarks/qwen3_tts.py [--quick] [--json FILE] [--checkpoint DIR] [--reference PYTHON]

PYTHON: the interpreter of an environment with ``qwen-tts`` 0.1.1, as ``nox -s "references(qwen3_tts)"`` makes it. Without it only ours is
measured. Both sides run on one thread, greedy, on the same weights in float32; the codes must be equal. The package answers a batch of
eight requests in one call, and gives all sound at its end. Weights are stored in bfloat16, as the released ones, and computed with in
float32. Seconds are CPU time, except for the time to the first sound.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from report import Row, alone, compare, json_option, publish, quick_option

from omni_core.client import open_async
from omni_core.plugins import load_plugins
from omni_core.protocol.messages import OmniRequest
from omni_core.scheduling.base import IncomingMessage
from omni_core.stage.assembly import assemble
from omni_qwen3_tts.code2wav import Vocoder
from omni_qwen3_tts.config import read_config
from omni_qwen3_tts.payloads import SpeechStart, SpeechText
from omni_qwen3_tts.pipeline import qwen3_tts
from omni_qwen3_tts.tokenizer import TextTokenizer
from omni_testing.tiny.qwen3_tts import write_tiny_checkpoint
from omni_torch.operations.installed_kernels import install
from omni_torch.operations.kernel_specs import kernel_specs

CONCURRENT = 8
TEXT = "Once upon a time there was a red fox in a blue house, and the sound of the sea was in every room."
FRAMES_PER_SECOND = 12.5
GOLDEN = Path(__file__).parents[1] / "tests/omni_qwen3_tts/golden"


class Reference:
    """The package, in a process of its own environment."""

    def __init__(self, python: str, checkpoint: Path) -> None:
        command = [python, "-c", _REFERENCE, str(GOLDEN), str(checkpoint), TEXT]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def speak(self, frames: int, requests: int) -> dict[str, Any]:
        """Return the CPU seconds of ``codes`` and ``sound``, and the ``codes`` of one as ``made``."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(frames, requests, file=self._process.stdin, flush=True)
        while not (line := self._process.stdout.readline()).startswith("{"):
            assert self._process.poll() is None, "the reference's process has ended"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


_REFERENCE = """
import json, sys, time
sys.path.insert(0, sys.argv[1])
import torch
from make_golden import load
torch.set_num_threads(1)
model = load(sys.argv[2])
spent, kept = {}, []
generate, decode = model.model.generate, model.model.speech_tokenizer.decode
def timed(name, call):
    def run(*args, **kwargs):
        begin = time.process_time()
        found = call(*args, **kwargs)
        spent[name] = time.process_time() - begin
        kept.append(found)
        return found
    return run
model.model.generate = timed("codes", generate)
model.model.speech_tokenizer.decode = timed("sound", decode)
for line in sys.stdin:
    frames, requests = map(int, line.split())
    kept.clear()
    model.generate_custom_voice([sys.argv[3]] * requests, "ryan", "english", do_sample=False, subtalker_dosample=False,
                                max_new_tokens=frames + 1)
    print(json.dumps({**spent, "made": kept[0][0][0].tolist()}), flush=True)
"""


class Ours:
    """Our talker, driven through its scheduler, and our vocoder."""

    def __init__(self, checkpoint: Path) -> None:
        self._stage = assemble(
            "omni_qwen3_tts.talker:TalkerRunner.from_checkpoint",
            "omni_torch.engine.scheduler:EngineScheduler",
            "omni_qwen3_tts.feedback:TalkerFeedback",
            model_path=str(checkpoint),
        )
        threading.Thread(target=self._stage.start, daemon=True).start()
        config = read_config(checkpoint)
        tokenizer = TextTokenizer(str(checkpoint), config)
        start = SpeechStart(opening=torch.tensor(tokenizer.opening), dual_track=False)
        start |= {"language": config.languages["english"], "speaker": config.speakers["ryan"]}  # type: ignore[typeddict-item]
        self._chunks = [start, SpeechText(ids=torch.tensor(tokenizer.encode(TEXT)))]
        self._vocoder = Vocoder(str(checkpoint))
        self._count = 0

    def speak(self, frames: int, requests: int) -> tuple[float, np.ndarray]:
        """Return the CPU seconds for all requests together, and the codes of one."""
        request = OmniRequest(params={"talker": {"max_new_tokens": frames + 1, "temperature": 0.0}})
        self._count += 1
        names = [f"{self._count}-{index}" for index in range(requests)]
        begin, finished, codes = time.process_time(), 0, []
        for name in names:
            for chunk in self._chunks:
                self._stage.inbox.put(IncomingMessage(name, "stream_chunk", chunk, "preprocessing", None, request))
            self._stage.inbox.put(IncomingMessage(name, "stream_done", None, "preprocessing", None, request))
        while finished < requests:
            message = self._stage.outbox.get()
            assert message is not None
            if message.type == "error":
                raise message.data
            finished += message.type == "result"
            if message.type == "stream" and message.request_id == names[0]:
                codes.append(message.data.numpy())
        return time.process_time() - begin, np.stack(codes)

    def sound(self, codes: np.ndarray, requests: int) -> float:
        """Return the CPU seconds of decoding in the pieces that are streamed to a client."""
        frames, place = torch.from_numpy(codes), 0
        streams = [self._vocoder.begin() for _ in range(requests)]
        begin = time.process_time()
        while place < len(frames):
            count = min(max(2, place), 24)
            self._vocoder.decode([(stream, frames[place : place + count]) for stream in streams])
            place += count
        return time.process_time() - begin


async def first_sound(checkpoint: Path, frames: int, rounds: int) -> list[tuple[float, float]]:
    """Return the seconds to the first sound and to the end, through three processes, per round."""
    talker = {"max_new_tokens": frames + 1, "temperature": 0.0, "language": "english"}
    request = OmniRequest(
        {"messages": [{"role": "user", "content": TEXT}]}, {"talker": talker}, metadata={"speaker": "ryan"}
    )
    times = []
    async with open_async(qwen3_tts(str(checkpoint), dtype="float32")) as client:
        for _ in range(rounds + 1):
            begin, first = time.perf_counter(), 0.0
            async for event in client.stream(request):
                first = first or time.perf_counter() - begin
                assert not event.final or len(event.data.samples) == 1920 * frames
            times.append((first, time.perf_counter() - begin))
    return times[1:]


def measure(checkpoint: Path, reference: Reference | None, *, rounds: int, frames: int) -> list[Row]:
    """Interleaved rounds of every figure."""
    ours = Ours(checkpoint)
    ours.speak(4, CONCURRENT)
    figures: dict[str, tuple[list[float], list[float]]] = {}

    def note(name: str, mine: float, theirs: float | None) -> None:
        figures.setdefault(name, ([], []))[0].append(mine)
        if theirs is not None:
            figures[name][1].append(theirs)

    for _ in range(rounds):
        for requests in (1, CONCURRENT):
            made, codes = ours.speak(frames, requests)
            sound, work = ours.sound(codes, requests), requests * frames
            other = None if reference is None else reference.speak(frames, requests)
            if other is not None:
                assert np.array_equal(codes, np.array(other["made"])), "the two sides did not do the same work"
            name = "1 request" if requests == 1 else f"{requests} requests"
            note(f"codes, {name}", work / made, other and work / other["codes"])
            note(f"vocoder, {name}", work / sound, other and work / other["sound"])
            whole, theirs = made + sound, other and other["codes"] + other["sound"]
            note(
                f"times real time, {name}",
                work / FRAMES_PER_SECOND / whole,
                theirs and work / FRAMES_PER_SECOND / theirs,
            )
            if requests == 1 and theirs:
                note("the package's first sound, CPU time", theirs, None)
    rows = []
    for name, (mine, theirs) in figures.items():
        unit = "s" if "first" in name else "" if name.startswith("times") else "frames/s"
        rows.append(
            compare(name, unit, mine, theirs, "qwen-tts", higher_is_better=True) if theirs else alone(name, unit, mine)
        )
    times = asyncio.run(first_sound(checkpoint, frames, rounds))
    rows.append(alone("first sound, 3 processes", "s", [first for first, _ in times]))
    rows.append(alone("first sound as a share of the total", "", [first / total for first, total in times]))
    return rows


@click.command()
@quick_option
@json_option
@click.option(
    "--checkpoint", type=click.Path(exists=True, path_type=Path), help="Default: a random one of 55 M parameters."
)
@click.option("--reference", help="The interpreter of an environment with qwen-tts.")
@click.option("--stored", type=click.Choice(["float32", "bfloat16"]), default="bfloat16", help="The random weights.")
@click.option("--kernels/--no-kernels", "with_kernels", default=True, help="Those of omni-kernels-cpu, for ours.")
def main(
    quick: bool,
    json_path: Path | None,
    checkpoint: Path | None,
    reference: str | None,
    stored: str,
    with_kernels: bool,
) -> None:
    """Qwen3-TTS against the package qwen-tts."""
    torch.set_num_threads(1)
    if with_kernels:
        specs = kernel_specs(load_plugins())
        install({name: [each for each in some if each.device == "cpu"] for name, some in specs.items()})
    with tempfile.TemporaryDirectory() as folder:
        if checkpoint is None:
            checkpoint = write_tiny_checkpoint(Path(folder) / "mid", shape="mid", dtype=stored)
        other = None if reference is None else Reference(reference, checkpoint)
        rows = measure(checkpoint, other, rounds=1 if quick else 3, frames=24 if quick else 50)
        if other is not None:
            other.close()
    publish(rows, json_path)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
