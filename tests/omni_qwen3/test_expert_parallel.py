"""Expert parallelism: each rank reads and holds its own experts, whole and in the form of one process, and what it cannot do is named."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve
from quantized_checkpoints import write_gguf, write_quantized
from qwen_stages import create_thinker
from released import RELEASED
from tiers import few

from omni_core.config.completion import Machine
from omni_core.errors import ConfigError
from omni_qwen3.checkpoint import sources
from omni_qwen3.config import DecoderConfig, parse_config, read_config
from omni_qwen3.layers import Experts, Router, SparseMLP
from omni_qwen3.memory import networks_of
from omni_qwen3.sharding import local_config, part_of
from omni_qwen3.thinker_network import Thinker, load_thinker, metadata_of
from omni_qwen3.works import has_expert_parallel, ranks_of
from omni_testing.tiny.qwen3 import write_tiny_checkpoint
from omni_torch.checkpoints import prepared, weight_cache
from omni_torch.checkpoints.hub import listing
from omni_torch.checkpoints.weights import Checkpoint
from omni_torch.operations.few_rows import BFloat16Linear, Matrix
from omni_torch.processes.tensor_parallel import ALONE, Part, TensorParallel
from omni_torch.quantization import packed_linear, quantized_linear
from omni_torch.quantization.quantized_linear import QUANTIZATIONS

LAYERS = r"^thinker\.model\.layers\.\d+\.(self_attn|mlp\.experts)\..*_proj\.weight$"

Values = list[tuple[torch.Tensor, torch.Tensor | None]]


def rank_of(folder: Path, rank: int, size: int, **options: Any) -> Thinker:
    parallel = TensorParallel(rank, size)
    return load_thinker(str(folder), read_config(folder), parallel=parallel, expert_parallel=True, **options)


def mixtures(model: Thinker) -> list[Experts]:
    return [each for each in model.modules() if isinstance(each, Experts)]


def values_of(experts: Experts) -> Values:
    """The weights and scales of each expert's two matrices, in the order of the experts."""
    matrices = [each for pair in experts.matrices() for each in pair]
    assert all(isinstance(each, Matrix) for each in matrices)
    return [(each.weight, each.scales) for each in matrices if each is not None]


def assert_shared_out(whole: Thinker, ranks: list[Thinker]) -> None:
    """The experts of all ranks, one after another, are those of one process: the same bits, in the same form."""
    for one, *parts in zip(mixtures(whole), *map(mixtures, ranks), strict=True):
        joined = [value for part in parts for value in values_of(part)]
        for (weight, scales), (own, own_scales) in zip(joined, values_of(one), strict=True):
            assert weight.dtype == own.dtype
            assert torch.equal(weight, own)
            assert scales is own_scales is None or torch.equal(scales, own_scales)  # type: ignore[arg-type]


# --- the parts ---------------------------------------------------------------------------------------------------------
def test_the_experts_of_a_rank_follow_those_of_the_rank_before() -> None:
    thinker = parse_config(RELEASED).thinker
    assert thinker.experts == 128
    for size in (2, 4, 8):
        locals_ = [local_config(thinker, TensorParallel(rank, size), expert_parallel=True) for rank in range(size)]
        numbers = [number for each in locals_ for number in each.local_experts or ()]
        assert numbers == list(range(128))
        assert {len(each.local_experts or ()) for each in locals_} == {128 // size}
        assert {each.moe_intermediate_size for each in locals_} == {thinker.moe_intermediate_size}
        assert {each.heads for each in locals_} == {thinker.heads // size}
        assert {each.experts for each in locals_} == {128}, "the router chooses among all"


def test_one_rank_is_as_without() -> None:
    thinker = parse_config(RELEASED).thinker
    assert local_config(thinker, ALONE, expert_parallel=True) == thinker
    assert part_of(thinker, ALONE, expert_parallel=True)("layers.0.mlp.experts.0.down_proj.weight") is None


PARTS: dict[str, tuple[Part | None, Part | None]] = {
    # tensor: its part with slices of every expert, and with whole experts
    "self_attn.q_proj.weight": (Part(0, 1, 2), Part(0, 1, 2)),
    "self_attn.k_proj.weight": (Part(0, 1, 2), Part(0, 1, 2)),
    "self_attn.o_proj.weight": (Part(1, 1, 2), Part(1, 1, 2)),
    "mlp.gate_proj.weight": (Part(0, 1, 2), Part(0, 1, 2)),
    "mlp.down_proj.weight": (Part(1, 1, 2), Part(1, 1, 2)),
    "mlp.shared_expert.up_proj.weight": (Part(0, 1, 2), Part(0, 1, 2)),
    "mlp.shared_expert.down_proj.weight": (Part(1, 1, 2), Part(1, 1, 2)),
    "mlp.experts.5.gate_proj.weight": (Part(0, 1, 2), None),
    "mlp.experts.5.up_proj.weight": (Part(0, 1, 2), None),
    "mlp.experts.5.down_proj.weight": (Part(1, 1, 2), None),
    "mlp.gate.weight": (None, None),
    "input_layernorm.weight": (None, None),
}


@pytest.mark.parametrize("name", PARTS)
def test_the_part_of_each_tensor(name: str) -> None:
    thinker, parallel = parse_config(RELEASED).thinker, TensorParallel(1, 2)
    found = [part_of(thinker, parallel, whole)(f"thinker.model.layers.3.{name}") for whole in (False, True)]
    assert tuple(found) == PARTS[name]


def test_a_rank_s_first_expert_has_its_number_on_disk() -> None:
    base = "layers.0.mlp.experts"
    first = sources(f"{base}.gate_up_proj", torch.Size((2, 8, 6)), 4)
    assert first == [(f"{base}.{e}.{part}.weight", (4, 6)) for e in (4, 5) for part in ("gate_proj", "up_proj")]
    second = sources(f"{base}.down_proj", torch.Size((2, 6, 4)), 4)
    assert second == [(f"{base}.{e}.down_proj.weight", (6, 4)) for e in (4, 5)]
    packed = [sources(f"{base}.packed.{n}._weight", torch.Size((8, 6)), 4)[-1][0] for n in range(4)]
    assert packed == [f"{base}.{e}.{part}._weight" for e in (4, 5) for part in ("up_proj", "down_proj")]
    assert sources(f"{base}.packed.3._scales", torch.Size((8, 6)), 4) == [(f"{base}.5.down_proj._scales", (8, 6))]


# --- what a rank holds -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("shape", "size"), few([("a", 2), ("a", 4), ("b", 2), ("c", 2), ("c", 4)], 3))
def test_a_rank_reads_and_holds_its_own_experts_only(
    tiny: dict[str, Path], shape: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, reads = read_config(tiny[shape]).thinker, list[str]()
    plain_read = Checkpoint.read

    def noted(self: Checkpoint, names: Iterable[str], *rest: Any) -> dict[str, torch.Tensor]:
        reads.extend(names := list(names))
        return plain_read(self, names, *rest)

    whole = load_thinker(str(tiny[shape]), read_config(tiny[shape]))
    monkeypatch.setattr(Checkpoint, "read", noted)
    ranks = []
    for rank in range(size):
        reads.clear()
        ranks.append(rank_of(tiny[shape], rank, size))
        count = config.experts // size
        numbers = {int(name.split(".experts.")[1].split(".")[0]) for name in reads if ".experts." in name}
        assert numbers == set(range(rank * count, (rank + 1) * count))
        for experts in mixtures(ranks[-1]):
            assert experts.gate_up_proj.shape == (count, 2 * config.moe_intermediate_size, config.hidden_size)
            assert experts.down_proj.shape == (count, config.hidden_size, config.moe_intermediate_size)
    assert_shared_out(whole, ranks)
    for router, *others in zip(*(routers(each) for each in (whole, *ranks)), strict=True):
        assert all(torch.equal(router.weight, each.weight) for each in others)


def routers(model: Thinker) -> list[Router]:
    return [each for each in model.modules() if isinstance(each, Router)]


@torch.inference_mode()
@pytest.mark.parametrize("rows", [1, 9])
def test_each_rank_computes_the_rows_of_its_experts(
    tiny: dict[str, Path], rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All ranks choose alike, over all experts; each choice is computed by one of them."""
    whole = load_thinker(str(tiny["a"]), read_config(tiny["a"]))
    ranks = [rank_of(tiny["a"], rank, 4) for rank in range(4)]
    x = torch.randn(rows, whole.hidden_size, generator=torch.Generator().manual_seed(rows))
    computed = list[tuple[int, int]]()

    def counted(self: Experts, number: int, given: torch.Tensor) -> torch.Tensor:
        assert self._held is not None
        computed.extend([(self._held[number], row) for row in range(len(given))])
        return plain(self, number, given)

    plain = Experts._plain_expert
    monkeypatch.setattr(Experts, "_plain_expert", counted)
    for layer in range(len(whole.model.layers)):
        one, *parts = (model.model.layers[layer].mlp for model in (whole, *ranks))
        assert isinstance(one, SparseMLP)
        for part in parts:
            part.experts._is_silu = False  # one by one, which can be counted
        computed.clear()
        torch.testing.assert_close(sum(part(x) for part in parts), one(x), atol=1e-5, rtol=1e-4)
        _, chosen = one.gate(x)
        assert len(computed) == chosen.numel()
        assert {number for number, _ in computed} == set(chosen.flatten().tolist())


# --- narrow weights ----------------------------------------------------------------------------------------------------
FORMATS: dict[str, dict[str, Any]] = {
    "gptq": {"group": 32},
    "gptq with zero points": {"group": 32, "symmetric": False},
    "gptq with reordered inputs": {"group": 32, "symmetric": False, "reordered": True},
    "gptq in 8 bits": {"group": 32, "bits": 8},
    "awq": {"group": 32, "method": "awq", "symmetric": False},
}


@pytest.mark.usefixtures("with_kernels")
@pytest.mark.parametrize("name", FORMATS)
def test_experts_stay_as_a_checkpoint_stores_them(tiny: dict[str, Path], tmp_path: Path, name: str) -> None:
    """A slice of 16 of the 32 inner units is no whole group; whole experts are loaded as in one process."""
    folder = tmp_path / "narrow"
    write_quantized(tiny["a"], folder, LAYERS, **FORMATS[name])
    ranks, whole = [rank_of(folder, rank, 2) for rank in range(2)], load_thinker(str(folder), read_config(folder))
    assert_shared_out(whole, ranks)
    for rows in (1, 9):
        x = torch.randn(rows, whole.hidden_size, generator=torch.Generator().manual_seed(rows))
        for one, *parts in zip(whole.model.layers, *(rank.model.layers for rank in ranks), strict=True):
            torch.testing.assert_close(sum(part.mlp(x) for part in parts), one.mlp(x), atol=1e-5, rtol=1e-4)
    for rank in ranks:
        assert all(bool(each._packed) == ("reordered" not in name) for each in mixtures(rank))
        assert all(type(layer.self_attn.qkv_proj) is torch.nn.Linear for layer in rank.model.layers)
    sliced = load_thinker(str(folder), read_config(folder), parallel=TensorParallel(0, 2))
    assert not any(each._packed for each in mixtures(sliced))


@pytest.mark.usefixtures("with_kernels")
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "F16"])
def test_experts_of_a_gguf_file(tiny: dict[str, Path], tmp_path: Path, kind: str) -> None:
    pytest.importorskip("gguf")
    config = read_config(tiny["a"])
    path = str(write_gguf(tiny["a"], tmp_path / "thinker.gguf", kind, metadata_of(config.thinker), prefix="thinker."))
    ranks = [rank_of(tiny["a"], rank, 2, gguf=path) for rank in range(2)]
    assert_shared_out(load_thinker(str(tiny["a"]), config, gguf=path), ranks)
    assert all(bool(each._packed) == (kind != "F16") for rank in ranks for each in mixtures(rank))


@pytest.mark.skipif(
    not quantized_linear._works(QUANTIZATIONS["int8_weight_only"]), reason="no int8 kernels on this machine"
)
@pytest.mark.parametrize("name", ["int8_weight_only", "int8_weight_only_groups", "int4_weight_only"])
def test_quantised_experts_have_the_scales_of_one_process(
    tiny: dict[str, Path], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a scale belongs to an output, of which a slice of the inputs would have another."""
    monkeypatch.setattr(quantized_linear, "LEAST_VALUES", 0)
    ranks = [rank_of(tiny["a"], rank, 2, quantization=name) for rank in range(2)]
    assert all(each._packed for rank in ranks for each in mixtures(rank))
    assert_shared_out(load_thinker(str(tiny["a"]), read_config(tiny["a"]), quantization=name), ranks)


def test_experts_stay_in_bfloat16(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_tiny_checkpoint(tmp_path / "a", dtype="bfloat16")
    monkeypatch.setattr(packed_linear, "LEAST_VALUES", 0)
    monkeypatch.setattr(prepared, "keeps_bfloat16", lambda *arguments: True)
    ranks = [rank_of(folder, rank, 2) for rank in range(2)]
    assert all(type(each) is BFloat16Linear for rank in ranks for one in mixtures(rank) for each in one.packed)
    assert_shared_out(load_thinker(str(folder), read_config(folder)), ranks)


def test_prepared_weights_of_slices_and_of_whole_experts_are_other_files(
    tiny: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(weight_cache.VARIABLE, "1GiB")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(prepared, "LEAST_BYTES", 0)
    keys = list[str]()
    path_of = weight_cache.path_of

    def noted(key: str) -> Path:
        keys.append(key)
        return path_of(key)

    monkeypatch.setattr(weight_cache, "path_of", noted)
    sliced = load_thinker(str(tiny["a"]), read_config(tiny["a"]), parallel=TensorParallel(1, 2))
    first, again = rank_of(tiny["a"], 1, 2), rank_of(tiny["a"], 1, 2)
    assert keys[0] != keys[1] == keys[2]
    assert len(list(tmp_path.rglob("*.safetensors"))) == 2
    for made, mapped in zip(mixtures(first), mixtures(again), strict=True):
        assert torch.equal(made.gate_up_proj, mapped.gate_up_proj)
    assert mixtures(sliced)[0].gate_up_proj.shape != mixtures(again)[0].gate_up_proj.shape
    alone = [load_thinker(str(tiny["a"]), read_config(tiny["a"]), expert_parallel=each) for each in (False, True)]
    assert keys[3] == keys[4], "one rank has one file"
    assert torch.equal(mixtures(alone[0])[0].down_proj, mixtures(alone[1])[0].down_proj)


# --- errors and plans --------------------------------------------------------------------------------------------------
def changed(**fields: Any) -> DecoderConfig:
    return evolve(parse_config(RELEASED).thinker, **fields)


@pytest.mark.parametrize(
    ("config", "size", "expected"),
    [
        (changed(experts=126), 4, "tp_size: 4 does not divide the model's 126 experts, which expert_parallel leaves whole"),
        (changed(experts=0), 2, "expert_parallel: the checkpoint has no mixture of experts"),
        (changed(experts=0), 1, "expert_parallel: the checkpoint has no mixture of experts"),
        (changed(dense_layers=tuple(range(48))), 2, "expert_parallel: the checkpoint has no mixture of experts"),
        (changed(heads=6, kv_heads=2), 4, "tp_size: 4 does not divide the model's 6 attention heads"),
    ],
)  # fmt: skip
def test_what_cannot_be_shared_is_named(config: DecoderConfig, size: int, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected), torch.device("meta"):
        Thinker(config, TensorParallel(0, size), expert_parallel=True)


def test_whole_experts_need_no_even_number_of_units() -> None:
    config, parallel = changed(moe_intermediate_size=767), TensorParallel(0, 2)
    with pytest.raises(ConfigError, match=r"tp_size: 2 does not divide the model's 767 units of an expert"):
        local_config(config, parallel)
    assert local_config(config, parallel, expert_parallel=True).moe_intermediate_size == 767
    assert ranks_of(config) == (1,)
    assert ranks_of(config, expert_parallel=True) == (1, 2, 4, 8, 16)
    odd = changed(experts=126)
    assert ranks_of(odd) == (1, 2, 4, 8, 16)
    assert ranks_of(odd, expert_parallel=True) == (1, 2)


def test_an_external_decoder_has_experts_of_its_own() -> None:
    with pytest.raises(ConfigError, match=r"decoder: 'there:decoder' cannot be used with `expert_parallel`"):
        create_thinker("/nowhere", decoder="there:decoder", expert_parallel=True)


def test_one_rank_takes_the_option(tiny: dict[str, Path]) -> None:
    stage: Any = create_thinker(str(tiny["a"]), kv_cache_mb=16, expert_parallel=True)
    assert all(each._held is None for each in mixtures(stage._runner.model))


@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_plan_counts_the_weights_that_a_rank_loads(tiny: dict[str, Path], size: int) -> None:
    network = networks_of(read_config(tiny["a"]), expert_parallel=True)["thinker"]
    assert size in network.ranks
    counted = network.weight_values(listing(str(tiny["a"])).tensors, size)
    loaded = sum(each.numel() for each in rank_of(tiny["a"], 0, size).parameters())
    assert counted == loaded


def test_a_plan_proposes_ranks_that_can_share_the_experts(
    tiny: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from omni_qwen3 import memory
    from omni_qwen3.memory import place
    from omni_qwen3.pipeline import qwen3_omni
    from omni_qwen3.works import works

    config = qwen3_omni(str(tiny["b"]))  # six experts
    stages = [
        evolve(each, factory_args={**each.factory_args, "expert_parallel": True}) if each.name == "thinker" else each
        for each in config.stages
    ]
    given = evolve(config, stages=stages)
    assert (has_expert_parallel(config), has_expert_parallel(given)) == (False, True)
    decoder = evolve(read_config(tiny["b"]).thinker, experts=6, moe_intermediate_size=49)
    assert 2 in ranks_of(decoder, expert_parallel=True)
    assert 2 not in ranks_of(decoder)
    assert works(given).stages["thinker"].ranks == ranks_of(read_config(tiny["b"]).thinker, expert_parallel=True)
    asked = []

    def noted(*args: Any, **options: Any) -> Any:
        asked.append(options["expert_parallel"])
        return networks_of(*args, **options)

    monkeypatch.setattr(memory, "networks_of", noted)
    for each in (config, given):
        place(each, Machine([80 * 2**30] * 2, here=False))
    assert asked == [False, True]
    planned = place(given, Machine([80 * 2**30] * 2, here=False)).config.stage("thinker")
    assert planned.factory_args["expert_parallel"] is True
