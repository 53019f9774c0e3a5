"""Measures startup: time to ready, memory per process, first text, first audio; and the wall time of ``omni --help``.

    python benchmarks/first_reply.py [--quick] [--json FILE]

The pipeline is qwen3-omni with the tiny random checkpoint, a process per stage, so the figures are those of the runtime
and of importing the libraries, not of a large model. ``omni --help`` is compared with the start of a bare interpreter.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click
import psutil
from report import Row, alone, compare, json_option, publish, quick_option

from omni_core.client import open_pipeline
from omni_core.protocol.messages import OmniRequest
from omni_core.protocol.outputs import AudioChunk, TextChunk
from omni_qwen3.pipeline import qwen3_omni
from omni_qwen3.tiny_checkpoint import write_tiny_checkpoint

REQUEST = {"messages": [{"role": "user", "content": [{"type": "text", "text": "Tell me a story about a red fox."}]}]}


def wall(*command: str) -> float:
    begin = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - begin


async def once(checkpoint: Path, processes: str, replies: int) -> dict[str, float]:
    """Start, answer a few times, measure; return seconds and MiB."""
    begin = time.perf_counter()
    async with open_pipeline(qwen3_omni(str(checkpoint), processes=processes)) as client:
        figures = {"start": time.perf_counter() - begin}
        first_text, first_audio = [], []
        for index in range(replies + 1):
            request = OmniRequest(
                REQUEST, {"seed": index, "thinker": {"max_new_tokens": 40}, "talker": {"max_new_tokens": 40}}
            )
            begin, seen = time.perf_counter(), {}
            async for event in client.stream(request):
                seen.setdefault(type(event.data), time.perf_counter() - begin)
            if index:  # the first reply warms up
                first_text.append(seen.get(TextChunk, 0.0))
                first_audio.append(seen.get(AudioChunk, 0.0))
        figures["first text"], figures["first audio"] = statistics.median(first_text), statistics.median(first_audio)
        private = [psutil.Process(pid).memory_full_info().uss / 2**20 for pid in client.process_ids.values()]
        figures["memory"] = statistics.median(private)
        return figures


@click.command()
@quick_option
@json_option
def main(quick: bool, json_path: Path | None) -> None:
    """Start-up and first reply."""
    rounds = 1 if quick else 3
    helps = [
        (wall(sys.executable, "-m", "omni_core.cli", "--help"), wall(sys.executable, "-c", "pass"))
        for _ in range(3 * rounds)
    ]
    rows: list[Row] = [
        compare(
            "omni --help", "s", [a for a, _ in helps], [b for _, b in helps], "python -c pass", higher_is_better=False
        )
    ]
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = write_tiny_checkpoint(Path(folder) / "tiny")
        runs = {
            mode: [asyncio.run(once(checkpoint, mode, 2 if quick else 5)) for _ in range(rounds)]
            for mode in ("separate", "one")
        }
    for name, unit in {
        "start": "s",
        "first text": "s",
        "first audio": "s",
        "memory": "MiB private per process",
    }.items():
        for mode, label in (("separate", "8 processes"), ("one", "1 process")):
            rows.append(alone(f"{name}, {label}", unit, [run[name] for run in runs[mode]]))
    publish(rows, json_path)


if __name__ == "__main__":
    main()
