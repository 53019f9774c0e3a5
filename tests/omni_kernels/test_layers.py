"""Decode steps of a whole decoder: rows alone and several, parts of long requests, experts as views."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
import torch

from omni_torch.operations.comparison import BOUNDS, relative_error
from omni_torch.operations.decoder_stack import decode_layers, example
from omni_torch.operations.few_rows import GROUP, Matrix

BOUND = BOUNDS["bfloat16"]


@pytest.fixture
def attention(device: str) -> Any:
    return import_module("omni_kernels.part_attention")


def given(device: str, lengths: list[int], **sizes: Any) -> tuple[Any, ...]:
    shape = {"hidden": 64, "heads": 4, "kv_heads": 2, "head_dim": 16, **sizes}
    return example(torch.bfloat16, torch.Generator(device).manual_seed(3), lengths=lengths, **shape)


@pytest.mark.parametrize("single", [0, 8], ids=["several rows", "rows alone"])
@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"experts": 5},
        {"experts": 40, "shared": True},
        {"hidden": 50, "heads": 3, "kv_heads": 1, "head_dim": 14, "experts": 5, "bias": True},
        {"head_norms": False, "pairs": True, "bias": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("lengths", [[5], [1, 40, 7]], ids=str)
def test_both_ways_agree_with_the_reference(
    single: int, sizes: dict[str, Any], lengths: list[int], layers: Any, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "SINGLE_ROWS", single)
    arguments = given(device, lengths, **sizes)
    # Logits of experts are far apart and amplify the rounding of their inputs. The interpreter truncates in place of rounding.
    assert relative_error(decode_layers, layers.decode_layers, arguments) <= (2.5 if device == "cpu" else 1) * BOUND


@pytest.mark.parametrize("single", [0, 8], ids=["several rows", "rows alone"])
@pytest.mark.parametrize("length", [63, 64, 65, 129, 300])
def test_long_requests_are_attended_to_in_parts(
    single: int, length: int, layers: Any, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest position is the first or the last of a part; parts that a shorter request does not have are not read."""
    monkeypatch.setattr(layers, "SINGLE_ROWS", single)
    arguments = given(device, [length, 3], layers=1)
    assert relative_error(decode_layers, layers.decode_layers, arguments) <= BOUND


def test_many_rows_read_longer_parts(layers: Any, attention: Any, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = given(device, [600, 5, 513], layers=1)
    monkeypatch.setattr(attention, "MANY_ROWS", 2)
    assert relative_error(decode_layers, layers.decode_layers, arguments) <= BOUND


def test_the_input_of_a_layer_is_captured(layers: Any, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    *arguments, _ = given(device, [4, 9], layers=3)
    for single in (0, 8):
        monkeypatch.setattr(layers, "SINGLE_ROWS", single)
        for capture in (0, 2, None):
            assert relative_error(decode_layers, layers.decode_layers, (*arguments, capture)) <= BOUND


def test_experts_that_are_slices_of_one_tensor_are_not_copied(layers: Any, device: str) -> None:
    *arguments, stack, _ = given(device, [5], experts=5)
    mixture = stack.layers[0].mixture
    experts = import_module("omni_kernels.row_experts")
    copied = experts.stacked_experts(mixture)
    assert copied is experts.stacked_experts(mixture), "copied once"
    gate_up, down = copied.gate_up.clone(), copied.down.clone()
    mixture.experts = [(Matrix(first), Matrix(second)) for first, second in zip(gate_up, down, strict=True)]
    del experts._stacked[mixture]
    views = experts.stacked_experts(mixture)
    assert views.gate_up.data_ptr() == gate_up.data_ptr()
    assert views.down.data_ptr() == down.data_ptr()
    assert torch.equal(views.gate_up, gate_up)
    assert relative_error(decode_layers, layers.decode_layers, (*arguments, stack, None)) <= BOUND


@pytest.mark.parametrize("case", ["in groups", "with a bias"])
def test_other_weights_are_left_to_the_reference(
    case: str, layers: Any, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    *arguments, stack, capture = given(device, [5])
    layer = stack.layers[0]
    if case == "in groups":
        weight = torch.randint(-127, 128, layer.output.weight.shape, dtype=torch.int8, device=device)
        groups = torch.full((len(weight), weight.shape[1] // GROUP), 1e-3, device=device)
        layer.output = Matrix(weight, groups.to(torch.bfloat16))
    else:
        gate_up = layer.dense[0].weight
        layer.dense = Matrix(gate_up, None, torch.ones(len(gate_up), device=device).to(gate_up)), layer.dense[1]
    monkeypatch.setattr(layers, "attend", None)
    assert relative_error(decode_layers, layers.decode_layers, (*arguments, stack, capture)) <= 2 * BOUND


def test_a_graph_serves_every_length(layers: Any, device: str) -> None:
    """Counters by which programs find the last one are zero again after each step."""
    if device != "cuda":
        pytest.skip("no GPU")
    with torch.inference_mode():
        x, cos, sin, pages, lengths, size, keys, values, stack, _ = given(device, [200, 30], experts=5)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            layers.decode_layers(x, cos, sin, pages, lengths, size, keys, values, stack)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            (captured,) = layers.decode_layers(x, cos, sin, pages, lengths, size, keys, values, stack)
        for each in ([200, 30], [129, 1], [128, 29], [1, 30]):
            lengths.copy_(torch.tensor(each, dtype=torch.int32))
            graph.replay()
            (expected,) = layers.decode_layers(x, cos, sin, pages, lengths, size, keys, values, stack)
            assert torch.equal(captured, expected)
