"""Files with the keys of the other systems' own examples, for the installed Qwen pipelines: everything in them is taken or noted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omni_cli.importing import output
from omni_cli.importing.report import Report
from omni_cli.importing.sglang_omni.convert import convert as from_sglang
from omni_cli.importing.vllm_omni.convert import convert as from_vllm
from omni_core.plugins import load_plugins

pytest.importorskip("omni_qwen3.plugin", reason="omni-qwen3 is not installed")
pytest.importorskip("omni_qwen25.plugin", reason="omni-qwen25 is not installed")

_PARAMS = "temperature: 0.0, top_p: 1.0, top_k: -1, max_tokens: 2048, seed: 42, repetition_penalty: 1.1"
_TALKER = "temperature: 0.9, top_p: 0.8, top_k: 40, max_tokens: 2048, seed: 42, repetition_penalty: 1.05"


def _engine(stage: str, worker: str, scheduler: str, kind: str, seqs: int, memory: float) -> str:
    return (
        f"{{model_stage: {stage}, max_num_seqs: {seqs}, model_arch: Qwen2_5OmniForConditionalGeneration, worker_type: {worker}, "
        f"scheduler_cls: vllm_omni.core.sched.x.{scheduler}, gpu_memory_utilization: {memory}, enforce_eager: true, "
        f"trust_remote_code: true, engine_output_type: {kind}, enable_prefix_caching: false}}"
    )


LEGACY = f"""\
stage_args:
- stage_id: 0
  runtime: {{process: true, devices: "0"}}
  engine_args: {_engine("thinker", "ar", "OmniARScheduler", "latent", 1, 0.8)}
  is_comprehension: true
  final_output: true
  final_output_type: text
  default_sampling_params: {{{_PARAMS}, detokenize: True}}
- stage_id: 1
  runtime: {{process: true, devices: "1"}}
  engine_args: {_engine("talker", "ar", "OmniARScheduler", "latent", 3, 0.8)}
  engine_input_source: [0]
  custom_process_input_func: vllm_omni.model_executor.stage_input_processors.qwen2_5_omni.thinker2talker
  default_sampling_params: {{{_TALKER}, detokenize: True, stop_token_ids: [8294]}}
- stage_id: 2
  runtime: {{process: true, devices: "0"}}
  engine_args: {_engine("code2wav", "generation", "OmniGenerationScheduler", "audio", 1, 0.15)}
  engine_input_source: [1]
  final_output: true
  final_output_type: audio
  default_sampling_params: {{{_PARAMS}, detokenize: True}}
runtime:
  enabled: true
  edges: [{{from: 0, to: 1}}, {{from: 1, to: 2}}]
"""

DEPLOY = f"""\
async_chunk: false
connectors: {{rdma: {{name: MooncakeTransferEngineConnector}}}}
stages:
- {{stage_id: 0, devices: "0", gpu_memory_utilization: 0.8, default_sampling_params: {{{_PARAMS}}}}}
- {{stage_id: 1, devices: "1", gpu_memory_utilization: 0.8, output_connectors: {{to_stage_2: rdma}}}}
- {{stage_id: 2, devices: "0", gpu_memory_utilization: 0.2, max_num_seqs: 4, input_connectors: {{from_stage_1: rdma}}}}
platforms: {{npu: {{stages: [{{stage_id: 2, devices: "2"}}]}}}}
"""

WHOLE = """\
config_cls: Qwen3OmniSpeechPipelineConfig
stages:
- name: preprocessing
  process: preprocessing
  factory: ...create_preprocessing_executor
  next: [image_encoder, audio_encoder, mm_aggregate]
  project_payload: {image_encoder: ...to_image_encoder, audio_encoder: ...to_audio_encoder, mm_aggregate: ...to_mm_aggregate}
- {name: image_encoder, process: image_encoder, factory: ...create_image_encoder, gpu: 0, next: mm_aggregate}
- {name: audio_encoder, process: audio_encoder, factory: ...create_audio_encoder, gpu: 0, next: mm_aggregate}
- name: mm_aggregate
  process: mm_aggregate
  factory: ...create_aggregate_executor
  wait_for: [preprocessing, image_encoder, audio_encoder]
  merge_fn: ...merge_for_thinker
  next: thinker
- name: thinker
  process: thinker
  factory: ...create_sglang_thinker_executor_from_config
  factory_args: {speech_enabled: true}
  gpu: 0
  next: [decode, talker_ar]
  stream_to: [talker_ar]
- {name: decode, process: decode, factory: ...create_decode_executor, terminal: true}
- {name: talker_ar, process: talker_ar, factory: ...create_talker, gpu: 1, next: code2wav, stream_to: [code2wav]}
- {name: code2wav, process: code2wav, factory: ...create_code2wav_scheduler, gpu: 1, terminal: true}
"""


def convert(convert: Callable[..., Report], folder: Path, name: str, text: str) -> Report:
    """The report of a file that has been checked to resolve."""
    (folder / name).write_text(text)
    report = convert(folder / name, load_plugins())
    assert not report.of("refused"), list(report.lines())
    output.validate(report, name, None, load_plugins())
    return report


def test_legacy_stages_of_qwen25(tmp_path: Path) -> None:
    """The pipeline is that of ``model_arch``; their vocoder is two stages here, which share its memory."""
    report = convert(from_vllm, tmp_path, "stages.yaml", LEGACY)
    assert (report.title, report.stages) == ("qwen25", {"0": "thinker", "1": "talker", "2": "code2mel + mel2wav"})
    engine = {"cuda_graphs": False, "prefix_cache": False}
    assert report.output["stages"] == {
        "thinker": {"gpu": 0, "gpu_memory": 0.8, "factory_args": {"max_running": 1, **engine}},
        "talker": {"gpu": 1, "gpu_memory": 0.8, "factory_args": {"max_running": 3, **engine}},
        "code2mel": {"gpu": 0, "gpu_memory": 0.075, "factory_args": {"max_running": 1}},
        "mel2wav": {"gpu": 0, "gpu_memory": 0.075},
    }
    params = report.output["defaults"]["params"]
    assert params["talker"]["stop_ids"] == [8294]
    assert params["token2wav"] == {"seed": 42}, "their vocoder's temperature and max_tokens choose nothing"
    noted = {entry.leaf.path[-1] for entry in report.of("noted")}
    assert noted == {"model_stage", "worker_type", "enabled"}


def test_a_deploy_file_of_qwen25(tmp_path: Path) -> None:
    report = convert(from_vllm, tmp_path, "qwen2_5_omni.yaml", DEPLOY)
    stages = report.output["stages"]
    assert stages["talker"] == {"gpu": 1, "gpu_memory": 0.8, "relay": "rdma"}
    assert stages["code2mel"] == {"gpu": 0, "gpu_memory": 0.1, "factory_args": {"max_running": 4}}
    assert stages["mel2wav"] == {"gpu": 0, "gpu_memory": 0.1}
    npu: Any = report.output["platforms"]["npu"]["stages"]
    assert npu == {"code2mel": {"gpu": 2}, "mel2wav": {"gpu": 2}}


@pytest.mark.parametrize(
    ("changed", "to", "message"),
    [
        ("engine_input_source: [1]", "engine_input_source: [0]", "thinker sends nothing to code2mel"),
        ("final_output_type: audio", "final_output_type: audio\n  is_comprehension: true", "in qwen25 it is false"),
        ("final_output: true\n  final_output_type: audio", "final_output: false", "in qwen25 it is true"),
        ("{from: 1, to: 2}", "{from: 2, to: 1}", "mel2wav sends nothing to talker"),
        ("0.15", "0.3", "more than all of its memory: thinker 0.8 + code2mel 0.15 + mel2wav 0.15"),
    ],
)
def test_another_topology_of_several_stages_is_refused(tmp_path: Path, changed: str, to: str, message: str) -> None:
    assert changed in LEGACY
    (tmp_path / "stages.yaml").write_text(LEGACY.replace(changed, to))
    refused = from_vllm(tmp_path / "stages.yaml", load_plugins()).of("refused")
    assert refused
    assert all(message in entry.outcome.text for entry in refused), [entry.outcome.text for entry in refused]


def test_a_stage_shares_the_process_of_the_one_before(tmp_path: Path) -> None:
    (tmp_path / "stages.yaml").write_text("process: false".join(LEGACY.rsplit("process: true", 1)))
    stages = from_vllm(tmp_path / "stages.yaml", load_plugins()).output["stages"]
    assert [stages[name]["process"] for name in ("code2mel", "mel2wav")] == ["talker", "talker"]


def test_a_whole_pipeline_of_qwen3(tmp_path: Path) -> None:
    """Text is also streamed to ``decode`` here, which other systems do not number."""
    report = convert(from_sglang, tmp_path, "whole.yaml", WHOLE)
    assert (report.title, report.counts["noted"]) == ("qwen3-omni", 0)
    streams = next(entry.outcome for entry in report.entries if entry.leaf.name == "stages[4].stream_to")
    assert streams.text == "thinker streams to decode too; results are the same"
    silent = convert(from_sglang, tmp_path, "whole.yaml", WHOLE.replace("stream_to: [talker_ar]", "stream_to: []"))
    assert [entry.outcome.text for entry in silent.of("noted")] == [
        "thinker streams to decode, talker_ar too; results are the same"
    ]
    (tmp_path / "whole.yaml").write_text(WHOLE.replace("stream_to: [talker_ar]", "stream_to: [code2wav]"))
    (refused,) = from_sglang(tmp_path / "whole.yaml", load_plugins()).of("refused")
    assert 'it is ["decode", "talker_ar"]' in refused.outcome.text
