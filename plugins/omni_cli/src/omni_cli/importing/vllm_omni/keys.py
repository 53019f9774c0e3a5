"""The tables: a rule for every key of a stage, the keys of a whole file, and the names of platforms."""

from __future__ import annotations

from omni_cli.importing import values
from omni_cli.importing.vllm_omni import placing, rules
from omni_cli.importing.vllm_omni.context import Rule
from omni_cli.importing.vllm_omni.rules import argument, noted, refused
from omni_cli.importing.vllm_omni.sampling import sampling

STAGE: dict[str, Rule] = {
    # place and memory
    "devices": placing.gpus,
    "tensor_parallel_size": placing.tensor_parallel,
    "num_replicas": placing.replicas,
    "data_parallel_size": placing.data_parallel,
    "gpu_memory_utilization": placing.memory,
    "kv_cache_memory_bytes": rules.cache_bytes,
    "process": rules.own_process,
    "env": rules.environment,
    # sizes of a batch
    "max_num_seqs": argument("max_running", values.count, "computes all requests that are ready, however many"),
    "max_num_batched_tokens": argument("max_batch_tokens", values.count, "has no limit of tokens in a step"),
    "max_model_len": rules.context,
    "block_size": argument("block_size", values.count, "has no KV cache"),
    "enable_chunked_prefill": rules.chunked_prefill,
    "enable_prefix_caching": argument("prefix_cache", values.flag, "keeps no prefixes", without=False),
    "enforce_eager": rules.eager,
    "max_cudagraph_capture_size": rules.graph_size,
    "cudagraph_capture_sizes": noted("CUDA graphs are recorded for the sizes that occur"),
    # the checkpoint
    "dtype": argument("dtype", values.dtype, "takes no dtype"),
    "model": argument("model_path", values.text, "reads no checkpoint"),
    "quantization": argument("quantization", values.quantization, "has its weights as they are stored"),
    "trust_remote_code": refused(
        "must be true or false", true="nothing here needs this permission; code of a checkpoint is never run",
        false="code of a checkpoint is never run"),
    "skip_tokenizer_init": noted("a stage loads a tokenizer only if it needs one"),
    "load_format": noted("checkpoints are safetensors", **{'"auto"': "checkpoints are safetensors", '"safetensors"': "they are"}),
    "hf_overrides": refused("change config.json in a copy of the checkpoint's folder, and name that folder as model_path"),
    "model_arch": rules.architecture,
    "model_stage": noted("stages are matched by their stage_id"),
    "hf_config_name": noted("each stage reads its own part of config.json"),
    "stage_type": refused("this pipeline has no stage of this kind", **{'"llm"': "the kind of a stage is the pipeline's own"}),
    # the pipeline's own: checked, not set
    "engine_input_source": rules.sources,
    "engine_output_type": rules.output_type,
    "final_output": rules.final_output,
    "final_output_type": rules.output_type,
    "is_comprehension": rules.comprehension,
    "custom_process_input_func": rules.function,
    "custom_process_next_stage_input_func": rules.function,
    "sync_process_input_func": rules.function,
    "async_chunk_process_next_stage_input_func": rules.function,
    "scheduler_cls": rules.scheduler,
    # requests
    "default_sampling_params": sampling,
    "subtalker_sampling_params": refused("its parameters are those of the stage's own group in `defaults: {params: ...}`"),
    "default_pooling_params": refused("no stage here returns embeddings"),
    # steps
    "async_scheduling": noted("there is no switch for it", false="a step is scheduled after the one before"),
    "pipeline_parallel_size": refused("a stage runs on tp_size devices; raise tensor_parallel_size", **{"1": "one device"}),
    "distributed_executor_backend": refused(
        "processes are started on this machine, or where `launcher` and `hosts` say (docs/hosts.md)",
        **{'"mp"': "every stage has processes of its own", "null": "not set"},
    ),
    "enable_expert_parallel": placing.expert_parallel,
    "async_chunk": noted("stages stream to each other always; results are the same", true="stages stream to each other"),
    "kv_cache_dtype": refused("the KV cache has the dtype of the weights; remove the key", **{'"auto"': "the dtype of the weights"}),
    "silence_ban_frames": refused("no such rule; use suppressed_ids in `defaults: {params: ...}`", **{"0": "no such rule here"}),
}  # fmt: skip
"""By key of a stage."""

NOTED = {
    "there are no graphs compiled by torch.compile here": ("compilation_config", "additional_config"),
    "`omni plugins check` lists the kernels here, which are chosen by device": (
        "moe_backend", "attention_backend", "attention_config", "enable_flashinfer_autotune", "fa_deterministic"),
    "memory is planned from the sizes of the checkpoint's tensors, without trial runs": (
        "skip_mm_profiling", "disable_hybrid_kv_cache_manager", "mamba_ssm_cache_dtype", "kv_cache_dtype_skip_layers"),
    "`omni profile` records a running pipeline": ("profiler_config",),
    "media are read by omni-media; its limits are those of the pipeline's options": (
        "mm_processor_cache_gb", "media_io_kwargs", "interleave_mm_strings"),
    "which files of a checkpoint are read is the pipeline's own": ("config_format", "tokenizer_mode", "model_subdir"),
    "workers are the stage's processes": ("worker_cls", "worker_type"),
    "companion requests are parts that a stage's `expand_fn` makes; this pipeline needs none, or has its own": ("prompt_expand_func",),
    "hand-over of KV caches is `past_key_values` in a payload; this pipeline needs none, or has its own": (
        "cfg_kv_collect_func", "omni_kv_config", "kv_transfer_config"),
    "a request's `instructions` are not limited by themselves; `limits: {text_characters: N}` limits its text": (
        "tts_max_instructions_length",),
}  # fmt: skip
"""Keys without a counterpart, by the reason."""

REFUSED = {
    "is for a diffusion stage, and this pipeline has none": (
        "ulysses_degree", "ulysses_mode", "ulysses_a2a_permute", "ring_degree", "allgather_degree", "sequence_parallel_size",
        "cfg_parallel_size", "vae_patch_parallel_size", "vae_parallel_mode", "text_encoder_tp_size", "use_hsdp", "hsdp_shard_size",
        "hsdp_replicate_size", "model_class_name", "diffusion_load_format", "diffusers_load_kwargs", "diffusers_call_kwargs",
        "diffusion_quantization_config", "diffusion_attention_backend", "fastvideo_vsa_topk", "diffusion_attention_config",
        "diffusion_compile_granularity", "diffusion_compile_dynamic", "cache_backend", "cache_config", "video_output_transport",
        "enable_cache_dit_summary", "step_execution", "vae_use_slicing", "vae_use_tiling", "vae_fast_path", "boundary_ratio",
        "flow_shift", "diffusion_kv_cache_dtype", "diffusion_kv_cache_skip_steps", "diffusion_kv_cache_skip_layers",
        "auxiliary_text_encoder", "diffusion_offload_config", "enable_layerwise_offload", "enable_distributed_layerwise_offload",
        "dlo_use_allgather", "dlo_resident_layers", "dlo_host_registration_limit_gib", "host_weight_runtime_mode",
        "host_weight_runtime_root", "enable_diffusion_pipeline_profiler", "max_generated_image_size", "parallel_config", "model_config",
        "diffusion_kv_mode", "diffusion_kv_max_rows_per_request", "streaming_output", "request_batch_max_wait_ms", "inline_diffusion",
        "model_loaded"),
    "adapters cannot be loaded; merge it into a copy of the checkpoint": ("lora_path", "lora_backend", "lora_scale"),
    "classes of vLLM cannot be loaded; write a model runner (docs/models.md)": ("logits_processors", "engine_backend"),
    "the tokenizer is the checkpoint's; put it into a copy of its folder": ("tokenizer",),
    "weights stay where the stage runs; choose another device or dtype": (
        "enable_cpu_offload", "enable_sleep_mode", "enable_multithread_weight_load", "enable_broadcast_weight_load",
        "num_weight_load_threads"),
}  # fmt: skip
"""Keys that ask for what cannot be had, by the advice."""

MAPPINGS = ("env", "default_sampling_params", "subtalker_sampling_params", "default_pooling_params", "hf_overrides")

SINGLE = frozenset(STAGE) - frozenset(MAPPINGS)
"""Keys of a stage that have one value."""

STAGE |= {key: noted(reason) for reason, keys in NOTED.items() for key in keys}
STAGE |= {key: refused(advice, null="not set", false="not used") for advice, keys in REFUSED.items() for key in keys}

OTHER_STAGE_KEYS = (
    "stage_id",
    "limit_mm_per_prompt",
    "input_connectors",
    "output_connectors",
    "runtime",
    "engine_args",
    "engine_extras",
)
"""Keys of a stage that are not in :data:`STAGE`, because more than their stage decides about them."""

LIMITS = {"image": "images", "audio": "audios", "video": "videos"}
"""Our limits of a request by the names of ``limit_mm_per_prompt``."""

EVERY_STAGE = (
    "trust_remote_code", "distributed_executor_backend", "quantization", "enable_prefix_caching", "enable_chunked_prefill",
    "data_parallel_size", "pipeline_parallel_size", "dtype",
)  # fmt: skip
"""Keys of the file that hold for every stage which does not have them itself."""

TOP = {
    "async_chunk": "",
    "base_config": "",
    "pipeline": "",
    "platforms": "an empty section",
    "session_mode": "realtime conversations are turns that can be interrupted, on `omni serve` (docs/realtime.md)",
    "duplex_session": "limits of realtime conversations are flags of `omni serve`",
    "model_runner": "there is one model runner for each stage, named by the pipeline",
    "active_stream_window": "streams are bounded by the relay's credits",
    "custom_voice_dir": "",
    "forced_aligner": "there are no word timestamps",
    "runtime": "edges are the pipeline's, and bounded by the relay's credits",
    **dict.fromkeys(EVERY_STAGE, ""),
}
"""Keys of the file, with the note for those that have no rule of their own in ``convert``."""

SINGLE_TOP = (
    "async_chunk",
    "base_config",
    "pipeline",
    "session_mode",
    "model_runner",
    "custom_voice_dir",
    *EVERY_STAGE,
)
"""Keys of the file that have one value."""

SECTIONS = ("stages", "stage_args", "connectors", "edges")

PLATFORMS = ("cuda", "rocm", "xpu", "npu", "cpu")
"""Platforms that both sides know by one name."""

ELSEWHERE = {"musa": "torch has no such device here, so nothing detects it; the section is left out"}
"""Platforms that have no counterpart."""
