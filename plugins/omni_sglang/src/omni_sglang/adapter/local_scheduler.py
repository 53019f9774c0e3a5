"""Starts SGLang's scheduler in this process without its ties to others, and releases the globals that it keeps: one per process."""

from __future__ import annotations

import json
import os
import tempfile
import weakref
from pathlib import Path
from typing import Any

import torch
from attrs import frozen
from sglang.srt.distributed.parallel_state import destroy_distributed_environment, destroy_model_parallel
from sglang.srt.environ import envs
from sglang.srt.managers.io_struct import AbortReq
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.managers.scheduler_components.ipc_channels import SchedulerIpcChannels
from sglang.srt.runtime_context import SpawnRanks, publish
from sglang.srt.server_args import PortArgs, ServerArgs

from omni_core.api import ConfigError
from omni_sglang.adapter.model import OmniDecoder

SLACK = 16
"""Positions by which SGLang's context is longer than the stage's: the stage ends a request itself, before SGLang would.
"""


@frozen(kw_only=True)
class ModelShape:
    """The shape of a model that SGLang needs to lay out its KV pool."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden_size: int
    vocab_size: int
    dtype: torch.dtype


@frozen(kw_only=True)
class Limits:
    """Sizes of the scheduler. ``tokens`` is the KV pool's size in positions; ``page_size`` divides it."""

    max_running: int
    max_batch_tokens: int
    chunk_size: int
    page_size: int
    tokens: int
    max_context: int


class _Replies:
    """Receives SGLang's outgoing messages. Tokens are known already; only its reasons for ending a request are read."""

    def __init__(self) -> None:
        self.aborts: dict[str, str] = {}

    def send_output(self, output: Any, recv_obj: Any = None) -> None:
        if isinstance(output, AbortReq) and output.finished_reason:
            self.aborts[output.rid] = str(output.finished_reason.get("message", "aborted by SGLang"))


class LocalScheduler(Scheduler):
    """SGLang's scheduler without its two ties to other processes: the sockets, and the watchdog that signals to the parent."""

    def init_ipc_channels(self, port_args: PortArgs) -> None:
        self.replies = _Replies()
        self.ipc_channels = SchedulerIpcChannels(
            recv_from_tokenizer=None,
            recv_from_rpc=None,
            send_to_tokenizer=self.replies,
            send_to_detokenizer=self.replies,
            send_metrics_from_scheduler=None,
        )
        self.load_snapshot_writer = None
        self.recv_from_tokenizer = None

    def init_watch_dog_memory_saver_input_blocker(self) -> None:
        super().init_watch_dog_memory_saver_input_blocker()
        # The watchdog would send SIGQUIT to the parent process, which supervises its children itself; and its thread
        # never ends, so it would keep this object with its pool and its process groups alive.
        watchdog = self.watchdog
        watchdog.is_active, watchdog.get_counter, watchdog.dump_info = (lambda: False), (lambda: 0), None


_live: weakref.ReferenceType[object] | None = None


_memory: int | None = None


def claim(runtime: object) -> None:
    """Claim SGLang's globals for ``runtime``. Raises ConfigError: another one has them."""
    global _live
    if _live is not None and _live() is not None:
        raise ConfigError(
            "a second SGLang scheduler in one process: SGLang keeps its parallel state and its config in globals. Give the stages "
            "that use `sglang` processes of their own (stages[...].process)"
        )
    if _live is not None:  # its owner was not closed
        _tear_down()
    if torch.distributed.is_initialized():
        raise ConfigError(
            "this process has a default process group of torch.distributed already (tensor parallel ranks, or a relay over NCCL); "
            "SGLang makes its own. Give the stage that uses `sglang` a process of its own, with tp_size 1"
        )
    _live = weakref.ref(runtime)


def release(runtime: object) -> None:
    """Release SGLang's globals if ``runtime`` has claimed them. Idempotent."""
    if _live is not None and _live() is runtime:
        _tear_down()


def _tear_down() -> None:
    global _live, _memory
    _live = None
    destroy_model_parallel()
    destroy_distributed_environment()
    if _memory is not None:
        os.close(_memory)
        _memory = None


def start(shape: ModelShape, limits: Limits, device: torch.device, given: dict[str, Any]) -> LocalScheduler:
    """Make SGLang's scheduler for a model of this shape. ``given`` are server arguments that override ours."""
    context = limits.max_context + SLACK
    with tempfile.TemporaryDirectory(prefix="omni-sglang-") as folder:
        _write_config(Path(folder), shape, context)
        ours = {
            "model_path": folder,
            "load_format": "dummy",  # the model has no weights of its own
            "skip_tokenizer_init": True,
            "device": device.type,
            "base_gpu_id": device.index or 0,
            "dtype": _name(shape.dtype),
            "context_length": context,
            "max_running_requests": limits.max_running,
            "max_prefill_tokens": limits.max_batch_tokens,
            "chunked_prefill_size": limits.chunk_size,
            "page_size": limits.page_size,
            "max_total_tokens": limits.tokens,
            "attention_backend": "torch_native" if device.type == "cpu" else None,
            "disable_overlap_schedule": True,  # the next step's inputs may depend on this step's token
            "disable_cuda_graph": True,  # the hooks of a runner cannot be captured
            "log_level": "warning",
        }
        arguments = ServerArgs(**{**ours, **given})
        arguments.resolve_once()
        publish(arguments, role="scheduler", ranks=SpawnRanks(world_rank=0, dp_rank=None, gpu_id=device.index or 0))
        meeting = envs.SGLANG_DISTRIBUTED_INIT_METHOD_OVERRIDE
        meeting.set(_rendezvous())
        try:
            return LocalScheduler(arguments, _ports())
        finally:
            meeting.clear()


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _write_config(folder: Path, shape: ModelShape, context: int) -> None:
    """Write a model folder with the shape's numbers: SGLang reads them from a ``config.json``."""
    config = {
        "architectures": [OmniDecoder.__name__],
        "model_type": "llama",
        "hidden_size": shape.hidden_size,
        "intermediate_size": 4 * shape.hidden_size,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab_size,
        "max_position_embeddings": context,
        "torch_dtype": _name(shape.dtype),
        "eos_token_id": None,  # the model runner decides which ids end a request
    }
    (folder / "config.json").write_text(json.dumps(config))


def _rendezvous() -> str:
    """Make the rendezvous of a process group of one process: process-private memory that ends with the process.

    SGLang's default is a TCP store, which listens on every interface of the host without authentication.
    """
    global _memory
    _memory = os.memfd_create("omni-sglang")
    return f"file:///proc/self/fd/{_memory}"


def _ports() -> PortArgs:
    """No addresses: :class:`LocalScheduler` opens no socket, and the process group uses another rendezvous."""
    return PortArgs(
        tokenizer_ipc_name="",
        scheduler_input_ipc_name="",
        detokenizer_ipc_name="",
        nccl_port=0,
        rpc_ipc_name="",
        metrics_ipc_name="",
        tokenizer_worker_ipc_name=None,
        decoupled_spec_ipc_config=None,
    )
