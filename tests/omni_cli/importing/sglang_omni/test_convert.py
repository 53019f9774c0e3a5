"""Conversion of SGLang-Omni's configs: whole pipelines with a list of stages, and patches that map stages to settings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omni_cli.importing.report import Report

Convert = Callable[..., Report]

PATCH = """\
config_cls: SpeakerPipelineConfig
model_path: some/model
relay_backend: nixl
env_defaults: {OMP_NUM_THREADS: 8}
processes: {speech: {num_replicas: 2}}
mps: "off"
placement: {max_total_gpu_memory_fraction_per_gpu: 1.0}
stages:
  reader:
    gpu: 0
    tp_size: 1
    env: {A: 1}
    engine: {mem_fraction_static: 0.85, max_running_requests: 64, disable_cuda_graph: true, cuda_graph_max_bs: 8, quantization: null}
    factory: {max_seq_len: 8192, max_new_tokens: 512, device: cuda, prefix_cache: false}
    comm: {slot_size_mb: 512, credits: 2, cuda_ipc_slot_size_kb: 64}
  tts_engine:
    process: speech
    total_reserve_bytes: 6GiB
    can_accept_stream_before_payload: true
  sound: {gpu: 1, gpu_memory_fraction: 0.1, factory: {chunk: 10}}
"""


def test_a_patch(sglang: Convert, tmp_path: Path, every_key_once: Any) -> None:
    report = sglang(PATCH)
    assert not report.of("refused"), list(report.lines())
    every_key_once(report, [tmp_path / "speaker.yaml"])
    assert report.stages == {"reader": "reader", "tts_engine": "talker", "sound": "sound"}
    assert [entry.leaf.name for entry in report.of("noted")] == [
        "placement.max_total_gpu_memory_fraction_per_gpu",
        "stages.reader.engine.cuda_graph_max_bs",
        "stages.reader.comm.cuda_ipc_slot_size_kb",
    ]
    assert report.output == {
        "pipeline": "speaker",
        "model_path": "some/model",
        "defaults": {"params": {"reader": {"max_new_tokens": 512}}},
        "stages": {
            "talker": {"replicas": 2, "process": "speech", "gpu_memory": "6GiB"},
            "reader": {
                "gpu": 0,
                "tp_size": 1,
                "env": {"A": "1"},
                "gpu_memory": 0.85,
                "factory_args": {"max_running": 64, "cuda_graphs": False, "max_context": 8192, "prefix_cache": False},
                "relay": {"slot_size_mb": 512, "credits": 2},
            },
            "sound": {"gpu": 1, "gpu_memory": 0.1, "factory_args": {"chunk": 10}},
        },
        "relay_backend": "nixl",
        "env_defaults": {"OMP_NUM_THREADS": "8"},
    }


WHOLE = """\
model_path: some/model
name: mine
entry_stage: reader
terminal_stages_fn: sglang_omni.models.x.terminals
fused_stages: [[talker, sound]]
runtime_overrides: {sound: {chunk: 8}}
stages:
  - name: reader
    process: reader
    factory: sglang_omni.models.x.create_reader
    factory_args: {max_running: 4}
    next: [decode, talker]
    route_fn: ...route
    stream_to: [talker]
    gpu: [0, 1]
    tp_size: 2
  - {name: decode, executor: {factory: sglang_omni.models.x.create_decode, args: {chunk: 5}}, get_next: sglang_omni.x.end, terminal: true}
  - {name: talker, factory: sglang_omni.models.x.create_talker, next: sound, stream_to: [sound], relay: {slot_size_mb: 32, device: cpu}}
  - {name: sound, factory: sglang_omni.models.x.create_sound, terminal: true}
"""


def test_a_whole_pipeline(sglang: Convert, tmp_path: Path, every_key_once: Any) -> None:
    report = sglang(WHOLE)
    assert not report.of("refused"), list(report.lines())
    every_key_once(report, [tmp_path / "speaker.yaml"])
    assert [entry.leaf.name for entry in report.of("noted")] == ["name"]
    assert report.output == {
        "pipeline": "speaker",
        "model_path": "some/model",
        "fused_stages": [["talker", "sound"]],
        "stages": {
            "sound": {"factory_args": {"chunk": 8}},
            "reader": {"process": "reader", "factory_args": {"max_running": 4}, "gpu": [0, 1], "tp_size": 2},
            "decode": {"factory_args": {"chunk": 5}},
            "talker": {"relay": {"slot_size_mb": 32, "device": "cpu"}},
        },
    }


@pytest.mark.parametrize(
    ("text", "key", "message"),
    [
        ("stages: {raeder: {gpu: 0}}", "stages.raeder.gpu", "no stage 'raeder'; did you mean 'reader'"),
        ("stages: {reader: {gpus: 0}}", "stages.reader.gpus", "did you mean 'gpu'"),
        ("stages: {reader: {gpu: -1}}", "stages.reader.gpu", "from 0 on, is -1"),
        ("stages: {reader: {engine: {max_running_request: 4}}}", "stages.reader.engine.max_running_request", "did you mean"),
        ("stages: {reader: {factory: {max_runing: 4}}}", "stages.reader.factory.max_runing", "did you mean 'max_running'"),
        ("stages: {reader: {next: sound}}", "stages.reader.next", 'it is ["decode", "talker"]'),
        ("stages: {reader: {terminal: true}}", "stages.reader.terminal", "it is false"),
        ("stages: {reader: {merge_fn: mine.merge}}", "stages.reader.merge_fn", "function of your own"),
        ("stages: {reader: {http_routes: [/x]}}", "stages.reader.http_routes", "`omni serve`"),
        ("stages: {reader: {gpu_memory_fraction: 0.5, total_reserve_bytes: 1GiB}}", "stages.reader.total_reserve_bytes", "to 0.5"),
        ("stages: [{gpu: 0}]", "stages[0].gpu", "below a stage with a name"),
        ("relay_backend: nixel", "relay_backend", "did you mean 'nixl'"),
        ("model_path: {a: b}", "model_path.a", "single value"),
        ("stages: {reader: {env: 3}}", "stages.reader.env", "must map names of variables to texts"),
        ("stages: {reader: {relay: [1]}}", "stages.reader.relay", "must map names to values"),
        ("env_defaults: 1", "env_defaults", "must map names"),
        ("modelpath: x", "modelpath", "did you mean 'model_path'"),
        ("entry_stage: sound", "entry_stage", "enter speaker at reader"),
        ("fused_stages: [[reader, other]]", "fused_stages", "must be lists of stages"),
        ("processes: {x: {num_replicas: 2}}", "processes.x.num_replicas", "no stage has the process 'x'"),
        ("services: [{name: a}]", "services[0].name", "beside `omni serve`"),
    ],
)  # fmt: skip
def test_mistakes_are_refused(sglang: Convert, text: str, key: str, message: str) -> None:
    report = sglang(f"{text}\n")
    (outcome,) = [entry.outcome for entry in report.entries if entry.leaf.name == key]
    assert outcome.kind == "refused"
    assert message in outcome.text


def test_a_file_of_an_unknown_pipeline(sglang: Convert) -> None:
    report = sglang("config_cls: OtherPipelineConfig\nmodel_path: x\n")
    assert report.counts == {"taken": 0, "noted": 0, "refused": 2}
    assert "--pipeline NAME" in report.title
    assert sglang("config_cls: OtherPipelineConfig\nmodel_path: x\n", pipeline="speaker").counts["refused"] == 0


def test_the_model_of_the_command_is_the_stronger_one(sglang: Convert) -> None:
    report = sglang("model_path: x\n", model="y")
    assert report.output["model_path"] == "y"
    assert report.entries[0].outcome.text == "--model y is in its place"
