"""The tables: the counterpart here of each setting of a stage and of a pipeline."""

from __future__ import annotations

from typing import Any

from attrs import frozen

from omni_cli.importing import values
from omni_cli.importing.values import Reader


@frozen
class To:
    """A setting's counterpart: a path below the stage (``factory_args.max_running``) and the reader of its value."""

    path: str
    read: Reader


@frozen
class Note:
    """A setting without a counterpart. ``holds``: by value, as JSON, why it is the case here anyway."""

    reason: str
    holds: dict[str, str] | None = None


@frozen
class Refuse:
    """A setting that cannot be had, with advice. ``holds`` as in :class:`Note`."""

    advice: str
    holds: dict[str, str] | None = None


def _inverse(value: Any) -> bool:
    return not values.flag(value)


def _mebibytes(value: Any) -> int:
    return values.count(value) // 2**20 or 1


def _size(value: Any) -> str:
    """Read a size: bytes, or a text such as ``6GiB``."""
    return f"{_mebibytes(value)}MiB" if isinstance(value, int) else values.text(value)


def _device(value: Any) -> Any:
    """Read a GPU's number, a list of them, or null for the CPU."""
    if value is None:
        return None
    if isinstance(value, list) and value:
        return [values.whole(each) for each in value]
    return values.whole(value)


Setting = To | Note | Refuse

_OFF = {"null": "not set", "false": "not used"}
_FLASH = "there is no switch for it; `omni plugins check` lists the kernels"

ENGINE: dict[str, Setting] = {
    "mem_fraction_static": To("gpu_memory", values.share),
    "max_running_requests": To("factory_args.max_running", values.count),
    "context_length": To("factory_args.max_context", values.count),
    "max_prefill_tokens": To("factory_args.max_batch_tokens", values.count),
    "chunked_prefill_size": To("factory_args.chunk_size", values.count),
    "page_size": To("factory_args.block_size", values.count),
    "kv_cache_bytes": To("factory_args.kv_cache_mb", _mebibytes),
    "disable_cuda_graph": To("factory_args.cuda_graphs", _inverse),
    "disable_radix_cache": To("factory_args.prefix_cache", _inverse),
    "dtype": To("factory_args.dtype", values.dtype),
    "quantization": To("factory_args.quantization", values.quantization),
    "max_total_tokens": Note("the size of the KV cache is kv_cache_mb, or follows from gpu_memory"),
    "cuda_graph_max_bs": Note("CUDA graphs are recorded for the sizes that occur, up to max_running"),
    "enable_torch_compile": Note("there are no graphs compiled by torch.compile here", _OFF),
    "torch_compile_max_bs": Note("there are no graphs compiled by torch.compile here"),
    "attention_backend": Note(_FLASH),
    "sampling_backend": Note(_FLASH),
    "disable_custom_all_reduce": Note("ranks add up by torch.distributed"),
    "cpu_offload_gb": Refuse("weights stay where the stage runs", {"0": "none"}),
}
"""Below ``engine``."""

FACTORY: dict[str, Setting] = {
    "dtype": To("factory_args.dtype", values.dtype),
    "max_seq_len": To("factory_args.max_context", values.count),
    "context_length": To("factory_args.max_context", values.count),
    "thinker_max_seq_len": To("factory_args.max_context", values.count),
    "max_concurrency": To("factory_args.max_running", values.count),
    "max_batch_size": To("factory_args.max_running", values.count),
    "max_new_tokens": To("params.max_new_tokens", values.count),
    "device": Note("the device is `gpu` of the stage", {'"cuda"': "the device is `gpu` of the stage"}),
    "gpu_id": Note("the device is `gpu` of the stage"),
    "max_batch_wait_ms": Note("a batch is what is ready; nothing waits for more"),
    "enable_async_decode": Note("a step is scheduled after the one before", _OFF),
    "async_decode_min_batch_size": Note("a step is scheduled after the one before"),
    "encoder_mem_reserve": Note("an encoder's memory is its own stage's gpu_memory"),
    "enable_partial_start": Note("the talker starts with the first tokens of the text", {"true": "it starts with the first tokens"}),
    "partial_start_min_chunks": Note("the talker starts with the first tokens of the text"),
    "video_fps": Refuse("a request says it: metadata of the message's video"),
    **{name: Note("prompts are taken up as they come, at every step") for name in (
        "prefill_coalesce_requests", "prefill_coalesce_wait_ms", "prefill_coalesce_when_idle",
        "prefill_coalesce_requires_pending_builds", "prefill_coalesce_after_builds_during_decode")},
    **{name: Note("requests are built in the stage before") for name in ("request_build_max_workers", "request_build_max_pending")},
}  # fmt: skip
"""Below ``factory`` and ``factory_args``. Others are taken under their own name where the stage here has it."""

RELAY: dict[str, Setting] = {
    "slot_size_mb": To("relay.slot_size_mb", values.count),
    "credits": To("relay.credits", values.count),
    "device": To("relay.device", values.text),
    "rank": To("relay.rank", values.whole),
    "world_size": To("relay.world_size", values.count),
    "cuda_ipc_slot_size_kb": Note("tensors of one GPU are passed by a handle, without a pool"),
    "cuda_ipc_pool_size_mb": Note("tensors of one GPU are passed by a handle, without a pool"),
    **{name: Note("`relay: {backend: mooncake, settings: ...}` chooses Mooncake (docs/relays.md)") for name in (
        "mooncake_protocol", "mooncake_hostname", "mooncake_device_name")},
}  # fmt: skip
"""Below ``relay`` and ``comm``."""

STAGE: dict[str, Setting] = {
    "gpu": To("gpu", _device),
    "runtime_gpu_ids": To("gpu", _device),
    "tp_size": To("tp_size", values.count),
    "process": To("process", values.text),
    "gpu_memory_fraction": To("gpu_memory", values.share),
    "total_reserve_bytes": To("gpu_memory", _size),
    "enforce_total_reserve": Note("a budget is always held", {"true": "a budget is always held"}),
    "can_accept_stream_before_payload": Note("every stage may", {"true": "every stage may"}),
    "disable_direct_cuda_ipc_payload": Note("tensors of one GPU are passed by a handle where both ends allow it"),
    "allow_child_processes": Note("a stage may start what it needs"),
    "http_routes": Refuse("a stage has no routes; `omni serve` has those of OpenAI's API"),
}
"""Of a stage itself."""

NESTED = {"engine": ENGINE, "factory": FACTORY, "factory_args": FACTORY, "relay": RELAY, "comm": RELAY}

TOPOLOGY = ("next", "wait_for", "stream_to", "terminal")
"""Fields that must say what our pipeline says."""

FUNCTIONS = (
    "factory",
    "factory_path",
    "route_fn",
    "get_next",
    "wait_for_fn",
    "merge_fn",
    "stream_done_to_fn",
    "project_payload",
    "terminal_stages_fn",
)
"""Dotted functions: SGLang-Omni's own are part of our pipelines."""

TOP: dict[str, Setting] = {
    "model_path": To("model_path", values.text),
    "relay_backend": To("relay_backend", values.text),
    "env_defaults": To("env_defaults", values.word),
    "endpoints": To("endpoints", values.text),
    "name": Note("the pipeline's name is its own"),
    "audio_chunking": Note("long recordings are limits of the pipeline and of `omni serve --limit`"),
    "stream_delivery": Note("a client that does not read is limited by the stage's stream"),
    "mps": Note("CUDA MPS is the host's own", {'"off"': "not used", **_OFF}),
    "weight_share": Note("weights are loaded once per process", {'"off"': "not used", **_OFF}),
    "placement": Note("budgets of a device are always checked"),
    "placement_policy": Refuse("write the devices: stages.NAME.gpu, or leave them to `gpu: auto`"),
    "session_nodes": Refuse(
        "realtime conversations are turns, on `omni serve` (docs/realtime.md)", {"[]": "none", "{}": "none"}
    ),
    "session_publish": Refuse("realtime conversations are turns, on `omni serve` (docs/realtime.md)"),
    "max_output_lead_ms": Note("realtime conversations are turns, on `omni serve` (docs/realtime.md)"),
    "services": Refuse("start it beside `omni serve`", {"[]": "none", "{}": "none"}),
}
"""Of the pipeline itself; those of :data:`OTHERS` have rules of their own."""

OTHERS = ("stages", "processes", "fused_stages", "entry_stage", "runtime_overrides", "config_cls", "terminal_stages_fn")
