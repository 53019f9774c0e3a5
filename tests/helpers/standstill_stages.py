"""Stage functions that do not return, or harm their own process, if a request asks for it; children import this module."""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import threading
import time
from pathlib import Path
from typing import Any

import torch.distributed as dist
from fault_stages import given

from omni_core.protocol.messages import StagePayload
from omni_core.scheduling.simple import SimpleScheduler

MIB = 2**20


def act(payload: StagePayload) -> Any:
    """Do the action ``inputs["do"]``."""
    data = given(payload)
    match data.get("do"):
        case "spin":
            while True:
                pass
        case "sleep":
            time.sleep(3600)
        case "lock":
            lock = threading.Lock()
            lock.acquire()
            lock.acquire()
        case "hold the GIL":
            ctypes.PyDLL(None).sleep(3600)
        case "close descriptors":
            os.closerange(0, 4096)
        case "close all but the standard ones":
            os.closerange(3, 4096)
        case "flood":
            for _ in range(100):
                os.write(2, b"x" * MIB)
        case "limit memory":
            used = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
            resource.setrlimit(resource.RLIMIT_AS, (used, used))
        case "ask for too much":
            raise MemoryError("too much")
    if "nbytes" in data:
        bytearray(data["nbytes"])
    return {"n": data["n"]}


def summed(tp_rank: int, tp_size: int, tp_rendezvous: str) -> SimpleScheduler:
    """Sums over the ranks; a request may make one rank fail before it does."""
    dist.init_process_group("gloo", init_method=tp_rendezvous, rank=tp_rank, world_size=tp_size)

    def compute(payload: StagePayload) -> Any:
        import torch

        data = given(payload)
        if data.get("fails on") in (tp_rank, "all"):
            raise MemoryError("alone")
        total = torch.tensor(float(data["n"]))
        dist.all_reduce(total)
        return {"n": total.item()}

    return SimpleScheduler(compute)


def unsendable_merge(payloads: dict[str, StagePayload]) -> Any:
    """A merge whose result cannot be encoded, if a request asks for that."""
    (payload,) = payloads.values()
    return {"n": payload.data["n"], "x": object() if payload.data["n"] < 0 else None}
