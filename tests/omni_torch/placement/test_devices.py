"""The arithmetic of memory, and the choice of devices, on networks of a few tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from omni_core.config.completion import DoesNotFitError, Machine
from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.errors import ConfigError
from omni_torch.checkpoints.headers import TensorInfo, main_dtype, read_headers
from omni_torch.placement import processor as this_machine
from omni_torch.placement.budgets import CPU_CACHE, CacheShape, Network, cpu_cache_bytes
from omni_torch.placement.devices import device_of, place
from omni_torch.placement.stage_memory import CONTEXT, is_rounded

GIB = 2**30
SHAPE = CacheShape(layers=4, kv_heads=2, head_dim=64, hidden_size=256, vocab_size=1000, max_context=8192)
NETWORKS = {
    "large": Network(
        ("large.",), cache=SHAPE, ranks=(1, 2, 4), parts=lambda name, ranks: 1 if "embed" in name else ranks
    ),
    "small": Network(("small.",)),
}
TENSORS = {
    "large.layers": TensorInfo("BF16", 8 * GIB),
    "large.embed": TensorInfo("BF16", GIB // 2),
    "small.all": TensorInfo("F32", GIB // 4),
    "unread": TensorInfo("BF16", 100 * GIB),
}


def config(large: dict[str, Any] | None = None, small: dict[str, Any] | None = None) -> PipelineConfig:
    stages = [
        StageConfig(
            **({"name": "large", "factory": "m:f", "process": "large", "next": "small", "gpu": "auto"} | (large or {}))
        ),
        StageConfig(
            **({"name": "small", "factory": "m:f", "process": "small", "terminal": True, "gpu": "auto"} | (small or {}))
        ),
    ]
    return PipelineConfig(model_path="m", name="two", stages=stages, placement_fn="m:place")


def placed(gpus: list[int], **fields: Any) -> PipelineConfig:
    machine = Machine([each * GIB for each in gpus], here=False)
    return place(config(**fields), machine, TENSORS, NETWORKS).config


def budget(placed: PipelineConfig, stage: str) -> int:
    return int(str(placed.stage(stage).gpu_memory).removesuffix("MiB")) * 2**20


@pytest.mark.parametrize(
    ("gpus", "ranks", "large", "small"),
    [
        ([24], 1, 0, 0),
        ([24, 24], 1, 0, 1),
        ([16, 24], 1, 1, 0),
        ([12, 12], 2, [0, 1], 0),
        ([8] * 4, 4, [0, 1, 2, 3], 0),
    ],
)
def test_the_largest_stage_is_split_only_if_it_must(gpus: list[int], ranks: int, large: Any, small: Any) -> None:
    found = placed(gpus)
    assert (found.stage("large").tp_size, found.stage("large").gpu, found.stage("small").gpu) == (ranks, large, small)


def test_every_dtype_is_that_of_the_stage_s_own_tensors() -> None:
    found = placed([24])
    assert found.stage("large").factory_args == {"dtype": "bfloat16"}
    assert found.stage("small").factory_args == {"dtype": "float32"}


def test_a_budget_is_weights_and_a_step_and_the_cache() -> None:
    fixed = placed([48], large={"factory_args": {"kv_cache_mb": 1024}})
    rows = 2 * SHAPE.hidden_size * 2
    position = SHAPE.position_bytes(2)
    cache = GIB * position // (position - rows)
    assert budget(fixed, "large") == pytest.approx(17 * GIB + SHAPE.step_bytes(2) + cache, abs=2 * 2**20)
    smaller = placed([48], large={"factory_args": {"kv_cache_mb": 1024, "max_batch_tokens": 512, "max_running": 4}})
    assert budget(smaller, "large") < budget(fixed, "large")
    narrow = placed([48], large={"factory_args": {"dtype": "float32", "kv_cache_mb": 1024}})
    assert budget(narrow, "large") > budget(fixed, "large") + 17 * GIB


def test_weights_of_8_bits_take_half_of_a_gpu() -> None:
    narrow = {"dtype": "bfloat16", "quantization": "float8_weight_only"}
    tensors = {**TENSORS, "large.layers.weight": TENSORS["large.layers"]}
    del tensors["large.layers"]

    def large(**given: Any) -> Any:
        pipeline = config(large={"factory_args": {**narrow, **given}})
        return place(pipeline, Machine([12 * GIB], here=False), tensors, NETWORKS)

    found = large()
    assert found.config.stage("large").tp_size == 1
    assert found.notes["large"].startswith("float8 weights 9.0 GiB, ")
    for quantization in (None, "int4_weight_only"):
        with pytest.raises(DoesNotFitError):
            large(quantization=quantization)


def test_words_become_what_they_hold_on_a_gpu_and_stay_on_a_cpu() -> None:
    tensors = {**TENSORS, "large.layers": TensorInfo("I32", GIB, per_word=8), "large.scales": TensorInfo("F16", 8, 0)}
    for gpus, taken in (([24 * GIB], "17.0 GiB"), ([], "3.0 GiB")):
        pipeline = config(large={"factory_args": {"dtype": "bfloat16"}})
        found = place(pipeline, Machine(gpus, here=False), tensors, NETWORKS)
        assert f"bfloat16 weights {taken}" in found.notes["large"]


@pytest.mark.parametrize(
    ("name", "values", "rounded"),
    [
        ("thinker.model.layers.0.mlp.experts.3.up_proj.weight", 1 << 20, True),
        ("thinker.lm_head.weight", 1 << 20, True),
        ("thinker.model.layers.0.self_attn.q_proj.weight", (1 << 13) - 1, False),
        ("thinker.model.layers.0.self_attn.q_proj.bias", 1 << 20, False),
        ("thinker.model.layers.0.mlp.gate.weight", 1 << 20, False),
        ("thinker.model.layers.0.mlp.shared_expert.gate_proj.weight", 1 << 20, True),
        ("thinker.model.embed_tokens.weight", 1 << 20, False),
        ("talker.code_predictor.model.codec_embedding.0.weight", 1 << 20, False),
        ("thinker.model.norm.weight", 1 << 20, False),
    ],
)
def test_what_counts_as_rounded_is_not_an_embedding_norm_or_router(name: str, values: int, rounded: bool) -> None:
    assert is_rounded(name, TensorInfo("BF16", values)) == rounded


def test_what_is_left_is_cache_and_no_gpu_is_overbooked() -> None:
    for gpus in ([24], [20, 24], [12, 12], [80] * 3):
        found = placed(gpus)
        for number, size in enumerate(gpus):
            there = [s for s in found.stages if number in (s.gpu if isinstance(s.gpu, list) else [s.gpu])]
            assert sum(budget(found, s.name) for s in there) + len(there) * CONTEXT <= size * GIB
    roomy = budget(placed([80]), "large")
    most = 32 * SHAPE.max_context * SHAPE.position_bytes(2)
    assert roomy == pytest.approx(17 * GIB + SHAPE.step_bytes(2) + most, abs=2 * 2**20)  # no more than requests can use


def test_a_device_that_is_given_is_kept_and_its_process_follows() -> None:
    assert placed([48, 48, 48], large={"gpu": 2}).stage("large").gpu == 2
    together = placed([48, 48], large={"process": "one", "gpu": 1}, small={"process": "one"})
    assert [stage.gpu for stage in together.stages] == [1, 1]
    half = placed([48, 48], large={"gpu_memory": 0.5})
    assert half.stage("large").gpu_memory == 0.5
    replicas = placed([24] * 4, large={"replicas": 3})
    assert replicas.stage("large").gpu == [0, 1, 2]


def test_a_stage_of_another_host_is_left_to_its_own_device() -> None:
    found = place(
        evolve(config(large={"host": "far"}), hosts={"far": "tcp://10.0.0.2:1"}), Machine([24 * GIB]), TENSORS, NETWORKS
    )
    assert found.config.stage("large").gpu is None
    assert found.config.stage("small").gpu == 0


@pytest.mark.parametrize(
    ("gpus", "fields", "words"),
    [
        ([4], {}, ["two does not fit 1 GPU of 4.0 GiB", "large 17.", "GPU of 24.0 GiB"]),
        ([8, 8], {}, ["4 GPUs of 8.0 GiB"]),
        ([24], {"large": {"factory_args": {"dtype": "float32"}}}, ["these with --option dtype=bfloat16"]),
        ([24], {"large": {"tp_size": 2}}, ["2 GPUs of 24.0 GiB"]),
    ],
)
def test_a_refusal_says_what_would_do(gpus: list[int], fields: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(DoesNotFitError) as caught:
        placed(gpus, **fields)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("name", ["kv_cache_mb", "kv_blocks", "max_running", "max_context"])
@pytest.mark.parametrize("value", ["many", 0, True, -1])
def test_a_size_that_is_no_number_is_named(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"stages\[large\]\.factory_args\.{name}: must be a number above 0, is"):
        placed([80], large={"factory_args": {"dtype": "bfloat16", name: value}})


def test_a_budget_that_cannot_hold_the_weights_is_named() -> None:
    with pytest.raises(
        ConfigError, match=r"stages\[large\]\.gpu_memory: 4\.0 GiB is too small: weights take 17\.0 GiB"
    ):
        placed([48], large={"gpu_memory": "4GiB"})


def test_without_a_gpu_the_memory_of_the_machine_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omni_torch.placement.devices.computes_bfloat16", lambda: True)
    here = Machine([])
    monkeypatch.setattr("omni_torch.placement.devices.available_memory", lambda: 30 * GIB)
    found = place(config(), here, TENSORS, NETWORKS)
    assert [stage.gpu for stage in found.config.stages] == [None, None]
    assert found.notes["large"] == "bfloat16 weights 17.0 GiB"
    monkeypatch.setattr("omni_torch.placement.devices.available_memory", lambda: 16 * GIB)
    with pytest.raises(DoesNotFitError, match=r"18\.0 GiB in bfloat16 \(large 17\.0 GiB\), 16\.0 GiB are free"):
        place(config(), here, TENSORS, NETWORKS)


def test_weights_that_stay_in_bfloat16_count_as_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Embeddings too; the second stage, which is stored in float32, counts as ever."""
    monkeypatch.setattr("omni_torch.placement.devices.computes_bfloat16", lambda: False)
    monkeypatch.setattr("omni_torch.placement.devices._has_kernel_for_bfloat16", lambda: True)
    for free, fits in ((18 * GIB, True), (18 * GIB - 1, False)):
        monkeypatch.setattr("omni_torch.placement.devices.available_memory", lambda free=free: free)
        if fits:
            assert place(config(), Machine([]), TENSORS, NETWORKS).notes["large"].startswith("float32 weights 34.0 GiB")
            continue
        with pytest.raises(DoesNotFitError, match=r"18\.0 GiB in float32, decoders as they are stored in bfloat16"):
            place(config(), Machine([]), TENSORS, NETWORKS)


@pytest.mark.parametrize(
    ("value", "device"), [("auto", "auto"), (3, 3), ([0, 1], [0, 1]), ("none", None), ("cpu", None), (None, None)]
)
def test_the_option_gpu(value: Any, device: Any) -> None:
    assert device_of(value) == device


@pytest.mark.parametrize("value", [-1, "cuda", True, 1.5, [0, "x"]])
def test_another_option_gpu_is_an_error(value: Any) -> None:
    with pytest.raises(ConfigError, match="--option gpu="):
        device_of(value)


def test_a_cache_on_a_cpu_holds_a_request_if_the_memory_is_there() -> None:
    assert cpu_cache_bytes(1000, 64 * GIB) == CPU_CACHE
    assert cpu_cache_bytes(4 * GIB, 64 * GIB) == cpu_cache_bytes(4 * GIB, None) == 4 * GIB
    assert cpu_cache_bytes(13 * GIB, 16 * GIB) == 4 * GIB
    assert cpu_cache_bytes(13 * GIB, GIB // 2) == GIB // 4


def test_this_machine_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    free = this_machine.available_memory()
    assert free is None or free > 0
    monkeypatch.setattr(Path, "read_text", lambda self: "processor: 0\nflags\t\t: fpu avx512f avx512_bf16\n")
    assert this_machine.computes_bfloat16()
    monkeypatch.setattr(Path, "read_text", lambda self: "flags\t\t: fpu avx512f\nbogus: bf16\n")
    assert not this_machine.computes_bfloat16()


@pytest.mark.parametrize("content", [b"", b"\xff" * 8, b"\x02" + bytes(7) + b"[]", b"\x0b" + bytes(7) + b'{"a": null}'])
def test_a_damaged_header_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ConfigError, match=r"model\.safetensors cannot be read"):
        read_headers(tmp_path)


def test_the_main_dtype_is_that_of_most_values() -> None:
    assert main_dtype([TensorInfo("F32", 10), TensorInfo("BF16", 100), TensorInfo("I64", 5)]) == "bfloat16"
    assert main_dtype([TensorInfo("F8_E4M3", 10)]) is None
    assert main_dtype([TensorInfo("F8_E4M3", 100), TensorInfo("BF16", 10)]) == "bfloat16", (
        "it is widened to the others' dtype"
    )
    assert main_dtype([]) is None
