"""The only module that imports SGLang. Written against exactly one version.

:class:`Runtime` holds one :class:`sglang.srt.managers.scheduler.Scheduler` and steps it. SGLang decides which requests
compute how many positions, the location of their K and V, the sharing in the radix cache, and which requests to retract
when the pool is full. It computes by calling a model; that model is :class:`OmniDecoder`, which calls ``compute`` and
so the stage's model runner.
"""

from __future__ import annotations

import json
import os
import tempfile
import weakref
from array import array
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from attrs import define, frozen
from sglang.srt.distributed.parallel_state import destroy_distributed_environment, destroy_model_parallel
from sglang.srt.environ import envs
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.managers.io_struct import AbortReq, TokenizedGenerateReqInput
from sglang.srt.managers.schedule_batch import FINISH_LENGTH, Req, ScheduleBatch
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.managers.scheduler_components.ipc_channels import SchedulerIpcChannels
from sglang.srt.mem_cache.common import release_kv_cache
from sglang.srt.model_executor.forward_batch_info import ForwardBatch
from sglang.srt.model_loader.utils import set_default_torch_dtype
from sglang.srt.models.qwen3_vl_moe import Qwen3MoeLLMModel
from sglang.srt.models.registry import ModelRegistry
from sglang.srt.runtime_context import SpawnRanks, publish
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.server_args import PortArgs, ServerArgs
from torch import nn

from omni_core.api import ConfigError, InvalidRequestError

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


@frozen
class Chosen:
    """The outcome of a step for a request: its next token, and whether that was its last."""

    token: int
    last: bool


class RadixPagedAttention:
    """SGLang's attention over its own KV pool, as :class:`omni_core.model_runner.PagedAttention`."""

    def __init__(self, layers: nn.ModuleList, batch: ForwardBatch) -> None:
        self._layers, self.batch = layers, batch

    def __call__(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None = None
    ) -> torch.Tensor:
        count, heads, width = query.shape
        if scale is not None:  # SGLang's layers have head_dim ** -0.5 built in
            query = query * (scale * width**0.5)
        mixed = self._layers[layer](
            query.reshape(count, heads * width), key.contiguous(), value.contiguous(), self.batch
        )
        return mixed.view(count, heads, width)


@frozen
class Step:
    """One step of SGLang's batch: for each request the number of cached positions and the number to compute now."""

    keys: list[str]
    starts: list[int]
    lengths: list[int]
    attention: RadixPagedAttention


Compute = Callable[[Step], dict[str, Chosen]]
"""Computes a step; returns the requests whose next token was chosen."""


class OmniDecoder(nn.Module):
    """The model that SGLang runs: attention layers without weights around a call of ``compute``.

    Tokens are chosen by the model runner (its penalties, its random numbers), so SGLang, which decodes every request
    greedily here, is given logits whose largest is the chosen token.
    """

    def __init__(self, config: Any, quant_config: Any = None, prefix: str = "") -> None:
        super().__init__()
        self.attention = nn.ModuleList(
            [
                RadixAttention(
                    config.num_attention_heads,
                    config.head_dim,
                    config.head_dim**-0.5,
                    config.num_key_value_heads,
                    layer_id=layer,
                )
                for layer in range(config.num_hidden_layers)
            ]
        )
        self.vocab_size = config.vocab_size
        self.compute: Compute | None = None
        self.chosen: dict[str, Chosen] = {}

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, forward_batch: ForwardBatch) -> Any:
        logits = torch.zeros(forward_batch.batch_size, self.vocab_size, device=input_ids.device)
        if self.compute is not None:  # else SGLang warms up
            keys = list(forward_batch.rids)
            starts, lengths = _spans(forward_batch)
            attention = RadixPagedAttention(self.attention, forward_batch)
            self.chosen = self.compute(Step(keys, starts, lengths, attention))
            rows = [row for row, key in enumerate(keys) if key in self.chosen]
            logits[rows, [self.chosen[keys[row]].token for row in rows]] = 1.0
        return LogitsProcessorOutput(next_token_logits=logits)


def _spans(forward_batch: ForwardBatch) -> tuple[list[int], list[int]]:
    """For each request: positions computed before this step, positions of this step."""
    if forward_batch.forward_mode.is_decode():
        return [length - 1 for length in forward_batch.seq_lens_cpu.tolist()], [1] * forward_batch.batch_size
    return list(forward_batch.extend_prefix_lens_cpu), list(forward_batch.extend_seq_lens_cpu)


class _Replies:
    """Receives SGLang's outgoing messages. Tokens are known already; only its reasons for ending a request are read."""

    def __init__(self) -> None:
        self.aborts: dict[str, str] = {}

    def send_output(self, output: Any, recv_obj: Any = None) -> None:
        if isinstance(output, AbortReq) and output.finished_reason:
            self.aborts[output.rid] = str(output.finished_reason.get("message", "aborted by SGLang"))


class _LocalScheduler(Scheduler):
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


ModelRegistry.models[OmniDecoder.__name__] = OmniDecoder


@define
class Outcome:
    """The outcome of :meth:`Runtime.step`.

    Attributes:
        keys: the requests that were computed; empty when there was nothing to compute.
        chosen: those of them that got a token.
        error: the exception of the computation; then every request of ``keys`` is detached and holds no memory.
        given_up: requests that SGLang ended on its own, with its reason; they hold no memory.
    """

    keys: list[str]
    chosen: dict[str, Chosen]
    error: BaseException | None
    given_up: dict[str, str]


ReadWeight = Callable[[str, torch.Size], torch.Tensor]
"""Reads a network's weight by name and shape. Names are those of transformers' modules, experts stacked
(``experts.gate_up_proj``).
"""


def build_qwen3_moe(config: Any, read: ReadWeight, dtype: torch.dtype, device: torch.device, capture: int) -> nn.Module:
    """SGLang's own Qwen3-MoE decoder with multimodal rotary positions and deepstack, with its weights. Needs a
    :class:`Runtime`.

    Args:
        config: transformers' text config of the checkpoint.
        capture: the layer whose input is returned with every output (``hidden_states`` index of transformers).
    """
    with set_default_torch_dtype(dtype), device:
        network = Qwen3MoeLLMModel(config=config)
    for name, parameter in network.named_parameters():
        stacked = name.replace("experts.w13_weight", "experts.gate_up_proj")
        weight = read(stacked.replace("experts.w2_weight", "experts.down_proj"), parameter.shape)
        parameter.data[: len(weight)].copy_(weight)  # the embedding may be padded to a multiple of rows
    for module in network.modules():
        method = getattr(module, "quant_method", None)
        if method is not None:
            method.process_weights_after_loading(module)
    network.set_eagle3_layers_to_capture([capture])
    return network.eval().requires_grad_(False)


def run_qwen3_moe(
    network: nn.Module,
    attention: RadixPagedAttention,
    embeds: torch.Tensor,
    positions: torch.Tensor,
    deepstack: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the normed output and the captured layer, ``[n, hidden]`` each.

    Args:
        embeds: ``[n, hidden]``.
        positions: ``[3, n]``.
        deepstack: ``[n, 3 * hidden]``, added after the first three layers.
    """
    hidden, captured = network(None, positions, attention.batch, embeds, input_deepstack_embeds=deepstack)
    return hidden, captured[0]


_live: weakref.ReferenceType[Runtime] | None = None
_open = False
_memory: int | None = None


class Runtime:
    """One SGLang scheduler, the only one in its process: its parallel state and its config are global.

    A request is in one of three states: in SGLang (waiting or running), detached (known, but SGLang does not see it,
    and it holds no memory that is not shared) or unknown. All calls must come from one thread at a time.

    ``server_args`` are arguments of SGLang's ``ServerArgs`` that override the defaults chosen here.

    Raises:
        ConfigError: another one exists in this process.
    """

    def __init__(self, shape: ModelShape, limits: Limits, device: torch.device, **server_args: Any) -> None:
        _claim(self)
        try:
            self._scheduler = _start(shape, limits, device, server_args)
        except BaseException:
            _tear_down()
            raise
        self._model: OmniDecoder = self._scheduler.tp_worker.model_runner.model
        self._requests: dict[str, Req] = {}
        self._detached: set[str] = set()
        self.retractions = 0
        """The number of times SGLang retracted a running request, to compute it again later."""

    def connect(self, compute: Compute) -> None:
        """Set the function that computes steps."""
        self._model.compute = compute

    def submit(self, key: str, ids: Sequence[int], max_new_tokens: int, *, namespace: str | None) -> None:
        """Add a request to SGLang.

        Args:
            key: its name; no key may begin with another one (SGLang's abort matches prefixes).
            ids: one number per prompt position. Requests with equal namespaces share the K and V of equal prefixes.
            max_new_tokens: an upper bound that SGLang plans with.
            namespace: see ``ids``.

        Raises:
            InvalidRequestError: SGLang rejects it; it is forgotten.
        """
        scheduler = self._scheduler
        sampling = SamplingParams(temperature=0.0, max_new_tokens=max_new_tokens)
        sampling.normalize(None)
        scheduler.handle_generate_request(
            TokenizedGenerateReqInput(
                rid=key,
                input_text="",
                input_ids=array("q", ids),
                input_embeds=None,
                mm_inputs=None,
                token_type_ids=None,
                sampling_params=sampling,
                return_logprob=False,
                logprob_start_len=-1,
                top_logprobs_num=0,
                token_ids_logprob=None,
                stream=False,
                extra_key=namespace,
            )
        )
        req = next(req for req in reversed(scheduler.waiting_queue) if req.rid == key)
        self._requests[key] = req
        if req.to_finish is not None:
            self.withdraw(key)
            raise InvalidRequestError(f"SGLang rejects the request: {req.to_finish.message}")

    def withdraw(self, key: str) -> None:
        """Forget a request in any state, and free its memory. Idempotent."""
        req = self._requests.pop(key, None)
        if req is not None and key not in self._detached and not req.finished():
            self._take_back(req, keep=False)
        self._detached.discard(key)

    def knows(self, key: str) -> bool:
        return key in self._requests

    def detach(self, key: str, *, keep: bool) -> None:
        """Detach a request from SGLang; ``keep`` leaves its K and V in the radix cache while there is room."""
        self._take_back(self._requests[key], keep=keep)
        self._detached.add(key)

    def detach_waiting(self) -> list[str]:
        """Detach every request that has not begun."""
        keys = [req.rid for req in self._scheduler.waiting_queue]
        self._scheduler.waiting_queue = []
        self._detached.update(keys)
        return keys

    def attach(self, key: str) -> None:
        """Add a detached request to SGLang again; it waits, and the positions that are not in the radix cache are
        recomputed.
        """
        self._detached.discard(key)
        self._scheduler._add_request_to_queue(self._requests[key], is_retracted=True)

    def _take_back(self, req: Req, *, keep: bool) -> None:
        scheduler = self._scheduler
        if req in scheduler.waiting_queue:
            scheduler.waiting_queue.remove(req)
            return
        for batch in (scheduler.running_batch, scheduler.last_batch):
            if batch is not None and req in batch.reqs:
                batch.filter_batch(reqs_to_exclude=[req])
                batch.batch_is_full = False
        if scheduler.chunked_req is req:
            scheduler.chunked_req = None
        if req.kv.holds_kv:
            release_kv_cache(req, scheduler.tree_cache, checkpoint=keep)
        req.reset_for_retract()

    def step(self) -> Outcome:
        """Plan and compute one batch. Never raises an exception of ``compute``: see :class:`Outcome`."""
        scheduler = self._scheduler
        begun = {req.rid for req in self._inside()}
        plan = scheduler.get_next_batch_to_run(running_batch=scheduler.running_batch, last_batch=scheduler.last_batch)
        scheduler.running_batch, batch = plan.running_batch, plan.batch_to_run
        self.retractions += sum(req.rid in begun for req in scheduler.waiting_queue)
        if batch is None:
            scheduler.last_batch = None
            return Outcome([], {}, None, self._given_up())
        keys = [req.rid for req in batch.reqs]
        try:
            result = scheduler.run_batch(batch)
        except BaseException as error:
            self._drop(batch)
            return Outcome(keys, {}, error, self._given_up())
        chosen, self._model.chosen = self._model.chosen, {}
        for req in batch.reqs:
            if req.rid in chosen and chosen[req.rid].last:
                req.to_finish = FINISH_LENGTH(length=len(req.output_ids) + 1)
        scheduler.process_batch_result(batch, result)
        scheduler.last_batch = batch
        given_up = {
            req.rid: "no room for another token"
            for req in batch.reqs
            if req.finished() and not (req.rid in chosen and chosen[req.rid].last)
        }
        return Outcome(keys, chosen, None, {**given_up, **self._given_up()})

    def _drop(self, batch: ScheduleBatch) -> None:
        """Release the memory of a batch whose computation failed, and detach its requests."""
        scheduler = self._scheduler
        scheduler.last_batch = batch
        for req in list(batch.reqs):
            self.detach(req.rid, keep=False)
        scheduler.last_batch = None

    def _given_up(self) -> dict[str, str]:
        replies = self._scheduler.replies
        reasons, replies.aborts = replies.aborts, {}
        return {key: reason for key, reason in reasons.items() if key in self._requests}

    def rest(self) -> str | None:
        """Do SGLang's housekeeping before a pause: it checks its pools and resets its estimates. Returns the memory
        that it misses.
        """
        try:
            self._scheduler.on_idle()
        except ValueError as lost:
            return str(lost)
        return None

    @property
    def running(self) -> int:
        return len({req.rid for req in self._inside()})

    @property
    def waiting(self) -> int:
        return len(self._scheduler.waiting_queue)

    @property
    def oldest_waiting(self) -> str | None:
        queue = self._scheduler.waiting_queue
        return queue[0].rid if queue else None

    def _inside(self) -> Iterable[Req]:
        scheduler = self._scheduler
        for batch in (scheduler.running_batch, scheduler.last_batch):
            if batch is not None:
                yield from (req for req in batch.reqs if not req.finished())
        if scheduler.chunked_req is not None:
            yield scheduler.chunked_req

    @property
    def total_tokens(self) -> int:
        return int(self._scheduler.max_total_num_tokens)

    @property
    def free_tokens(self) -> int:
        """Positions of the pool that no live request holds: free ones, and those that only the radix cache holds."""
        scheduler = self._scheduler
        return int(scheduler.token_to_kv_pool_allocator.available_size() + scheduler.tree_cache.evictable_size())

    def cached_tokens(self, key: str) -> int:
        """Return the number of a request's prompt positions that were found in the radix cache."""
        return int(self._requests[key].cached_tokens)

    def flush_cache(self) -> None:
        """Empty the radix cache. May be called only while no request waits or runs."""
        self._scheduler.flush_cache()

    def close(self) -> None:
        """Release SGLang's globals, so that the process can hold another one. Idempotent."""
        if _live is not None and _live() is self:
            _tear_down()


def _claim(runtime: Runtime) -> None:
    global _live, _open
    if _live is not None and _live() is not None:
        raise ConfigError(
            "a second SGLang scheduler in one process: SGLang keeps its parallel state and its config in globals. Give the stages "
            "that use `sglang` processes of their own (stages[...].process)"
        )
    if _open:
        _tear_down()
    if torch.distributed.is_initialized():
        raise ConfigError(
            "this process has a default process group of torch.distributed already (tensor parallel ranks, or a relay over NCCL); "
            "SGLang makes its own. Give the stage that uses `sglang` a process of its own, with tp_size 1"
        )
    _live, _open = weakref.ref(runtime), True


def _tear_down() -> None:
    global _live, _open, _memory
    _live, _open = None, False
    destroy_model_parallel()
    destroy_distributed_environment()
    if _memory is not None:
        os.close(_memory)
        _memory = None


def _start(shape: ModelShape, limits: Limits, device: torch.device, given: dict[str, Any]) -> _LocalScheduler:
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
            return _LocalScheduler(arguments, _ports())
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
    """No addresses: :class:`_LocalScheduler` opens no socket, and the process group uses another rendezvous."""
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
