"""Thinker and talker with int8 weights: the quantised layers, the accepted names, and checks before anything is read."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from qwen_stages import create_talker, create_thinker
from torch import nn

from omni_core.errors import ConfigError
from omni_qwen3.config import read_config
from omni_qwen3.layers import Attention, Experts, Router, SparseMLP
from omni_qwen3.thinker_network import load_thinker
from omni_testing.tiny.qwen3 import write_tiny_checkpoint
from omni_torch.engine.scheduler import EngineScheduler
from omni_torch.operations.few_rows import widened
from omni_torch.operations.norm import RMSNorm
from omni_torch.processes.tensor_parallel import ALONE, TensorParallel
from omni_torch.quantization import quantized_linear
from omni_torch.quantization.packed_linear import PackedLinear
from omni_torch.quantization.quantized_linear import QUANTIZATIONS, Int8WeightLinear

NAME = "int8_weight_only"

Create = Callable[..., Any]


@pytest.fixture(scope="module")
def mid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("mid") / "checkpoint", shape="mid")


def model_of(create: Create, checkpoint: Path, **options: Any) -> nn.Module:
    stage = create(str(checkpoint), kv_cache_mb=16, **options)
    assert isinstance(stage, EngineScheduler)
    model = stage._runner.model
    assert isinstance(model, nn.Module)
    return model


@pytest.mark.skipif(not torch.backends.cpu.get_cpu_capability().startswith("AVX"), reason="no int8 kernels here")
@pytest.mark.parametrize("create", [create_thinker, create_talker])
def test_linears_experts_and_heads_are_quantized_and_the_rest_is_not(create: Create, mid: Path) -> None:
    model = model_of(create, mid, quantization=NAME)
    for name, module in model.named_modules():
        if isinstance(module, SparseMLP):
            layers = [layer for pair in module.experts._packed for layer in pair]
            assert len(layers) == 2 * len(module.gate.weight)
            assert all(isinstance(layer, Int8WeightLinear) for layer in layers), name
        if isinstance(module, RMSNorm | Router | nn.Embedding):
            assert module.weight.dtype == torch.float32, name
            assert module.weight.numel() > 0, name
        assert not isinstance(module, PackedLinear), name
        assert not isinstance(module, nn.Linear) or module.out_features == 1, f"{name} is not quantized"
    left = sum(each.numel() for name, each in model.named_parameters() if "embed" not in name)
    plain = model_of(create, mid)
    assert any(isinstance(each, PackedLinear) for each in plain.modules())
    assert left < 200_000, "norms, routers and gates are all that is left"


@pytest.mark.full
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
@pytest.mark.parametrize(
    "name",
    [name for name, each in QUANTIZATIONS.items() if quantized_linear._works(each) and "activation_int4" not in name],
)  # the one left out has the weights of another
def test_a_process_with_int8_weights_holds_much_less_memory(name: str, mid: Path, plain: float) -> None:
    assert plain > 250, "the weights alone are as large"
    assert held(mid, name) < 0.6 * plain


@pytest.fixture(scope="module")
def plain(mid: Path) -> float:
    """The MiB that a process with plain weights holds."""
    return held(mid, "")


def held(checkpoint: Path, quantization: str) -> float:
    """Measure, in a process of its own, the MiB that a thinker takes, as the system counts it: kernels could keep their inputs, and the
    allocator freed memory.
    """
    program = """
import re, sys
import omni_torch.engine.scheduler, omni_qwen3.thinker
from omni_core.stage.assembly import assemble

def private():
    return int(re.search(r"RssAnon:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 2**10

begin = private()
parts = "omni_qwen3.thinker:ThinkerRunner.from_checkpoint", "omni_torch.engine.scheduler:EngineScheduler"
stage = assemble(*parts, model_path=sys.argv[1], quantization=sys.argv[2] or None, kv_cache_mb=16)
print(private() - begin)
"""
    command = [sys.executable, "-c", program, checkpoint, quantization]
    return float(subprocess.run(command, capture_output=True, check=True).stdout)


@pytest.mark.skipif(not quantized_linear._works(QUANTIZATIONS[NAME]), reason="no int8 kernels here")
@pytest.mark.parametrize(
    ("name", "alike"), [("int8_weight_only_groups", True), ("int4_weight_only", True), (NAME, False)]
)
def test_ranks_have_the_values_of_one_process_where_scales_belong_to_groups(mid: Path, name: str, alike: bool) -> None:
    """Each rank rounds its own part. Of layers whose inputs are split, a scale per output is that of the part."""
    config = read_config(str(mid))
    parts = ALONE, TensorParallel(0, 2), TensorParallel(1, 2)
    models = [load_thinker(str(mid), config, quantization=name, parallel=parallel) for parallel in parts]

    def values(model: nn.Module) -> list[torch.Tensor]:
        found = [module.o_proj for module in model.modules() if isinstance(module, Attention)]
        found += [down for module in model.modules() if isinstance(module, Experts) for _, down in module._packed]
        return [widened(each.matrix.weight, each.matrix.scales, torch.float32) for each in found]

    whole, *shares = map(values, models)
    assert len(whole) > 32
    for one, *halves in zip(whole, *shares, strict=True):
        joined = torch.cat(halves, 1)
        assert torch.equal(joined, one) == alike
        assert (joined - one).norm() < 0.01 * one.norm()


@pytest.mark.parametrize("create", [create_thinker, create_talker])
def test_a_name_is_checked_before_the_weights_are_read(create: Create, tmp_path: Path) -> None:
    checkpoint = write_tiny_checkpoint(tmp_path / "tiny")
    for shard in checkpoint.glob("*.safetensors*"):
        shard.unlink()
    with pytest.raises(ConfigError, match=r"quantization: 'int8' is unknown; there are: int8_weight_only"):
        create(str(checkpoint), quantization="int8")
    with pytest.raises(ConfigError, match=r"quantization: 'int4_weight_only' is for stages on a CPU, .* is on cuda:0"):
        create(str(checkpoint), quantization="int4_weight_only", device="cuda:0")


@pytest.mark.parametrize(
    ("options", "name"), [({"quantization": NAME}, "quantization"), ({"tp_size": 2}, "tp_size")], ids=str
)
def test_an_external_decoder_rejects_options_of_the_built_in_layers(options: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigError, match=rf"decoder: 'there:decoder' cannot be used with `{name}`"):
        create_thinker("/nowhere", decoder="there:decoder", **options)


def test_a_decoder_that_is_not_installed_says_what_to_install(tmp_path: Path) -> None:
    checkpoint = write_tiny_checkpoint(tmp_path / "tiny")
    with pytest.raises(
        ConfigError, match=r"decoder: 'omni_nobody.layers:Decoder' cannot be imported \(pip install omni-nobody"
    ):
        create_thinker(str(checkpoint), decoder="omni_nobody.layers:Decoder")
