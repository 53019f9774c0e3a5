"""Thinker tokens/s and talker frames/s of our engine beside transformers' ``generate`` on one checkpoint.

    python benchmarks/engine.py [--quick] [--json FILE] [--checkpoint DIR]

Both sides run in this process, one thread, greedy, on the same weights; rounds alternate. ``generate`` runs the whole model:
its thinker's and its talker's own time are read inside it. At 8 concurrent requests the other side is the better of
``generate`` one after the other and, for the thinker, ``generate`` on a batch of eight equal prompts.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import torch
from report import Row, compare, json_option, publish, quick_option

from omni_core.protocol.messages import OmniRequest, StagePayload
from omni_core.scheduling.base import IncomingMessage, OutgoingMessage
from omni_engine.scheduler import EngineScheduler
from omni_qwen3.config import read_config
from omni_qwen3.talker import create_talker
from omni_qwen3.thinker import create_thinker
from omni_qwen3.tiny_checkpoint import write_tiny_checkpoint

CONCURRENT = 8


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
            begin = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds[name] += time.perf_counter() - begin

        return call

    def thinker(self, tokens: int, batch: int = 1) -> float:
        """Tokens per second of text generation."""
        begin = time.perf_counter()
        self.model.thinker.generate(
            input_ids=self.prompt.expand(batch, -1),
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            do_sample=False,
            eos_token_id=-1,
        )
        return batch * tokens / (time.perf_counter() - begin)

    def talker(self, tokens: int, frames: int) -> float:
        """Frames per second of speech generation (the vocoder's time is not counted)."""
        self.seconds["talker"] = 0.0
        self.model.generate(
            input_ids=self.prompt, return_audio=True, thinker_eos_token_id=-1, thinker_do_sample=False, talker_do_sample=False,
            thinker_max_new_tokens=tokens, talker_max_new_tokens=frames + 1, talker_min_new_tokens=frames + 1,
        )  # fmt: skip
        return frames / self.seconds["talker"]


class Ours:
    """Our thinker and talker stages, driven through their schedulers."""

    def __init__(self, checkpoint: Path, prompt: torch.Tensor) -> None:
        self.thinker_stage, self.talker_stage = create_thinker(str(checkpoint)), create_talker(str(checkpoint))
        for stage in (self.thinker_stage, self.talker_stage):
            threading.Thread(target=stage.start, daemon=True).start()
        self.prompt = prompt[0]
        self.eos = read_config(checkpoint).talker.codec_eos
        self.count = 0
        self.stream: list[OutgoingMessage] = []

    def thinker(self, tokens: int, requests: int) -> float:
        """Tokens per second over ``requests`` concurrent requests; keeps the first one's stream for the talker."""
        length = len(self.prompt)
        inputs = {"input_ids": self.prompt, "positions": torch.arange(length).expand(3, -1), "position_delta": 0}
        request = OmniRequest(params={"thinker": {"max_new_tokens": tokens, "ignore_eos": True}})
        messages = [
            IncomingMessage(name, "new_request", StagePayload(name, request, inputs), None, None, request)
            for name in self._names(requests)
        ]
        seconds, out = self._run(self.thinker_stage, [messages], requests)
        self.stream = [each for each in out if each.request_id == messages[0].request_id and each.target == "talker_ar"]
        return requests * tokens / seconds

    def talker(self, frames: int, requests: int) -> float:
        """Frames per second over ``requests`` concurrent requests."""
        request = OmniRequest(
            params={"talker": {"temperature": 0.0, "max_new_tokens": frames + 1, "suppressed_ids": [self.eos]}}
        )
        batches = []
        for name in self._names(requests):
            chunks = [
                IncomingMessage(name, "stream_chunk", each.data, "thinker", None, request) for each in self.stream
            ]
            batches.append([*chunks, IncomingMessage(name, "stream_done", None, "thinker", None, request)])
        seconds, _ = self._run(self.talker_stage, batches, requests)
        return requests * frames / seconds

    def _names(self, count: int) -> list[str]:
        self.count += count
        return [f"r{self.count - index}" for index in range(count)]

    def _run(
        self, stage: EngineScheduler, batches: list[list[IncomingMessage]], requests: int
    ) -> tuple[float, list[OutgoingMessage]]:
        begin, out, finished = time.perf_counter(), [], 0
        for batch in batches:
            for message in batch:
                stage.inbox.put(message)
        while finished < requests:
            message = stage.outbox.get()
            assert message is not None
            if message.type == "error":
                raise message.data
            out.append(message)
            finished += message.type == "result"
        return time.perf_counter() - begin, out


def measure(checkpoint: Path, *, rounds: int, tokens: int, frames: int) -> list[Row]:
    """Interleaved rounds of every figure."""
    prompt = torch.randint(0, 250, (1, 48), generator=torch.Generator().manual_seed(0))
    config = read_config(checkpoint)
    opening = torch.tensor([[config.im_start, config.user]])
    closing = torch.tensor([[config.im_end, config.im_start, config.assistant, 10]])
    prompt = torch.cat([opening, prompt, closing], dim=1)
    other, ours = Reference(checkpoint, prompt), Ours(checkpoint, prompt)
    other.thinker(4), ours.thinker(4, 1), ours.talker(2, 1)
    figures: dict[str, tuple[list[float], list[float]]] = {}

    def note(name: str, mine: float, theirs: float) -> None:
        figures.setdefault(name, ([], []))[0].append(mine)
        figures[name][1].append(theirs)

    for _ in range(rounds):
        alone = other.thinker(tokens)
        note("thinker, 1 request", ours.thinker(tokens, 1), alone)
        note(
            f"thinker, {CONCURRENT} requests",
            ours.thinker(tokens, CONCURRENT),
            max(alone, other.thinker(tokens, CONCURRENT)),
        )
        alone = other.talker(tokens, frames)
        note("talker, 1 request", ours.talker(frames, 1), alone)
        note(f"talker, {CONCURRENT} requests", ours.talker(frames, CONCURRENT), alone)
    units = {"thinker": "tokens/s", "talker": "frames/s"}
    return [
        compare(name, units[name.split(",")[0]], mine, theirs, "transformers generate", higher_is_better=True)
        for name, (mine, theirs) in figures.items()
    ]


@click.command()
@quick_option
@json_option
@click.option(
    "--checkpoint",
    type=click.Path(exists=True, path_type=Path),
    help="Default: a random one of about 270 M parameters.",
)
def main(quick: bool, json_path: Path | None, checkpoint: Path | None) -> None:
    """Engine against transformers' generate."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        if checkpoint is None:
            checkpoint = write_tiny_checkpoint(Path(folder) / "mid", shape="mid")
        rows = measure(checkpoint, rounds=1 if quick else 5, tokens=12 if quick else 32, frames=6 if quick else 24)
    publish(rows, json_path)


if __name__ == "__main__":
    main()
