"""Names that vLLM-Omni and SGLang-Omni use, with what is here in their place: for the errors about them."""

from __future__ import annotations

_IMPORT = "`omni import vllm-omni FILE`, which converts the file"
_HEAD = "--accept tcp://HOST:PORT, and `omni hosts join tcp://HOST:PORT --stage NAME` on a worker (docs/hosts.md)"

FLAGS = {
    "--omni": "`omni serve` itself: leave it out",
    "--deploy-config": "the file in place of the pipeline's name, or --config FILE; `omni import vllm-omni FILE` converts it",
    "--stage-configs-path": _IMPORT,
    "--stage-overrides": "--set STAGE.FIELD=VALUE",
    **dict.fromkeys(("--async-chunk", "--no-async-chunk"), "nothing: stages stream to each other always"),
    **dict.fromkeys(("--stage-id", "--headless", "--omni-master-address", "--omni-master-port"), _HEAD),
    "--gpu-memory-utilization": "--set STAGE.gpu_memory=SHARE",
    "--max-model-len": "--set '*.factory_args.max_context=N'",
    "--max-num-seqs": "--set '*.factory_args.max_running=N'",
    "--tensor-parallel-size": "--set STAGE.tp_size=N",
    "--enforce-eager": "--set '*.factory_args.cuda_graphs=false'",
    "--tts-max-instructions-length": "nothing; `limits: {text_characters: N}` in a deploy file limits the text",
    "--model-path": "the pipeline's name, with --model FOLDER",
    "--trust-remote-code": "nothing: code that a checkpoint brings is never run",
    "--text-only": "another pipeline; see `omni pipelines`",
}
"""Flags of their command lines."""

NAMES = {
    **dict.fromkeys(("stage_args", "stage_id", "engine_args", "engine_extras", "base_config", "connectors"), _IMPORT),
    "prompt_expand_func": "`expand_fn` of a stage",
    "cfg_kv_collect_func": "`past_key_values` in a payload (docs/engine.md)",
    "default_sampling_params": "`defaults: {params: ...}`",
    "executor": "`factory` and `factory_args`",
    "get_next": "`next`, or `route_fn`",
    "gpu_placement": "`gpu` of each stage; `omni plan` prints all",
    "shm_metadata": "`relay_metadata`",
    "ExecutorConfig": "`factory` and `factory_args` of StageConfig",
    **dict.fromkeys(("compile_pipeline", "PipelineRunner"), "`omni_core.open`, or `omni run FILE`"),
}
"""Keys of their configs, and names of their Python packages."""
