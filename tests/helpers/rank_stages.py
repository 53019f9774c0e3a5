"""A tensor parallel stage whose ranks may be on several hosts; other processes import it."""

from __future__ import annotations

import os
from typing import Any

import torch

from omni_core.protocol.messages import StagePayload
from omni_core.scheduling.simple import SimpleScheduler
from omni_torch.processes.tensor_parallel import TensorParallel

WIDTH = 64


def rows(rank: int, size: int) -> torch.Tensor:
    """Return a rank's rows of the weight."""
    return torch.arange(WIDTH * WIDTH, dtype=torch.float32).reshape(WIDTH, WIDTH).sin().chunk(size)[rank].clone()


def ids(tp_rank: int, tp_size: int, tp_rendezvous: str) -> SimpleScheduler:
    """Answers with eight ids, each that of the largest sum of ``x @ weight``, by which ``x`` is turned before the next."""
    parallel = TensorParallel.connect(tp_rank, tp_size, tp_rendezvous)
    own = rows(tp_rank, tp_size)

    def compute(payload: StagePayload) -> dict[str, Any]:
        n, found = payload.request.inputs["n"], []
        x = torch.arange(n, n + WIDTH, dtype=torch.float32).cos()
        for _ in range(8):
            sums = parallel.all_reduce(x.chunk(tp_size)[tp_rank] @ own)
            found.append(int(sums.argmax()))
            x = x.roll(found[-1])
        return {"ids": found, "pid": os.getpid(), "rendezvous": tp_rendezvous}

    return SimpleScheduler(compute)
