"""Mistakes that vLLM-Omni 0.30 takes without a word: each is refused here, with its line and what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from omni_cli.importing.report import Report
from omni_core.errors import ConfigError

Convert = Callable[..., Report]

TWO = "stages:\n- {stage_id: 0}\n- {stage_id: 1}\n"
EDGE = "connectors: {shm: {name: SharedMemoryConnector}, rdma: {name: NixlConnector}}\n"

MISTAKES = {
    "an unknown key of the file": ("conectors: {}\nstages: []\n", "conectors", "did you mean 'connectors'"),
    "a stage's key at the top": ("stages: []\nmax_num_seqs: 4\n", "max_num_seqs", "in each of `stages`"),
    "an unknown key of a stage": (
        "stages:\n- stage_id: 0\n  gpu_memory_utilisation: 0.3\n",
        "stages[0].gpu_memory_utilisation",
        "did you mean 'gpu_memory_utilization'",
    ),
    "an unknown key among the engine's": (
        "stages:\n- stage_id: 0\n  engine_extras: {max_num_seq: 3}\n",
        "stages[0].engine_extras.max_num_seq",
        "did you mean 'max_num_seqs'",
    ),
    "a stage that the pipeline lacks": (
        "stages:\n- {stage_id: 7, max_num_seqs: 4}\n",
        "stages[0].max_num_seqs",
        "speaker has no stage 7; it has 0 (reader), 1 (talker), 2 (sound)",
    ),
    "two stages with one number": (
        "stages:\n- {stage_id: 0, max_num_seqs: 1}\n- {stage_id: 0, max_num_seqs: 2}\n",
        "stages[1].max_num_seqs",
        "second stage with stage_id 0 (the first: line 2)",
    ),
    "a stage without a number": ("stages:\n- {max_num_seqs: 1}\n", "stages[0].max_num_seqs", "has no stage_id"),
    "a stage_id that is no number": ("stages:\n- {stage_id: a}\n", "stages[0].stage_id", "whole number"),
    "a text where a number belongs": (
        "stages:\n- {stage_id: 0, max_num_seqs: lots}\n",
        "stages[0].max_num_seqs",
        "whole number from 1 on, is 'lots'",
    ),
    "a number out of range": ("stages:\n- {stage_id: 0, max_num_seqs: -3}\n", "stages[0].max_num_seqs", "is -3"),
    "more than all of the memory": (
        "stages:\n- {stage_id: 0, gpu_memory_utilization: 1.5}\n",
        "stages[0].gpu_memory_utilization",
        "above 0 and up to 1",
    ),
    "shares of one device above all": (
        'stages:\n- {stage_id: 0, devices: "0", gpu_memory_utilization: 0.6}\n- {stage_id: 1, devices: "0", gpu_memory_utilization: 0.5}\n',
        "stages[1].gpu_memory_utilization",
        "device 0 would have to give more than all of its memory: reader 0.6 + talker 0.5",
    ),
    "shares above all on one platform": (
        'stages:\n- {stage_id: 0, devices: "0", gpu_memory_utilization: 0.6}\n- {stage_id: 1, devices: "0", gpu_memory_utilization: 0.3}\n'
        "platforms: {npu: {stages: [{stage_id: 1, gpu_memory_utilization: 0.5}]}}\n",
        "platforms.npu.stages[0].gpu_memory_utilization",
        "device 0 on npu",
    ),
    "devices that do not match the ranks": (
        'stages:\n- {stage_id: 0, devices: "0,1,2", tensor_parallel_size: 2}\n',
        "stages[0].devices",
        "names 3 devices, but tensor_parallel_size 2 and 1 replicas need 2",
    ),
    "ranks of a stage that cannot be split": (
        'stages:\n- {stage_id: 1, devices: "0,1", tensor_parallel_size: 2}\n',
        "stages[0].tensor_parallel_size",
        "talker cannot be split",
    ),
    "a connector that is not defined": (
        f"{EDGE}stages:\n- {{stage_id: 1, input_connectors: {{from_stage_0: smh}}}}\n",
        "stages[0].input_connectors.from_stage_0",
        "no connector is called 'smh'; did you mean 'shm'?; vllm-omni would use shared memory",
    ),
    "an edge that is misspelt": (
        f"{EDGE}stages:\n- {{stage_id: 0, output_connectors: {{to_stageX: shm}}}}\n",
        "stages[0].output_connectors.to_stageX",
        "must be to_stage_N",
    ),
    "an edge that the pipeline lacks": (
        f"{EDGE}stages:\n- {{stage_id: 0, output_connectors: {{to_stage_2: shm}}}}\n",
        "stages[0].output_connectors.to_stage_2",
        "reader sends nothing to sound",
    ),
    "ends of an edge that disagree": (
        f"{EDGE}stages:\n- {{stage_id: 0, output_connectors: {{to_stage_1: shm}}}}\n"
        "- {stage_id: 1, input_connectors: {from_stage_0: rdma}}\n",
        "stages[1].input_connectors.from_stage_0",
        "reader would send by rdma and shm; a stage here sends by one relay",
    ),
    "a connector of no class": (
        "connectors: {a: {name: ShmConnector}}\nstages: []\n",
        "connectors.a.name",
        "did you mean 'SharedMemoryConnector'",
    ),
    "a connector without a class": (
        "connectors: {a: {extra: {x: 1}}}\nstages: []\n",
        "connectors.a.extra.x",
        "no `name`",
    ),
    "a key that no connector reads": (
        f"{EDGE.replace('Connector}, rdma', 'Connector, extra: {codec_chunk_frame: 4}}, rdma')}"
        "stages:\n- {stage_id: 1, input_connectors: {from_stage_0: shm}}\n",
        "connectors.shm.extra.codec_chunk_frame",
        "did you mean 'codec_chunk_frames'",
    ),
    "a platform that is misspelt": (
        f"{TWO}platforms: {{rocn: {{stages: [{{stage_id: 0, max_num_seqs: 4}}]}}}}\n",
        "platforms.rocn.stages[0].max_num_seqs",
        "no platform is called 'rocn'; did you mean 'rocm'",
    ),
    "a stage of a platform that the pipeline lacks": (
        f"{TWO}platforms: {{npu: {{stages: [{{stage_id: 7, max_num_seqs: 4}}]}}}}\n",
        "platforms.npu.stages[0].max_num_seqs",
        "has no stage 7",
    ),
    "runtime in a platform's section": (
        f'{TWO}platforms: {{npu: {{stages: [{{stage_id: 0, runtime: {{devices: "5"}}}}]}}}}\n',
        "platforms.npu.stages[0].runtime.devices",
        "does not read `runtime`",
    ),
    "a mapping that a platform replaces": (
        "stages:\n- {stage_id: 0, compilation_config: {a: 1, b: 2}}\n"
        "platforms: {npu: {stages: [{stage_id: 0, compilation_config: {a: 3}}]}}\n",
        "platforms.npu.stages[0].compilation_config.a",
        "loses compilation_config.b",
    ),
    "an unknown sampling parameter": (
        "stages:\n- {stage_id: 0, default_sampling_params: {temperatur: 0.5}}\n",
        "stages[0].default_sampling_params.temperatur",
        "did you mean 'temperature'",
    ),
    "a sampling parameter out of range": (
        "stages:\n- {stage_id: 0, default_sampling_params: {temperature: 9.0}}\n",
        "stages[0].default_sampling_params.temperature",
        "must be a number, 0 to 2, is 9.0",
    ),
    "a sampling parameter that the stage lacks": (
        "stages:\n- {stage_id: 1, default_sampling_params: {repetition_penalty: 1.2}}\n",
        "stages[0].default_sampling_params.repetition_penalty",
        "no such parameter for talker",
    ),
    "pipeline parallelism": (
        f"{TWO}pipeline_parallel_size: 2\n",
        "pipeline_parallel_size",
        "raise tensor_parallel_size",
    ),
    "a key of a diffusion stage": (
        "stages:\n- {stage_id: 0, ulysses_degree: 2}\n",
        "stages[0].ulysses_degree",
        "diffusion",
    ),
    "platforms that are no mapping": ("stages: []\nplatforms: 3\n", "platforms", "must map names of platforms"),
    "a platform that is no mapping": ("stages: []\nplatforms: {rocm: 5}\n", "platforms.rocm", "must be a mapping"),
    "an interpolation": (
        "stages:\n- {stage_id: 0, max_num_seqs: '${x}'}\n",
        "stages[0].max_num_seqs",
        "write the value",
    ),
    "a key twice in two forms": (
        "stages:\n- {stage_id: 0, max_num_seqs: 1, engine_args: {max_num_seqs: 2}}\n",
        "stages[0].engine_args.max_num_seqs",
        "given twice",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_refused_with_its_line(vllm: Convert, name: str) -> None:
    text, key, message = MISTAKES[name]
    report = vllm(text)
    (entry,) = [entry for entry in report.entries if entry.leaf.name == key]
    assert entry.outcome.kind == "refused"
    assert message in entry.outcome.text
    assert entry.leaf.line <= len(text.splitlines())
    assert key.rpartition(".")[2] in text.splitlines()[entry.leaf.line - 1]


@pytest.mark.parametrize("key", ["env", "compilation_config", "hf_overrides", "cache_config"])
def test_a_mapping_that_another_file_replaces(vllm: Convert, tmp_path: Path, key: str) -> None:
    base = f"stages:\n- stage_id: 0\n  {key}: {{A: 1, B: 2}}\n"
    report = vllm(f"base_config: base.yaml\nstages:\n- stage_id: 0\n  {key}: {{A: 3}}\n", {"base.yaml": base})
    found = {entry.leaf.name: entry for entry in report.entries if entry.leaf.file.endswith("base.yaml")}
    lost = found[f"stages[0].{key}.B"]
    assert lost.outcome.kind == "refused"
    assert f"lost in vllm-omni: {tmp_path / 'speaker.yaml'}:4 replaces the whole of `{key}`" in lost.outcome.text
    assert lost.leaf.line == 3
    assert found[f"stages[0].{key}.A"].outcome.text == f"replaced by {tmp_path / 'speaker.yaml'}:4"


def test_sessions_that_another_file_replaces(vllm: Convert) -> None:
    base = "duplex_session: {max_sessions: 4, idle_ttl_s: 9}\n"
    report = vllm("base_config: base.yaml\nduplex_session: {idle_ttl_s: 1}\n", {"base.yaml": base})
    lost = [entry.leaf.name for entry in report.of("refused")]
    assert lost == ["duplex_session.max_sessions"]


def test_sampling_parameters_of_two_files_are_merged(vllm: Convert) -> None:
    base = "stages:\n- {stage_id: 0, default_sampling_params: {temperature: 0.4, seed: 1}}\n"
    report = vllm(
        "base_config: base.yaml\nstages:\n- {stage_id: 0, default_sampling_params: {temperature: 0.9}}\n",
        {"base.yaml": base},
    )
    assert report.output["defaults"]["params"]["reader"] == {"temperature": 0.9, "seed": 1}


def test_files_that_are_based_on_each_other(vllm: Convert) -> None:
    with pytest.raises(ConfigError, match=r"base\.yaml:1: base_config leads back to itself: .*speaker.*base.*speaker"):
        vllm("base_config: base.yaml\n", {"base.yaml": "base_config: speaker.yaml\n"})


def test_a_base_that_is_missing(vllm: Convert) -> None:
    with pytest.raises(ConfigError, match=r"speaker\.yaml:2: base_config: there is no file .*bse\.yaml"):
        vllm("stages: []\nbase_config: bse.yaml\n")


def test_streams_of_a_pipeline_that_has_none(vllm: Convert) -> None:
    report = vllm("async_chunk: true\n", pipeline="silent")
    assert "no stage of silent streams to another" in report.of("refused")[0].outcome.text
    assert vllm("async_chunk: false\n", pipeline="silent").counts["refused"] == 0


def test_two_keys_that_disagree(vllm: Convert) -> None:
    report = vllm("stages:\n- {stage_id: 0, enforce_eager: false, max_cudagraph_capture_size: 0}\n")
    (refused,) = report.of("refused")
    assert "sets stages.reader.factory_args.cuda_graphs to false, but" in refused.outcome.text
    assert "(stages[0].enforce_eager) to true" in refused.outcome.text
