"""Conversion of vLLM-Omni's deploy files: what each key becomes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omni_cli.importing.report import Outcome, Report
from omni_core.errors import ConfigError, PluginError

Convert = Callable[..., Report]

FULL = """\
async_chunk: true
dtype: bfloat16
enable_prefix_caching: false
connectors:
  shm: {name: SharedMemoryConnector, extra: {codec_chunk_frames: 25, codec_streaming: true, codec_secret: 1}}
stages:
  - stage_id: 0
    devices: "0,1"
    tensor_parallel_size: 2
    gpu_memory_utilization: 0.9
    max_num_seqs: 64
    max_num_batched_tokens: 2048
    max_model_len: 4096
    enforce_eager: true
    enable_chunked_prefill: false
    kv_cache_memory_bytes: 1073741824
    env: {A: 1, B: two}
    limit_mm_per_prompt: {audio: 4, image: 8}
    output_connectors: {to_stage_1: shm}
    default_sampling_params: {temperature: 0.5, top_k: -1, max_tokens: 9, detokenize: true, top_p: 1.0, ignore_eos: true}
  - stage_id: 1
    devices: "2"
    num_replicas: 1
    enable_prefix_caching: true
    input_connectors: {from_stage_0: shm}
    default_sampling_params: {seed: 42}
  - stage_id: 2
    devices: "2"
    max_num_seqs: 8
    max_model_len: 4096
    default_sampling_params: {temperature: 0.0, max_tokens: 65536}
platforms:
  npu:
    stages: [{stage_id: 0, gpu_memory_utilization: 0.5}]
  musa:
    stages: [{stage_id: 0, gpu_memory_utilization: 0.4}]
"""


def outcome(report: Report, key: str) -> Outcome:
    """The outcome of the one key of this name."""
    (found,) = [entry.outcome for entry in report.entries if entry.leaf.name == key]
    return found


def test_a_whole_file(vllm: Convert, tmp_path: Path, every_key_once: Callable[[Report, list[Path]], None]) -> None:
    report = vllm(FULL)
    assert not report.of("refused"), list(report.lines())
    every_key_once(report, [tmp_path / "speaker.yaml"])
    assert report.stages == {"0": "reader", "1": "talker", "2": "sound"}
    assert report.output == {
        "pipeline": "speaker",
        "defaults": {
            "params": {
                "reader": {"temperature": 0.5, "top_k": 0, "max_new_tokens": 9, "ignore_eos": True},
                "talker": {"seed": 42},
            }
        },
        "limits": {"audios": 4, "images": 8},
        "stages": {
            "reader": {
                "gpu": [0, 1],
                "tp_size": 2,
                "gpu_memory": 0.9,
                "env": {"A": "1", "B": "two"},
                "factory_args": {
                    "max_running": 64,
                    "max_batch_tokens": 2048,
                    "max_context": 4096,
                    "cuda_graphs": False,
                    "chunk_size": 2048,
                    "kv_cache_mb": 1024,
                    "dtype": "bfloat16",
                    "prefix_cache": False,
                },
            },
            "talker": {"gpu": 2, "factory_args": {"dtype": "bfloat16"}},
            "sound": {"gpu": 2, "factory_args": {"chunk": 25, "max_running": 8}},
        },
        "platforms": {"npu": {"stages": {"reader": {"gpu_memory": 0.5}}}},
    }
    noted = [entry.leaf.name for entry in report.of("noted")]
    assert noted == [
        "connectors.shm.extra.codec_secret",
        "stages[1].enable_prefix_caching",
        "platforms.musa.stages[0].stage_id",
        "platforms.musa.stages[0].gpu_memory_utilization",
    ]


def test_each_key_has_its_line(vllm: Convert) -> None:
    report = vllm(FULL)
    lines = {entry.leaf.name: entry.leaf.line for entry in report.entries}
    text = FULL.splitlines()
    assert "gpu_memory_utilization: 0.9" in text[lines["stages[0].gpu_memory_utilization"] - 1]
    assert "num_replicas" in text[lines["stages[1].num_replicas"] - 1]


def test_a_file_is_laid_over_its_base(vllm: Convert, tmp_path: Path, every_key_once: Any) -> None:
    base = "stages:\n- {stage_id: 0, max_num_seqs: 32, gpu_memory_utilization: 0.9}\n- {stage_id: 1, gpu_memory_utilization: 0.7}\n"
    report = vllm(
        "base_config: base.yaml\nstages:\n- {stage_id: 1, gpu_memory_utilization: 0.5}\n", {"base.yaml": base}
    )
    every_key_once(report, [tmp_path / "base.yaml", tmp_path / "speaker.yaml"])
    assert report.counts["refused"] == 0
    assert report.output["stages"] == {
        "reader": {"gpu_memory": 0.9, "factory_args": {"max_running": 32}},
        "talker": {"gpu_memory": 0.5},
    }
    replaced = [entry.outcome.text for entry in report.entries if entry.outcome.text.startswith("replaced")]
    assert replaced == [f"replaced by {tmp_path / 'speaker.yaml'}:3"]


def test_a_stage_may_repeat_what_the_file_says(vllm: Convert) -> None:
    report = vllm("dtype: float32\nstages: [{stage_id: 1, dtype: float16}]")
    stages = report.output["stages"]
    assert stages["reader"]["factory_args"] == {"dtype": "float32"}
    assert stages["talker"]["factory_args"] == {"dtype": "float16"}


def test_nested_and_flat_keys_are_the_same(vllm: Convert) -> None:
    flat = vllm('stages: [{stage_id: 0, max_num_seqs: 4, devices: "1", num_replicas: 1}]').output
    nested = vllm(
        'stages: [{stage_id: 0, engine_args: {max_num_seqs: 4}, runtime: {devices: "1", num_replicas: 1}}]'
    ).output
    assert flat == nested


def test_replicas_with_devices(vllm: Convert) -> None:
    report = vllm('stages: [{stage_id: 0, devices: "0,1,2,3", num_replicas: 2, tensor_parallel_size: 2}]')
    assert report.output["stages"]["reader"] == {"gpu": [0, 1, 2, 3], "replicas": 2, "tp_size": 2}


RANKS = 'devices: "0,1", tensor_parallel_size: 2, enable_expert_parallel'


def test_expert_parallel(vllm: Convert) -> None:
    report = vllm(f"stages: [{{stage_id: 0, {RANKS}: true}}]")
    assert report.output["stages"]["reader"] == {"gpu": [0, 1], "tp_size": 2, "factory_args": {"expert_parallel": True}}
    report = vllm(f"stages: [{{stage_id: 0, {RANKS}: false}}, {{stage_id: 1, enable_expert_parallel: true}}]")
    assert report.output["stages"] == {"reader": {"gpu": [0, 1], "tp_size": 2}}
    assert outcome(report, "stages[0].enable_expert_parallel").text == "ranks split every layer, by tp_size"
    assert outcome(report, "stages[1].enable_expert_parallel").text == "talker: one rank holds the whole model"
    platforms = "platforms: {npu: {stages: [{stage_id: 0, enable_expert_parallel: false}]}}"
    report = vllm(f"stages: [{{stage_id: 0, {RANKS}: true}}]\n{platforms}\n")
    npu = report.output["platforms"]["npu"]["stages"]["reader"]
    assert npu == {"factory_args": {"expert_parallel": False}}, "another value than the file's own"


def test_a_stage_without_expert_parallel_is_split_by_layers(vllm: Convert) -> None:
    report = vllm(f"stages: [{{stage_id: 0, {RANKS}: true}}]", pipeline="silent")
    (noted,) = report.of("noted")
    assert noted.outcome.text == "reader: ranks split every layer, by tp_size"
    assert report.output["stages"]["reader"] == {"gpu": [0, 1], "tp_size": 2}


def test_a_relay_with_settings(vllm: Convert) -> None:
    report = vllm("""\
connectors:
  rdma:
    name: MooncakeTransferEngineConnector
    extra: {protocol: rdma, device_name: "", host: auto, zmq_port: 50051, memory_pool_size: 536870912, memory_pool_device: cpu}
  small: {name: SharedMemoryConnector, extra: {shm_threshold_bytes: 1024}}
  unused: {name: NixlConnector}
stages:
- {stage_id: 0, output_connectors: {to_stage_1: rdma}}
- {stage_id: 1, input_connectors: {from_stage_0: rdma}, output_connectors: {to_stage_2: small}}
""")
    assert not report.of("refused"), list(report.lines())
    rdma = {"backend": "mooncake", "settings": {"protocol": "rdma"}, "slot_size_mb": 256, "device": "cpu"}
    assert report.output["relays"] == {"rdma": rdma, "small": {"backend": "shm", "inline_bytes": 1024}}
    assert report.output["stages"] == {"reader": {"relay": "rdma"}, "talker": {"relay": "small"}}
    assert outcome(report, "connectors.unused.name").kind == "noted"


LEGACY = """\
stage_args:
  - stage_id: 0
    stage_type: llm
    runtime: {process: true, devices: "0", max_batch_size: 2}
    engine_args:
      model_stage: thinker
      hf_config_name: thinker_config
      model_arch: SpeakerModel
      worker_type: ar
      scheduler_cls: vllm_omni.core.sched.omni_generation_scheduler.OmniGenerationScheduler
      gpu_memory_utilization: 0.8
      enforce_eager: true
      trust_remote_code: true
      engine_output_type: latent
      enable_prefix_caching: false
    is_comprehension: true
    final_output: true
    final_output_type: text
    default_sampling_params: {temperature: 0.0, top_p: 1.0, top_k: -1, max_tokens: 2048, seed: 42, detokenize: True}
  - stage_id: 1
    runtime: {process: false, devices: "0"}
    engine_args: {gpu_memory_utilization: 0.1}
    engine_input_source: [0]
    custom_process_input_func: vllm_omni.model_executor.stage_input_processors.qwen2_5_omni.thinker2talker
  - stage_id: 2
    engine_input_source: [1]
    final_output: true
    final_output_type: audio
    tts_args: {max_instructions_length: 500}
runtime:
  enabled: true
  defaults: {window_size: -1, max_inflight: 1}
  edges: [{from: 0, to: 1, window_size: -1}, {from: 1, to: 2}]
"""


def test_a_stage_of_another_kind(vllm: Convert) -> None:
    (refused,) = vllm(LEGACY.replace("stage_type: llm", "stage_type: diffusion")).of("refused")
    assert refused.leaf.name.endswith("stage_type"), refused


def test_the_older_schema(vllm: Convert, tmp_path: Path, every_key_once: Any) -> None:
    report = vllm(LEGACY)
    assert not report.of("refused"), list(report.lines())
    every_key_once(report, [tmp_path / "speaker.yaml"])
    assert report.output["stages"] == {
        "reader": {
            "gpu": 0,
            "gpu_memory": 0.8,
            "factory_args": {"max_running": 2, "cuda_graphs": False, "prefix_cache": False},
        },
        "talker": {"process": "reader", "gpu": 0, "gpu_memory": 0.1},
    }


def test_edges_of_both_schemas_do_not_share_their_numbers(vllm: Convert, tmp_path: Path, every_key_once: Any) -> None:
    report = vllm(f"{LEGACY}edges: [{{from: 1, to: 2, max_inflight: 4}}, {{from: 0, to: 2}}]\n")
    every_key_once(report, [tmp_path / "speaker.yaml"])
    assert [(entry.leaf.name, entry.outcome.text) for entry in report.of("refused")] == [
        (f"edges[1].{end}", "in speaker, reader sends nothing to sound; the topology is the pipeline's")
        for end in ("from", "to")
    ]
    names = [entry.leaf.name for entry in report.entries if entry.outcome.text == "reader sends to talker"]
    assert names == ["runtime.edges[0].from", "runtime.edges[0].to"]


@pytest.mark.parametrize(
    ("changed", "to", "message"),
    [
        ("model_arch: SpeakerModel", "model_arch: OtherModel", "serves SpeakerModel, speaker"),
        ("engine_input_source: [1]", "engine_input_source: [0]", "reader sends nothing to sound"),
        ("engine_input_source: [1]", "engine_input_source: [7]", "no stage 7"),
        ("vllm_omni.model_executor", "my_code", "a function of your own"),
        ("is_comprehension: true", "is_comprehension: false", "it is true"),
        ("final_output_type: audio", "final_output_type: video", "answers in text, audio"),
        ("{from: 1, to: 2}", "{from: 2, to: 1}", "sound sends nothing to talker"),
        ("omni_generation_scheduler.OmniGenerationScheduler", "mine.MyScheduler", "omni plugins list"),
    ],
)
def test_topology_that_is_not_ours_is_refused(vllm: Convert, changed: str, to: str, message: str) -> None:
    assert changed in LEGACY
    refused = vllm(LEGACY.replace(changed, to)).of("refused")
    assert refused
    assert any(message in entry.outcome.text for entry in refused)


REASONS = {
    "prompt_expand_func: vllm_omni.f": ("noted", "companion requests are parts that a stage's `expand_fn` makes"),
    "cfg_kv_collect_func: vllm_omni.f": ("noted", "`past_key_values` in a payload"),
    "omni_kv_config: {need_send_cache: true}": ("noted", "hand-over of KV caches"),
    "kv_transfer_config: {kv_role: x}": ("noted", "hand-over of KV caches"),
    "async_scheduling: true": ("noted", "no switch"),
    "async_scheduling: false": ("taken", "one before"),
    "trust_remote_code: true": ("taken", "code of a checkpoint is never run"),
    "trust_remote_code: maybe": ("refused", "must be true or false"),
    "distributed_executor_backend: mp": ("taken", "processes of its own"),
    "distributed_executor_backend: ray": ("refused", "`launcher`"),
    "quantization: fp8": ("noted", "has its weights as they are stored"),
    "quantization: awq": ("refused", "what a checkpoint stores is in its config.json"),
    "lora_path: a": ("refused", "merge it into"),
    "hf_overrides: {a: 1}": ("refused", "config.json"),
    "logits_processors: [a.b]": ("refused", "model runner"),
    "subtalker_sampling_params: {top_k: 1}": ("refused", "own group"),
    "tts_max_instructions_length: 500": ("noted", "text_characters"),
    "pipeline_parallel_size: 1": ("taken", "one device"),
    "enable_expert_parallel: true": ("taken", ""),
    "enable_expert_parallel: [1]": ("refused", "must be true or false"),
    "vae_use_tiling: false": ("taken", "not used"),
    "env: {A: [1]}": ("refused", "must be a text"),
    "limit_mm_per_prompt: {video: {count: 1}}": ("refused", "must map image, audio, video"),
    "limit_mm_per_prompt: {sound: 1}": ("refused", "must map image, audio, video"),
    "kv_cache_memory_bytes: 5": ("refused", "at least 1 MiB"),
    'devices: "0,0"': ("refused", "names a device twice"),
    "devices: gpu": ("refused", "device numbers"),
    "dtype: fp4": ("refused", "must be one of"),
    "process: 1": ("refused", "true or false"),
    "max_num_seqs: {a: 4}": ("refused", "single value"),
    "enforce_eager: {a: true}": ("refused", "single value"),
    "codec_chunk_frames: {a: 4}": ("refused", "single value"),
    "default_sampling_params: {temperature: {a: 0.5}}": ("refused", "single value"),
    "default_sampling_params: {extra_args: {a: 0.5}}": ("refused", "of a class of vLLM's"),
}


@pytest.mark.parametrize("key", REASONS)
def test_a_key_of_a_stage(vllm: Convert, key: str) -> None:
    kind, words = REASONS[key]
    found = vllm(f"stages:\n- stage_id: 0\n  {key}\n").entries[1].outcome
    assert found.kind == kind
    assert words in found.text


TOP = {
    "session_mode: duplex": ("taken", "realtime"),
    "session_mode: other": ("noted", "realtime"),
    "duplex_session: {max_sessions: 4}": ("noted", "flags of `omni serve`"),
    "custom_voice_dir: /voices": ("taken", ""),
    "forced_aligner: x": ("noted", "timestamps"),
    "async_chunk: maybe": ("refused", "true or false"),
    "async_chunk: {a: true}": ("refused", "single value"),
    "base_config: {a: b.yaml}": ("refused", "single value"),
    "dtype: {a: float32}": ("refused", "single value"),
    "connectors: {shm: {name: SharedMemoryConnector, extra: {codec_chunk_frames: 1}}}": ("noted", "no stage names"),
    "edges: [{from: 0, to: 2}]": ("refused", "sends nothing"),
    "edges: [{from: 0, weight: 2}]": ("refused", "must lead from one stage_id to another"),
    "stages: {a: 1}": ("refused", "must be a list of stages"),
    "platforms: {npu: {model_runner: v2}}": ("noted", "model runner"),
    "platforms: {npu: null}": ("taken", "not set"),
}


@pytest.mark.parametrize("key", TOP)
def test_a_key_of_the_file(vllm: Convert, key: str) -> None:
    kind, words = TOP[key]
    found = vllm(f"{key}\n").entries[0].outcome
    assert found.kind == kind
    assert words in found.text


def test_null_is_not_set(vllm: Convert) -> None:
    report = vllm("stages: [{stage_id: 0, max_model_len: null, gpu_memory_utilization: null}]\nconnectors: null\n")
    assert report.counts == {"taken": 4, "noted": 0, "refused": 0}
    assert report.output == {"pipeline": "speaker"}


def test_words_of_yaml_1_1_are_booleans(vllm: Convert) -> None:
    report = vllm("stages: [{stage_id: 0, enable_prefix_caching: no}]")
    assert report.output["stages"]["reader"]["factory_args"] == {"prefix_cache": False}


def test_the_pipeline_of_a_file(vllm: Convert, registry: Any) -> None:
    text = "stages: [{stage_id: 0, max_num_seqs: 4}]"
    assert vllm(text).title == "speaker"
    assert vllm(f"pipeline: speaker_text\n{text}").title == "speaker"
    assert vllm(text, pipeline="silent").title == "silent"
    with pytest.raises(PluginError, match=r"no pipeline is called 'spaeker'.*did you mean 'speaker'"):
        vllm(text, pipeline="spaeker")
    unknown = vllm(f"pipeline: speaker_txt\n{text}")
    assert unknown.counts == {"taken": 0, "noted": 0, "refused": 3}
    assert "did you mean 'speaker_text'" in outcome(unknown, "pipeline").text
    assert [line for line in unknown.lines() if "needs a pipeline" in line] == [], "the title says it once"
    by_model = vllm("stages: [{stage_id: 0, model_arch: SpeakerModel}]", name="mine.yaml")
    assert by_model.title == "speaker"


def test_a_model_is_written(vllm: Convert) -> None:
    assert vllm("stages: []", model="my/model").output["model_path"] == "my/model"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stages: [", "no valid YAML"),
        ("- 1\n", "must be a mapping"),
        ("", "must be a mapping"),
        ("{}", "must be a mapping"),
        ("a: 1\na: 2\n", "speaker.yaml:"),
        ("a: &x [*x]\n", "contains it"),
    ],
)
def test_a_file_that_cannot_be_read(vllm: Convert, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        vllm(text)
