"""Stages of the tensor parallel and replica tests; children import this module."""

from __future__ import annotations

import os
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from omni_core.protocol.messages import StagePayload
from omni_core.scheduling.simple import SimpleScheduler

WIDTH = 64


def weight() -> torch.Tensor:
    return torch.arange(WIDTH * WIDTH, dtype=torch.float64).reshape(WIDTH, WIDTH).sin()


def linear(tp_rank: int, tp_size: int, tp_rendezvous: str, log: str) -> SimpleScheduler:
    """Computes ``x @ weight``, each rank with its rows of the weight, summed over the ranks. Records the batches that
    it computed.
    """
    dist.init_process_group(
        "gloo", init_method=tp_rendezvous, rank=tp_rank, world_size=tp_size, timeout=timedelta(seconds=60)
    )
    rows = weight().chunk(tp_size, 0)[tp_rank].clone()
    notes = (Path(log) / f"rank{tp_rank}").open("w")

    def batch(payloads: list[StagePayload]) -> list[Any]:
        notes.write(" ".join(str(payload.data["n"]) for payload in payloads) + "\n")
        notes.flush()
        own = torch.stack([payload.data["x"].chunk(tp_size)[tp_rank] for payload in payloads]) @ rows
        dist.all_reduce(own)
        return [{"y": row, "pid": os.getpid()} for row in own]

    return SimpleScheduler(lambda payload: batch([payload])[0], batch, max_batch_size=8)


def vector(payload: StagePayload) -> dict[str, Any]:
    n = payload.request.inputs["n"]
    return {"n": n, "x": torch.arange(n, n + WIDTH, dtype=torch.float64).cos()}


def who(replica: int) -> Any:
    """Answers with the replica and process that served the request."""
    lock = threading.Lock()

    def compute(payload: StagePayload) -> dict[str, Any]:
        with lock:
            return {**(payload.data or {}), "replica": replica, "pid": os.getpid()}

    return compute


def inputs(payload: StagePayload) -> Any:
    return payload.request.inputs


class LooksAtOnce(SimpleScheduler):
    """Reads its inbox before any message can be there, as an engine does."""

    def start(self) -> None:
        assert not self.inbox.drain()
        super().start()


def slow_to_begin(tp_rank: int, log: str) -> SimpleScheduler:
    """Records the requests that it computes; ranks above 0 take a while to be built."""
    time.sleep(0.5 * tp_rank)
    notes = (Path(log) / f"rank{tp_rank}").open("w")

    def compute(payload: StagePayload) -> Any:
        print(payload.data["n"], file=notes, flush=True)
        return {"n": payload.data["n"]}

    return LooksAtOnce(compute)
