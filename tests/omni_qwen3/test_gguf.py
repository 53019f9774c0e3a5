"""A thinker from a GGUF file: every type gives the weights that the gguf package defines, and a wrong file is named."""

from __future__ import annotations

import shutil
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from networks import logits_of
from quantized_checkpoints import write_gguf
from safetensors.torch import save_file

from omni_core.errors import ConfigError
from omni_qwen3.config import read_config
from omni_qwen3.thinker_network import Thinker, load_thinker, metadata_of, open_gguf
from omni_torch.checkpoints import gguf_checkpoints
from omni_torch.checkpoints.gguf_checkpoints import NARROW, _narrowed
from omni_torch.operations.few_rows import widened
from omni_torch.processes.tensor_parallel import TensorParallel
from omni_torch.quantization import quantized_linear
from omni_torch.quantization.quantized_linear import (
    QUANTIZATIONS,
    GroupsLinear,
    Int4WeightLinear,
    Int8GroupsLinear,
    Int8WeightLinear,
)

gguf: Any = pytest.importorskip("gguf")
TYPES = gguf.GGMLQuantizationType


def write(
    source: Path, path: Path, kind: str, *, drop: str = "", more: dict[str, torch.Tensor] | None = None, **metadata: Any
) -> Path:
    """Write the thinker of a checkpoint, its large matrices as ``kind``; ``metadata`` replaces values of it."""
    right = metadata_of(read_config(source).thinker)
    return write_gguf(source, path, kind, {**right, **metadata}, prefix="thinker.", drop=drop, more=more)


def load(source: Path, path: Path | None) -> Thinker:
    return load_thinker(str(source), read_config(source), gguf=None if path is None else str(path))


@pytest.mark.usefixtures("with_kernels")
@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0"])
def test_weights_are_those_that_the_file_defines(tiny: dict[str, Path], tmp_path: Path, kind: str) -> None:
    path = write(tiny["a"], tmp_path / "thinker.gguf", kind)
    model, plain = load(tiny["a"], path), load(tiny["a"], None)
    assert any(isinstance(each, GroupsLinear) for each in model.modules()) == (kind in NARROW)
    parts = dict(plain.named_modules())
    for name, tensor in plain.state_dict().items():
        owner, _, last = name.rpartition(".")
        module: Any = model.get_submodule(owner)
        if isinstance(module, GroupsLinear):
            matrix = module.matrix
            assert matrix.scales is not None
            exact, found = parts[owner].weight, widened(matrix.weight, matrix.scales, torch.float32)
        elif not getattr(module, last).numel():  # experts in groups
            scales = [each.matrix.scales for pair in module._packed for each in pair]
            assert all(each is not None for each in scales)
            pairs = [
                widened(pair["down" in last].matrix.weight, pair["down" in last].matrix.scales, torch.float32)
                for pair in module._packed
            ]
            exact, found = tensor, torch.stack(pairs)
        else:
            exact, found = tensor, getattr(module, last)
        shaped = exact.detach().numpy()
        fits = (
            shaped.ndim > 1
            and not owner.endswith("gate")
            and shaped.shape[-1] % gguf.GGML_QUANT_SIZES[TYPES[kind]][0] == 0
        )
        whole = TYPES[kind] if fits else TYPES.F32
        wanted = torch.from_numpy(np.array(gguf.quants.dequantize(gguf.quants.quantize(shaped, whole), whole)))
        rtol = 0 if found is getattr(module, last, None) else 2**-7  # scale and product are rounded to bfloat16
        torch.testing.assert_close(found.detach(), wanted.view(exact.shape), rtol=rtol, atol=0, msg=name)


@pytest.mark.parametrize("architecture", ["qwen3vlmoe", "qwen3moe"])
def test_both_names_of_the_architecture_are_read(tiny: dict[str, Path], tmp_path: Path, architecture: str) -> None:
    """Converters say ``qwen3vlmoe``, with keys that begin so, and more of them."""
    text = read_config(tiny["a"]).thinker
    more = {
        "n_deepstack_layers": 2,
        "rope.dimension_sections": [*text.mrope_section, 0],
        "rope.freq_base": text.rope_theta,
    }
    named: dict[str, Any] = {"general.architecture": architecture, **(more if architecture == "qwen3vlmoe" else {})}
    model = load(tiny["a"], write(tiny["a"], tmp_path / "thinker.gguf", "F32", **named))
    plain = load(tiny["a"], None)
    for name, tensor in plain.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name
    assert torch.equal(logits_of(model), logits_of(plain))


@pytest.mark.usefixtures("with_kernels")
@pytest.mark.skipif(not quantized_linear._works(QUANTIZATIONS["int8_weight_only"]), reason="no int8 kernels here")
def test_eight_bits_of_a_file_are_kept_unless_the_stage_asks_for_others(tiny: dict[str, Path], tmp_path: Path) -> None:
    path, config = write(tiny["a"], tmp_path / "thinker.gguf", "Q8_0"), read_config(tiny["a"])
    for quantization, kind in {
        None: Int8GroupsLinear, "int8_weight_only_groups": Int8GroupsLinear, "int8_weight_only": Int8WeightLinear,
        "int4_weight_only": Int4WeightLinear,
    }.items():  # fmt: skip
        model = load_thinker(str(tiny["a"]), config, gguf=str(path), quantization=quantization)
        layers = [each for each in model.modules() if isinstance(each, GroupsLinear | Int8WeightLinear)]
        assert {type(each) for each in layers} == {kind}, quantization


def test_eight_bits_become_floats_where_no_kernel_computes_them(tiny: dict[str, Path], tmp_path: Path) -> None:
    model = load(tiny["a"], write(tiny["a"], tmp_path / "thinker.gguf", "Q8_0"))
    assert not [each for each in model.modules() if isinstance(each, GroupsLinear)]


def blocks_with_minima(kind: str) -> Any:
    """Return 6 rows of blocks, one of them without a scale. The package reads Q4_K and does not write it: its blocks are random bits."""
    random = np.random.default_rng(0)
    if kind == "Q4_1":
        rows = random.standard_normal((6, 96)).astype(np.float32)
        rows[2, 32:64] = 0.25
        return gguf.quants.quantize(rows, TYPES.Q4_1)
    blocks = random.integers(0, 256, (6, 3, 144), dtype=np.uint8)
    blocks[..., :4] = np.frombuffer(struct.pack("<2e", 0.01, 0.02), np.uint8)
    blocks[2, 1, 4:8] = 0
    return blocks.reshape(6, -1)


@pytest.mark.parametrize("kind", ["Q4_1", "Q4_K"])
def test_blocks_with_minima_are_those_of_the_package(kind: str) -> None:
    data = blocks_with_minima(kind)
    exact = torch.from_numpy(np.array(gguf.quants.dequantize(data, TYPES[kind])))
    values, scales = _narrowed(kind, data)
    found = widened(values, scales, torch.float32)
    step = scales[:, 0].float().abs().repeat_interleave(32, 1)
    # A zero point of up to 16 * 63 steps is rounded to 8 bits.
    zero = scales[:, 1].float().abs().repeat_interleave(32, 1)
    assert ((found - exact).abs() <= step * (zero + 15) * 2**-6 + 1e-6).all()
    assert (found - exact).norm() / exact.norm() < 0.01


@pytest.mark.parametrize(("kind", "size"), [("Q5_K", 176), ("Q6_K", 210)])
def test_five_and_six_bits_are_rounded_to_eight(kind: str, size: int) -> None:
    """The package reads them and does not write them: blocks of random bits, with scales of a few thousandths."""
    blocks = np.random.default_rng(0).integers(0, 256, (6, 3, size), dtype=np.uint8)
    half = np.frombuffer(struct.pack("<e", 0.003), np.uint8)
    for start in (0, 2) if kind == "Q5_K" else (208,):
        blocks[..., start : start + 2] = half
    data = blocks.reshape(6, -1)
    exact = torch.from_numpy(np.array(gguf.quants.dequantize(data, TYPES[kind])))
    values, scales = _narrowed(kind, data)
    assert values.dtype == torch.int8
    found = widened(values, scales, torch.float32, exact=True)
    assert ((found - exact).abs() <= scales.float().repeat_interleave(32, 1) * 0.51 * (1 + 2**-7)).all()


def test_a_layer_in_four_bits_is_unpacked_once(
    tiny: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpacked = []

    def counted(kind: str, data: Any) -> tuple[torch.Tensor, torch.Tensor]:
        unpacked.append(data.ctypes.data)
        return _narrowed(kind, data)

    monkeypatch.setattr(gguf_checkpoints, "_narrowed", counted)
    load(tiny["a"], write(tiny["a"], tmp_path / "thinker.gguf", "Q4_0"))
    assert len(unpacked) == len(set(unpacked)) > 4 * 3 * 8


def test_ranks_have_exactly_the_weights_that_the_file_defines(tiny: dict[str, Path], tmp_path: Path) -> None:
    config, path = read_config(tiny["a"]), write(tiny["a"], tmp_path / "thinker.gguf", "Q4_0")
    checkpoint = open_gguf(str(path), config)
    names = [name for name in checkpoint.shards if name.endswith((".weight", ".bias"))]
    shutil.copytree(tiny["a"], tmp_path / "plain", ignore=shutil.ignore_patterns("model*"))
    save_file(checkpoint.read(names), tmp_path / "plain" / "model.safetensors")
    for rank in range(2):
        parallel = TensorParallel(rank, 2)
        made = load_thinker(str(tiny["a"]), config, parallel=parallel, gguf=str(path)).state_dict()
        exact = load_thinker(str(tmp_path / "plain"), config, parallel=parallel).state_dict()
        assert made.keys() == exact.keys()
        assert not [each for each in made if not torch.equal(made[each], exact[each])]


def test_without_the_package_the_error_says_how_to_install_it(
    tiny: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tiny["a"], tmp_path / "thinker.gguf", "Q4_0")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(
        ConfigError, match=r'thinker.gguf: reading GGUF needs the gguf package: pip install "omni-torch\[gguf\]"'
    ):
        load(tiny["a"], path)


def test_wrong_files_are_named(tiny: dict[str, Path], tmp_path: Path) -> None:
    config = read_config(tiny["a"])
    wrong: dict[str, dict[str, Any]] = {
        r"general.architecture is 'llama', this model's is 'qwen3vlmoe' or 'qwen3moe'": {
            "general.architecture": "llama"
        },
        r"qwen3vlmoe.embedding_length is 99, config.json of .* says 64": {"embedding_length": 99},
        r"qwen3moe.expert_count is 99": {"general.architecture": "qwen3moe", "expert_count": 99},
        r"qwen3vlmoe.rope.freq_base is 5.0, config.json of .* says 1000000.0": {"rope.freq_base": 5.0},
        r"qwen3vlmoe.rope.dimension_sections is \[1, 2, 3, 0\]": {"rope.dimension_sections": [1, 2, 3, 0]},
    }
    for message, options in wrong.items():
        with pytest.raises(ConfigError, match=message):
            open_gguf(str(write(tiny["a"], tmp_path / "wrong.gguf", "F32", **options)), config)
    for name in (
        "rope_freqs.weight",
        "blk.0.attn_q.bias",
        "blk.99.attn_q.weight",
        "blk.1.ffn_up.weight",
        "output_norm.bias",
    ):
        more = {name: torch.zeros(4, 4)}
        with pytest.raises(ConfigError, match=rf"more.gguf: the tensor '{name}' has no place in this model"):
            open_gguf(str(write(tiny["a"], tmp_path / "more.gguf", "F32", more=more)), config)
    path = write(tiny["a"], tmp_path / "part.gguf", "F32", drop="thinker.model.layers.1.self_attn.q_proj.weight")
    with pytest.raises(ConfigError, match=r"lacks the tensor 'thinker.model.layers.1.self_attn.q_proj.weight'"):
        load(tiny["a"], path)
    with pytest.raises(ConfigError, match=r"nothing.gguf is missing"):
        load(tiny["a"], tmp_path / "nothing.gguf")
    with pytest.raises(ConfigError, match=r"is no file; give the path of a GGUF file"):
        load(tiny["a"], tmp_path)
    (tmp_path / "no.gguf").write_bytes(b"something else")
    with pytest.raises(ConfigError, match=r"no.gguf cannot be read"):
        load(tiny["a"], tmp_path / "no.gguf")
