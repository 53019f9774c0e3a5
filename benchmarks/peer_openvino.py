"""One side of ``openvino.py``, in a process of its own: our pipeline, or OpenVINO GenAI's ``OmniPipeline`` in its own environment.

    PYTHON -P benchmarks/peer_openvino.py ours|openvino

One JSON document per line comes and goes: the options first, which load the model, then the rounds. What libraries print goes to stderr.
``-P``: else ``import openvino`` would find the benchmark.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

RATE = 24_000
Round = Callable[[list[str], int, int], list[dict[str, Any]]]
"""Answers prompts at once with so many tokens and frames of sound: the seconds to the first text and sound, those of sound, the text."""


def processes() -> list[int]:
    """Return this process and those that it has started, directly or not."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    found = [os.getpid()]
    for each in found:  # which grows
        found += [pid for pid, parent in parents.items() if parent == each]
    return found


def memory() -> float:
    """Return the MB of this process and of those that it has started, with their shares of what they share (PSS)."""
    found = 0
    for pid in processes():
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        found += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return found * 1024 / 1e6


def computed() -> float:
    """Return the CPU seconds of this process and of those that it has started."""
    ticks = 0
    for pid in processes():
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


class Marks:
    """The times of one answer."""

    def __init__(self) -> None:
        self.begin, self.text, self.sound, self.samples = time.perf_counter(), 0.0, 0.0, 0

    def wrote(self) -> None:
        self.text = self.text or time.perf_counter() - self.begin

    def spoke(self, samples: int) -> None:
        self.sound = self.sound or time.perf_counter() - self.begin
        self.samples += samples

    def done(self, text: str) -> dict[str, Any]:
        taken = time.perf_counter() - self.begin
        return {
            "first text": self.text,
            "first sound": self.sound,
            "taken": taken,
            "sound": self.samples / RATE,
            "text": text,
        }


def ours(checkpoint: str, weights: str, stages: str, pieces: int, **_: Any) -> Round:
    """Start our pipeline."""
    from attrs import evolve

    from omni_core.api import AudioChunk, OmniRequest, TextChunk, TextResult
    from omni_core.client import open_async
    from omni_qwen3.pipeline import qwen3_omni

    config = qwen3_omni(checkpoint, processes=stages, initial_chunk=pieces, max_context=2048)
    options = {"prefix_cache": False, **({} if weights == "float32" else {"quantization": weights})}
    more = {"thinker": options, "talker_ar": options}
    config = evolve(
        config,
        stages=[evolve(each, factory_args={**each.factory_args, **more.get(each.name, {})}) for each in config.stages],
    )
    loop, stack = asyncio.new_event_loop(), AsyncExitStack()
    pipe = loop.run_until_complete(stack.enter_async_context(open_async(config)))

    async def answer(prompt: str, tokens: int, frames: int) -> dict[str, Any]:
        marks, text = Marks(), ""
        thinker = {"max_new_tokens": tokens, "ignore_eos": True, "temperature": 0.0}
        talker = {"max_new_tokens": frames + 1, "temperature": 0.0, "repetition_penalty": 1.0}
        request = OmniRequest(
            {"messages": [{"role": "user", "content": prompt}]}, {"thinker": thinker, "talker": talker}
        )
        async for event in pipe.stream(request):
            if isinstance(event.data, TextChunk):
                marks.wrote()
            elif isinstance(event.data, AudioChunk):
                marks.spoke(event.data.samples.size)
            elif isinstance(event.data, TextResult):
                text = event.data.text
        return marks.done(text)

    async def together(prompts: list[str], tokens: int, frames: int) -> list[dict[str, Any]]:
        return await asyncio.gather(*(answer(each, tokens, frames) for each in prompts))

    def run(prompts: list[str], tokens: int, frames: int) -> list[dict[str, Any]]:
        if not prompts:
            loop.run_until_complete(stack.aclose())
            return []
        return loop.run_until_complete(together(prompts, tokens, frames))

    return run


def openvino(exported: str, weights: str, pieces: int, threads: int, **_: Any) -> Round:
    """Load ``OmniPipeline``, which answers one request after the other."""
    import openvino_genai

    properties = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    if weights == "float32":
        properties["KV_CACHE_PRECISION"] = "f32"
    pipe, turn = openvino_genai.OmniPipeline(exported, "CPU", **properties), threading.Lock()

    def answer(prompt: str, tokens: int, frames: int, marks: Marks, made: list[dict[str, Any]]) -> None:
        written = openvino_genai.GenerationConfig()
        written.max_new_tokens, written.ignore_eos, written.do_sample = tokens, True, False
        spoken = openvino_genai.OmniTalkerSpeechConfig()
        spoken.return_audio, spoken.max_new_tokens, spoken.audio_chunk_frames = True, frames, pieces
        spoken.talker_top_k = spoken.cp_top_k = 1
        spoken.talker_repetition_penalty, spoken.speaker = 1.0, "ethan"
        text: list[str] = []

        def wrote(piece: str) -> bool:
            marks.wrote()
            text.append(piece)
            return False

        def spoke(sound: Any) -> bool:
            marks.spoke(sound.get_size())
            return False

        with turn:
            pipe.generate(
                prompt, text_config=written, talker_speech_config=spoken, streamer=wrote, speech_streamer=spoke
            )
        made.append(marks.done("".join(text)))

    def run(prompts: list[str], tokens: int, frames: int) -> list[dict[str, Any]]:
        made: list[dict[str, Any]] = []
        running = [threading.Thread(target=answer, args=(each, tokens, frames, Marks(), made)) for each in prompts]
        for each in running:
            each.start()
        for each in running:
            each.join()
        return made

    return run


def main() -> None:
    """Load, then answer until stdin ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    begin = time.perf_counter()
    run = {"ours": ours, "openvino": openvino}[sys.argv[1]](**json.loads(sys.stdin.readline()))
    print(json.dumps({"start": time.perf_counter() - begin, "memory": memory()}), file=answers, flush=True)
    for line in sys.stdin:
        order, before, begin = json.loads(line), computed(), time.perf_counter()
        made = run(order["prompts"], order["tokens"], order["frames"])
        told = {"taken": time.perf_counter() - begin, "computed": computed() - before, "memory": memory()}
        print(json.dumps({"answers": made, **told}), file=answers, flush=True)
    run([], 0, 0)


if __name__ == "__main__":
    main()
