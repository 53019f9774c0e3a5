"""Every kernel against its reference in float64, on the operation's own examples and on edge cases."""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any

import pytest
import torch

from omni_core.hookspecs import KernelComponent
from omni_core.references import load
from omni_kernels.plugin import omni_kernels
from omni_torch.operations import shared as operations
from omni_torch.operations.comparison import BOUNDS, relative_error

KERNELS = [(component, getattr(torch, name)) for component in omni_kernels() for name in component.dtypes]


def small(arguments: tuple[Any, ...]) -> bool:
    """Return True if the interpreter, which runs programs one after another, is fast enough for it."""
    return sum(each.numel() for each in arguments if isinstance(each, torch.Tensor)) < 600_000


def bound(dtype: torch.dtype) -> float:
    return BOUNDS[str(dtype).removeprefix("torch.")]


@pytest.mark.parametrize(("component", "dtype"), KERNELS, ids=lambda each: getattr(each, "name", str(each)))
def test_a_kernel_agrees_with_its_reference(component: KernelComponent, dtype: torch.dtype, device: str) -> None:
    assert component.reference is not None
    operation = load(component.reference)
    examples = operation.examples(dtype, torch.Generator(device).manual_seed(1))
    chosen = [each for each in examples if device != "cpu" or small(each)]
    assert len(chosen) > 1
    for arguments in chosen:
        assert relative_error(operation, load(component.target), arguments) <= bound(dtype)


def test_the_bounds_detect_a_wrong_kernel(device: str) -> None:
    def without_eps(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return operations.rms_norm(x, weight, 0.0)

    x = torch.full((2, 8), 1e-3, device=device)
    weight = torch.ones(8, device=device)
    norms = import_module("omni_kernels.norms")
    assert relative_error(operations.rms_norm, without_eps, (x, weight, 1e-6)) > bound(torch.float32)
    assert relative_error(operations.rms_norm, norms.rms_norm, (x, weight, 1e-6)) <= bound(torch.float32)


@pytest.mark.parametrize("size", [1, 2, 127, 128, 129])
def test_norms_of_every_width(size: int, device: str) -> None:
    norms = import_module("omni_kernels.norms")
    x, y, weight = (
        torch.randn(5, size, device=device),
        torch.randn(5, size, device=device),
        torch.randn(size, device=device),
    )
    assert relative_error(operations.rms_norm, norms.rms_norm, (x, weight, 1e-6)) <= 1e-5
    assert relative_error(operations.add_rms_norm, norms.add_rms_norm, (x, y, weight, 1e-6)) <= 1e-5


def test_heads_split_off_a_projection_are_normalised_in_place(device: str) -> None:
    norms = import_module("omni_kernels.norms")
    heads = torch.randn(3, 6, 16, device=device)
    weight = torch.randn(16, device=device)
    for part in (*heads.split([3, 2, 1], dim=1), heads.transpose(0, 1), heads[..., ::2].transpose(1, 2)):
        fitting = weight[: part.shape[-1]] if part.shape[-1] <= 16 else weight
        torch.testing.assert_close(
            norms.rms_norm(part, fitting, 1e-6), operations.rms_norm.reference(part, fitting, 1e-6)
        )
        total, normed = norms.add_rms_norm(part, part, fitting, 1e-6)
        torch.testing.assert_close(total, part + part)
        torch.testing.assert_close(normed, operations.rms_norm.reference(part + part, fitting, 1e-6))


def test_inputs_are_left_as_they_are_and_nothing_may_be_empty_of_rows(device: str) -> None:
    norms, snake = import_module("omni_kernels.norms"), import_module("omni_kernels.snake")
    x, weight = torch.randn(2, 3, 8, device=device), torch.randn(8, device=device)
    before = x.clone()
    norms.add_rms_norm(x, x, weight, 1e-6)
    snake.snake_beta(x, weight[:3], weight[:3])
    assert torch.equal(x, before)
    assert norms.rms_norm(x[:0], weight, 1e-6).shape == (0, 3, 8)
    assert snake.snake_beta(x[..., :0], weight[:3], weight[:3]).shape == (2, 3, 0)


def test_rows_too_wide_for_a_program_go_to_the_reference(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    norms = import_module("omni_kernels.norms")
    monkeypatch.setattr(norms, "WIDEST", 7)
    monkeypatch.setattr(norms, "launch", None)
    x, weight = torch.randn(2, 8, device=device), torch.randn(8, device=device)
    assert torch.equal(norms.rms_norm(x, weight, 1e-6), operations.rms_norm.reference(x, weight, 1e-6))
    assert torch.equal(norms.add_rms_norm(x, x, weight, 1e-6)[1], operations.rms_norm.reference(x + x, weight, 1e-6))


@pytest.mark.parametrize("samples", [1, 1023, 1024, 1025])
def test_the_activation_at_the_edges_of_blocks(samples: int, device: str) -> None:
    snake = import_module("omni_kernels.snake")
    x = torch.randn(2, 3, samples + 5, device=device)[..., 5:]
    alpha, beta = torch.randn(3, device=device), torch.randn(3, device=device)
    assert relative_error(operations.snake_beta, snake.snake_beta, (x, alpha, beta)) <= 1e-5


@pytest.mark.parametrize(
    ("channels", "outs", "samples", "taps", "dilation", "padding"),
    [(32, 16, 64, 3, 2, 4), (33, 17, 65, 3, 2, 4), (1, 1, 1, 7, 9, 54), (31, 1, 70, 7, 3, 5), (40, 129, 63, 1, 1, 0)],
)
def test_the_convolution_at_the_edges_of_its_blocks(
    channels: int, outs: int, samples: int, taps: int, dilation: int, padding: int, device: str
) -> None:
    kernel = import_module("omni_kernels.snake").snake_conv
    x = torch.randn(2, channels, samples + 3, device=device)[..., 3:]
    alpha, beta = torch.randn(2, channels, device=device)
    weight = torch.randn(outs, channels, taps, device=device)
    arguments = (x, alpha, beta, weight, torch.randn(outs, device=device), dilation, padding)
    assert relative_error(operations.snake_conv, kernel, arguments) <= 1e-5
    expected = operations.snake_conv.reference(*arguments)
    # A small beta makes large activations, whose products cancel: what is left of them is as wrong as they were large.
    torch.testing.assert_close(
        kernel(*arguments), expected, rtol=1e-4, atol=1e-5 * max(1.0, float(expected.abs().max()))
    )


def test_a_convolution_goes_on_from_its_context_as_if_it_had_begun_with_it(device: str) -> None:
    kernel = import_module("omni_kernels.snake").snake_conv
    x, (alpha, beta) = torch.randn(1, 8, 150, device=device), torch.randn(2, 8, device=device)
    parameters = alpha, beta, torch.randn(4, 8, 7, device=device), torch.randn(4, device=device), 3
    whole = kernel(x, *parameters, 18)
    parts = [kernel(x[..., :70], *parameters, 18), kernel(x[..., 70 - 18 :], *parameters, 0)]
    assert whole.shape == (1, 4, 150)
    torch.testing.assert_close(torch.cat(parts, -1), whole)
    assert torch.equal(kernel(torch.cat([x, x.flip(-1)]), *parameters, 18)[:1], whole), "the same beside others"


def test_waves_whose_phase_float32_cannot_tell_stay_between_zero_and_one(device: str) -> None:
    kernel = import_module("omni_kernels.snake").snake_conv
    near, far = torch.tensor([0.0, 0.5, -3.0, 100.0, -1e3]), torch.logspace(7, 10, 500)
    x = torch.cat([near, far, -far]).to(device).expand(1, 1, -1)
    none, scale = torch.zeros(1, device=device), 1 / (math.exp(-20) + 1e-9)
    output = kernel(x, none, none - 20, torch.ones(1, 1, 1, device=device), none, 1, 0)
    waves = (output.double() - x) / scale
    torch.testing.assert_close(waves[..., :5], torch.sin(x[..., :5].double()) ** 2, rtol=0, atol=2e-4)
    assert waves.min() >= -1e-4
    assert waves.max() <= 1 + 1e-4


def test_nan_stays_where_it_is(device: str) -> None:
    norms = import_module("omni_kernels.norms")
    x, weight = torch.randn(3, 8, device=device), torch.randn(8, device=device)
    x[1, 2] = math.nan
    assert norms.rms_norm(x, weight, 1e-6).isnan().any(-1).tolist() == [False, True, False]


def decoding(device: str, lengths: list[int]) -> tuple[object, ...]:
    """Arguments of a decode step of requests with these numbers of positions."""
    decode = pytest.importorskip("omni_torch.engine.attention.decode")
    generator = torch.Generator(device).manual_seed(2)
    example: tuple[object, ...] = decode._example(lengths, 6, 2, 24, dtype=torch.float32, generator=generator)
    return example


@pytest.mark.parametrize("lengths", [[1], [31, 32, 33], [511, 512, 513], [1, 1025]], ids=str)
def test_decode_attention_at_the_edges_of_blocks_and_parts(lengths: list[int], device: str) -> None:
    arguments = decoding(device, lengths)
    operation = import_module("omni_torch.engine.attention.decode").paged_decode
    kernel = import_module("omni_kernels.decode").paged_decode
    assert relative_error(operation, kernel, arguments) <= 1e-5
    assert relative_error(operation, kernel, (*arguments[:-1], 0.3)) <= 1e-5


def test_a_request_s_attention_is_the_same_to_the_bit_beside_others(device: str) -> None:
    query, keys, values, read, lengths, seen, scale = decoding(device, [40, 600])
    kernel = import_module("omni_kernels.decode").paged_decode
    both = kernel(query, keys, values, read, lengths, seen, scale)
    alone = kernel(query[:1], keys, values, read[:1, :40], lengths[:1], seen[:1, :40], scale)
    assert torch.equal(both[0], alone[0])


def test_attention_reads_no_slot_of_others(device: str) -> None:
    query, keys, values, read, lengths, seen, scale = decoding(device, [40, 600])
    kernel = import_module("omni_kernels.decode").paged_decode
    expected = kernel(query, keys, values, read, lengths, seen, scale)
    foreign = torch.ones(len(keys), dtype=torch.bool, device=device)
    foreign[read[0, :40]] = False
    keys[foreign], values[foreign] = math.nan, math.nan
    after = kernel(query, keys, values, read, lengths, seen, scale)
    assert torch.equal(after[0], expected[0])
    assert after[1].isnan().all()


def storing(device: str, rows: int, heads: int, kv_heads: int, width: int) -> tuple[torch.Tensor, ...]:
    """Arguments of the layer's write, as views: projections side by side, keys and values of a slot beside each other."""
    projected = torch.randn(rows, 2, heads + 2 * kv_heads, width, device=device)[:, 1]
    weights = torch.randn(heads + kv_heads, width, device=device)
    angles = torch.randn(rows, 1, width // 2, device=device).repeat(1, 1, 2)
    slots = torch.randperm(2 * rows + 1, device=device)[:rows]
    keys, values = torch.full((2 * rows + 1, 2, kv_heads, width), math.inf, device=device).unbind(1)
    return projected, weights, angles.cos(), angles.sin(), slots, keys, values


@pytest.mark.parametrize(
    "shape", [(1, 8, 8, 16), (5, 12, 2, 24), (3, 5, 1, 2), (2, 6, 3, 40), (4, 16, 16, 128)], ids=str
)
def test_keys_and_values_are_written_to_their_slots_only(shape: tuple[int, ...], device: str) -> None:
    kernel = import_module("omni_kernels.rotary").norm_rotary_store
    *given, keys, values = storing(device, *shape)
    right_keys, right_values = keys.clone(), values.clone()
    queries = kernel(*given, keys, values, 1e-6)
    right_queries = operations.norm_rotary_store.reference(*given, right_keys, right_values, 1e-6)
    torch.testing.assert_close(queries, right_queries)
    torch.testing.assert_close(keys, right_keys)
    assert torch.equal(values, right_values)
    untouched = torch.ones(len(keys), dtype=torch.bool, device=device)
    untouched[given[-1]] = False
    assert keys[untouched].isinf().all()
    assert values[untouched].isinf().all()


def test_a_cache_whose_rows_are_not_dense_is_written_all_the_same(device: str) -> None:
    kernel = import_module("omni_kernels.rotary").norm_rotary_store
    *given, keys, values = storing(device, 3, 4, 2, 16)
    wide = torch.zeros(*keys.shape, 2, device=device)
    kernel(*given, wide[..., 1], values, 1e-6)
    kernel(*given, keys, values, 1e-6)
    torch.testing.assert_close(wide[given[-1], ..., 1], keys[given[-1]])
    assert not wide[..., 0].any()
    nothing = [each[:0] for each in given]
    assert kernel(nothing[0], given[1], *nothing[2:], keys, values, 1e-6).shape == (0, 4, 16)


def test_heads_split_off_a_projection_are_rotated_in_place(device: str) -> None:
    kernel = import_module("omni_kernels.rotary").rotary
    heads, angles = torch.randn(3, 6, 16, device=device), torch.randn(3, 1, 8, device=device).repeat(1, 1, 2)
    for part in heads.split([3, 2, 1], dim=1):
        arguments = part, angles.cos(), angles.sin()
        torch.testing.assert_close(kernel(*arguments), operations.rotary.reference(*arguments))
    assert kernel(heads[:0], angles[:0], angles[:0]).shape == (0, 6, 16)
