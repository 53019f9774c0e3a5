"""Our engine and transformers' ``generate()`` on one checkpoint, and the cost and benefit of the engine's caches and
its own code.

    python benchmarks/engine.py [--quick] [--cpu] [--json FILE] [--checkpoint DIR] [--size mid|large]
    python benchmarks/engine.py --beside llama.cpp=PYTHON --beside vllm=PYTHON [--threads N]... [--weights KIND]... [the same options]

With ``--beside`` the other side is llama.cpp and vLLM, each from its own environment (see beside.py). Else both sides
run in this process, one thread, on the same weights; rounds alternate. ``generate`` runs the whole model: the times of
its thinker and talker are measured inside it. At 8 concurrent requests the other side is the better of ``generate`` one
after the other and, for the thinker, ``generate`` on a batch of eight equal prompts. Prompts are computed anew every
time: the prefix cache is off except in the row about it.
"""

from __future__ import annotations

import gc
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import beside
import click
import torch
from peer_engine import options_of
from report import Row, compare, json_option, publish, quick_option
from report import alone as median

from omni_core.protocol.messages import OmniRequest, StagePayload
from omni_core.scheduling.base import IncomingMessage, OutgoingMessage
from omni_core.stage.assembly import assemble
from omni_qwen3.config import QwenConfig, read_config
from omni_testing.tiny.qwen3 import write_tiny_checkpoint
from omni_torch.engine.scheduler import EngineScheduler
from omni_torch.quantization.packed_linear import packed, product
from omni_torch.quantization.quantized_linear import QUANTIZATIONS

CONCURRENT = 8

clock: Callable[[], float] = time.perf_counter
"""Wall clock, or with ``--cpu`` the CPU time of this process, for a machine with other load."""


class Reference:
    """transformers' model, with the time spent inside its thinker's and its talker's ``generate``."""

    def __init__(self, checkpoint: Path, prompt: torch.Tensor) -> None:
        from transformers import Qwen3OmniMoeForConditionalGeneration
        from transformers.utils import logging

        logging.set_verbosity_error()
        self.model = Qwen3OmniMoeForConditionalGeneration.from_pretrained(checkpoint, dtype=torch.float32).eval()
        self.prompt, self.seconds = prompt, {"thinker": 0.0, "talker": 0.0}
        for name in self.seconds:
            part = getattr(self.model, name)
            part.generate = self._timed(name, part.generate)

    def _timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            begin = clock()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds[name] += clock() - begin

        return call

    def thinker(self, tokens: int, batch: int = 1) -> float:
        """Tokens per second of text generation."""
        begin = clock()
        self.model.thinker.generate(
            input_ids=self.prompt.expand(batch, -1),
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            do_sample=False,
            eos_token_id=-1,
        )
        return batch * tokens / (clock() - begin)

    def talker(self, tokens: int, frames: int, *, sampled: bool = False) -> float:
        """Frames per second of speech generation (the vocoder's time is not counted)."""
        self.seconds["talker"] = 0.0
        self.model.generate(
            input_ids=self.prompt, return_audio=True, thinker_eos_token_id=-1, thinker_do_sample=False, talker_do_sample=sampled,
            thinker_max_new_tokens=tokens, talker_max_new_tokens=frames + 1, talker_min_new_tokens=frames + 1,
        )  # fmt: skip
        return frames / self.seconds["talker"]


ENGINE = "omni_torch.engine.scheduler:EngineScheduler"


def create_thinker(checkpoint: Path, **arguments: Any) -> EngineScheduler:
    """The thinker's stage on the engine."""
    stage = assemble(
        "omni_qwen3.thinker:ThinkerRunner.from_checkpoint", ENGINE, model_path=str(checkpoint), **arguments
    )
    assert isinstance(stage, EngineScheduler)
    return stage


def create_talker(checkpoint: Path, **arguments: Any) -> EngineScheduler:
    """The talker's stage on the engine."""
    runner, feedback = "omni_qwen3.talker:TalkerRunner.from_checkpoint", "omni_qwen3.talker_feedback:TalkerFeedback"
    stage = assemble(runner, ENGINE, feedback, model_path=str(checkpoint), **arguments)
    assert isinstance(stage, EngineScheduler)
    return stage


class Ours:
    """Our thinker and talker stages, driven through their schedulers."""

    def __init__(
        self,
        checkpoint: Path,
        prompt: torch.Tensor,
        dtype: str = "float32",
        quantization: str | None = None,
        **thinker: Any,
    ) -> None:
        weights = {"dtype": dtype, "quantization": quantization}
        self.thinker_stage = create_thinker(checkpoint, **weights, **{"prefix_cache": False, **thinker})
        self.talker_stage = create_talker(checkpoint, **weights, prefix_cache=False)
        for stage in (self.thinker_stage, self.talker_stage):
            threading.Thread(target=stage.start, daemon=True).start()
        self.prompt = prompt[0]
        self.eos = read_config(checkpoint).talker.codec_eos
        self.count = 0
        self.stream: list[OutgoingMessage] = []

    def thinker(self, tokens: int, requests: int, prompt: torch.Tensor | None = None) -> float:
        """Tokens per second over ``requests`` concurrent requests; keeps the first one's stream for the talker."""
        prompt = self.prompt if prompt is None else prompt
        inputs = {"input_ids": prompt, "positions": torch.arange(len(prompt)).expand(3, -1), "position_delta": 0}
        request = OmniRequest(params={"thinker": {"max_new_tokens": tokens, "ignore_eos": True}})
        messages = [
            IncomingMessage(name, "new_request", StagePayload(name, request, inputs), None, None, request)
            for name in self._names(requests)
        ]
        seconds, out = self._run(self.thinker_stage, [messages], requests)
        self.stream = [each for each in out if each.request_id == messages[0].request_id and each.target == "talker_ar"]
        return requests * tokens / seconds

    def talker(self, frames: int, requests: int, *, sampled: bool = False) -> float:
        """Frames per second over ``requests`` concurrent requests."""
        params: dict[str, Any] = {"max_new_tokens": frames + 1, "suppressed_ids": [self.eos]}
        request = OmniRequest(params={"talker": params if sampled else {**params, "temperature": 0.0}})
        batches = []
        for name in self._names(requests):
            chunks = [
                IncomingMessage(name, "stream_chunk", each.data, "thinker", None, request) for each in self.stream
            ]
            batches.append([*chunks, IncomingMessage(name, "stream_done", None, "thinker", None, request)])
        seconds, _ = self._run(self.talker_stage, batches, requests)
        return requests * frames / seconds

    def warm_up(self) -> None:
        self.thinker(4, CONCURRENT), self.thinker(4, 1), self.talker(2, 1), self.talker(2, CONCURRENT)

    def stop(self) -> None:
        self.thinker_stage.stop()
        self.talker_stage.stop()

    def _names(self, count: int) -> list[str]:
        self.count += count
        return [f"r{self.count - index}" for index in range(count)]

    def _run(
        self, stage: EngineScheduler, batches: list[list[IncomingMessage]], requests: int
    ) -> tuple[float, list[OutgoingMessage]]:
        out: list[OutgoingMessage] = []
        finished, ended = 0, threading.Event()

        def take() -> None:  # in the scheduler's thread
            nonlocal finished
            for message in stage.outbox.drain():
                out.append(message)
                finished += message.type != "stream"
            if finished == requests:
                ended.set()

        stage.outbox.on_put = take
        begin = clock()
        for batch in batches:
            for message in batch:
                stage.inbox.put(message)
        ended.wait()
        seconds = clock() - begin
        for message in out:
            if message.type == "error":
                raise message.data
        return seconds, out


class Figures:
    """Samples of both sides by row, in order of first use."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._samples: dict[str, tuple[str, str, list[float], list[float]]] = {}

    def note(self, name: str, unit: str, mine: float, theirs: float, other: str = "transformers generate") -> None:
        row = self._samples.setdefault(f"{self._label}: {name}", (unit, other, [], []))
        row[2].append(mine)
        row[3].append(theirs)

    def rows(self) -> list[Row]:
        return [
            compare(name, unit, mine, theirs, other, higher_is_better=unit != "ms")
            for name, (unit, other, mine, theirs) in self._samples.items()
        ]


def opening(config: QwenConfig, length: int, seed: int = 0) -> torch.Tensor:
    """A user turn of ``length`` random tokens and the assistant's opening, ``[1, length + 6]``."""
    words = torch.randint(0, 250, (1, length), generator=torch.Generator().manual_seed(seed))
    closing = torch.tensor([[config.im_end, config.im_start, config.assistant, 10]])
    return torch.cat([torch.tensor([[config.im_start, config.user]]), words, closing], dim=1)


def against_transformers(label: str, checkpoint: Path, *, rounds: int, tokens: int, frames: int) -> list[Row]:
    """Interleaved rounds of thinker and talker at 1 and at 8 requests, in float32."""
    prompt = opening(read_config(checkpoint), 48)
    other, ours, figures = Reference(checkpoint, prompt), Ours(checkpoint, prompt), Figures(label)
    other.thinker(4)
    ours.warm_up()
    for _ in range(rounds):
        alone = other.thinker(tokens)
        figures.note("thinker, 1 request", "tokens/s", ours.thinker(tokens, 1), alone)
        best = max(alone, other.thinker(tokens, CONCURRENT))
        figures.note(f"thinker, {CONCURRENT} requests", "tokens/s", ours.thinker(tokens, CONCURRENT), best)
        alone = other.talker(tokens, frames)
        figures.note("talker, 1 request", "frames/s", ours.talker(frames, 1), alone)
        figures.note(f"talker, {CONCURRENT} requests", "frames/s", ours.talker(frames, CONCURRENT), alone)
        sampled = other.talker(tokens, frames, sampled=True)
        figures.note("talker, 1 request, sampled", "frames/s", ours.talker(frames, 1, sampled=True), sampled)
    ours.stop()
    return figures.rows()


def against_float32(label: str, checkpoint: Path, *, rounds: int, tokens: int, frames: int) -> list[Row]:
    """Measure thinker and talker with narrower weights at 1 and at 8 requests, each beside float32, one after another
    to save memory.
    """
    prompt, figures = opening(read_config(checkpoint), 48), Figures(label)
    plain = Ours(checkpoint, prompt)
    plain.warm_up()
    for name in ("bfloat16", *QUANTIZATIONS):
        other = Ours(checkpoint, prompt, **options_of(name))
        other.warm_up()
        for _ in range(rounds):
            for requests in (1, CONCURRENT):
                load = "1 request" if requests == 1 else f"{requests} requests"
                text, speech = plain.thinker(tokens, requests), plain.talker(frames, requests)
                mine = other.thinker(tokens, requests), other.talker(frames, requests)
                figures.note(f"thinker, {load}, {name}", "tokens/s", mine[0], text, "ours, float32")
                figures.note(f"talker, {load}, {name}", "frames/s", mine[1], speech, "ours, float32")
        other.stop()
        del other
        gc.collect()
    plain.stop()
    return figures.rows()


def prefix_cache(checkpoint: Path, *, rounds: int, length: int) -> list[Row]:
    """Measure the milliseconds to the first token of a prompt with a cached prefix, beside one without."""
    ours = Ours(checkpoint, opening(read_config(checkpoint), 48), prefix_cache=True, kv_cache_mb=1024)
    ours.thinker(1, 1, opening(read_config(checkpoint), length, 999)[0])
    figures = Figures("prefix cache")
    for index in range(rounds):
        prompt = opening(read_config(checkpoint), length, 1 + index)[0]
        fresh, known = (1e3 / ours.thinker(1, 1, prompt) for _ in range(2))
        figures.note(f"first token after {length} known tokens", "ms", known, fresh, "unknown tokens")
    ours.stop()
    return figures.rows()


def own_cost(checkpoint: Path, *, rounds: int, tokens: int) -> list[Row]:
    """Measure the CPU milliseconds of the engine's own code in a decode step: everything but the model runner."""
    rows = []
    for requests in (1, 8, 32):
        samples = []
        for _ in range(rounds):
            stage = create_thinker(checkpoint, prefix_cache=False)
            inputs = opening(read_config(checkpoint), 48)[0]
            data = {
                "input_ids": inputs, "positions": torch.arange(len(inputs)).expand(3, -1), "position_delta": 0,
            }  # fmt: skip
            request = OmniRequest(params={"thinker": {"max_new_tokens": tokens, "ignore_eos": True}})
            for name in map(str, range(requests)):
                payload = StagePayload(name, request, data)
                stage.inbox.put(IncomingMessage(name, "new_request", payload, None, None, request))
            samples.append(1e3 * _seconds_outside_the_runner(stage, requests))
        rows.append(median(f"engine's own CPU per decode step, {requests} requests", "ms", samples))
    return rows


def _seconds_outside_the_runner(stage: EngineScheduler, requests: int) -> float:
    """Per step of pure decoding, driven in this thread."""
    runner, inside = stage._runner, 0.0
    execute = runner.execute

    def timed(batch: Any, forward: Any = None) -> Any:
        nonlocal inside
        begin = time.thread_time()
        try:
            return execute(batch, forward)
        finally:
            inside += time.thread_time() - begin

    runner.execute = timed  # type: ignore[method-assign]
    with torch.inference_mode():
        while stage.tokens < 2 * requests:
            stage.loop.turn()
        steps, inside, begin = stage.steps, 0.0, time.thread_time()
        while stage.statistics()["running"]:
            stage.loop.turn()
        return (time.thread_time() - begin - inside) / (stage.steps - steps)


def bandwidth(checkpoint: Path, *, rounds: int, tokens: int) -> list[Row]:
    """Measure the bytes of weights that a decode step of one request reads per second, beside a product with one large
    matrix.
    """
    config = read_config(checkpoint).thinker
    experts = (
        config.experts_per_token * 3 * config.moe_intermediate_size if config.experts else 3 * config.intermediate_size
    )
    projections = 2 * (config.heads + config.kv_heads) * config.head_dim
    read = 4 * config.hidden_size * (config.layers * (projections + experts) + config.vocab_size)
    ours, mine, ceiling = Ours(checkpoint, opening(read_config(checkpoint), 48)), [], []
    ours.thinker(4, 1)
    matrices = [torch.randn(4096, 2048) for _ in range(4)]
    packs = [(each, packed(each)) for each in matrices]
    x = torch.randn(1, 2048)
    for _ in range(rounds):
        mine.append(read * ours.thinker(tokens, 1) / 1e9)
        begin = clock()
        with torch.inference_mode():
            for weight, matrix in packs:
                torch.nn.functional.linear(x, weight) if matrix is None else product(x, matrix)
        ceiling.append(sum(each.nbytes for each in matrices) / (clock() - begin) / 1e9)
    ours.stop()
    return [
        compare(
            "weights read while decoding, 1 request", "GB/s", mine, ceiling, "one large product", higher_is_better=True
        )
    ]


LABELS = {"mid": "270 M", "large": "1.5 B"}


@click.command()
@quick_option
@json_option
@click.option(
    "--checkpoint",
    type=click.Path(exists=True, path_type=Path),
    help="Default: a random one of size --size.",
)
@click.option(
    "--size",
    type=click.Choice(list(LABELS)),
    default="mid",
    help="large: 1.5 B parameters instead of 270 M; other rows are skipped.",
)
@click.option("--cpu", is_flag=True, help="Measure CPU time instead of wall time, for a machine with other load.")
@click.option(
    "--beside",
    "peers",
    multiple=True,
    metavar="NAME=PYTHON",
    help="llama.cpp or vllm, and the interpreter of its environment.",
)
@click.option(
    "--threads", type=click.IntRange(1), multiple=True, default=(1, 2), help="With --beside; may be repeated."
)
@click.option("--weights", type=click.Choice(list(beside.WEIGHTS)), multiple=True, help="With --beside; default: all.")
@click.option(
    "--way",
    "ways",
    type=click.Choice([way for each in beside.WEIGHTS.values() if len(each) > 1 for way in each]),
    multiple=True,
    help="With --beside: only these of our ways of int8 and int4 weights; default: all.",
)
@click.option(
    "--load",
    "loads",
    type=click.Choice([each.name for each in beside.LOADS]),
    multiple=True,
    help="With --beside: only these rows; default: all.",
)
def main(
    quick: bool,
    json_path: Path | None,
    checkpoint: Path | None,
    size: str,
    cpu: bool,
    peers: tuple[str, ...],
    threads: tuple[int, ...],
    weights: tuple[str, ...],
    ways: tuple[str, ...],
    loads: tuple[str, ...],
) -> None:
    """Engine against transformers' generate, or beside other engines."""
    global clock
    pythons = beside.interpreters(peers)
    for option, given in (("--weights", weights), ("--way", ways), ("--load", loads)):
        if given and not pythons:
            raise click.UsageError(f"{option}: needs --beside")
    clock = time.process_time if cpu else clock
    torch.set_num_threads(1)
    rounds, tokens, frames = (1, 12, 6) if quick else (5, 32, 24)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = checkpoint or write_tiny_checkpoint(Path(folder) / size, shape=size)
        if pythons:
            config = read_config(checkpoint)

            def draw(length: int, seed: int) -> list[int]:
                ids: list[int] = opening(config, length - 6, seed)[0].tolist()
                return ids

            rows = beside.beside(
                LABELS[size], checkpoint, pythons, weights=weights or tuple(beside.WEIGHTS), ways=ways, loads=loads,
                threads=threads, rounds=rounds, cpu=cpu, ours=sys.executable, draw=draw,
            )  # fmt: skip
            publish(rows, json_path)
            return
        rows = against_transformers(LABELS[size], checkpoint, rounds=rounds, tokens=tokens, frames=frames)
        gc.collect()
        rows += against_float32(LABELS[size], checkpoint, rounds=rounds, tokens=tokens, frames=frames)
        if size == "mid":
            tiny = write_tiny_checkpoint(Path(folder) / "tiny")
            rows += against_transformers("tiny", tiny, rounds=rounds, tokens=tokens, frames=frames)
            rows += prefix_cache(checkpoint, rounds=rounds, length=200 if quick else 1000)
            rows += bandwidth(checkpoint, rounds=rounds, tokens=tokens)
            rows += own_cost(tiny, rounds=rounds, tokens=tokens)
    publish(rows, json_path)


if __name__ == "__main__":
    main()
