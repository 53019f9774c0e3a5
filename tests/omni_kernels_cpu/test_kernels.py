"""Every kernel on every instruction set against its reference in float64; sizes that are multiples of nothing, poison, NaN."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from attrs import evolve
from tiers import few

from omni_core.hookspecs import KernelComponent
from omni_core.references import load
from omni_kernels_cpu import decoder, library, rows
from omni_kernels_cpu.plugin import omni_kernels
from omni_torch.operations import decoder_stack
from omni_torch.operations import shared as operations
from omni_torch.operations.comparison import BOUNDS, relative_error
from omni_torch.operations.decoder_stack import DecoderStack, LayerWeights, MixtureWeights
from omni_torch.operations.experts import experts
from omni_torch.operations.few_rows import Matrix, few_rows_linear, widened
from omni_torch.quantization.coded_weights import UNIT, coded_bfloat16
from omni_torch.quantization.quantized_values import quantized_int4, quantized_int8_groups

COMPONENTS = [each for each in omni_kernels() if all(find_spec(name) for name in each.requires)]
KERNELS = [(component, getattr(torch, name)) for component in COMPONENTS for name in component.dtypes]
FLOATS = [torch.float32, torch.bfloat16]

pytestmark = pytest.mark.usefixtures("instruction_set")


def bound(dtype: torch.dtype) -> float:
    return BOUNDS[str(dtype).removeprefix("torch.")]


def generator(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=generator(seed)).to(dtype)


def small(arguments: tuple[Any, ...]) -> bool:
    return sum(each.numel() for each in arguments if isinstance(each, torch.Tensor)) < 1_500_000


@pytest.mark.parametrize(("component", "dtype"), KERNELS, ids=lambda each: getattr(each, "name", str(each)))
def test_a_kernel_agrees_with_its_reference(component: KernelComponent, dtype: torch.dtype) -> None:
    assert component.reference is not None
    operation = load(component.reference)
    examples = [each for each in operation.examples(dtype, generator()) if small(each)]
    assert len(examples) > 1
    for arguments in examples:
        assert relative_error(operation, load(component.target), arguments) <= bound(dtype)


def test_the_bounds_detect_a_wrong_kernel() -> None:
    def without_eps(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return rows.rms_norm(x, weight, 0.0)

    arguments = torch.full((2, 8), 1e-3), torch.ones(8), 1e-6
    assert relative_error(operations.rms_norm, without_eps, arguments) > bound(torch.float32)
    assert relative_error(operations.rms_norm, rows.rms_norm, arguments) <= bound(torch.float32)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int8], ids=str)
def test_products_of_every_width_and_number_of_rows(dtype: torch.dtype) -> None:
    """Whatever is left over of vectors, of blocks of outputs and of blocks of rows; what lies beyond the matrices is NaN."""
    wide = torch.float32 if dtype == torch.int8 else dtype
    for size in (1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100):
        for count in (1, 2, 3, 4, 5, 7, 16):
            out = size % 11 + 1
            x = torch.cat([normal(count * size, dtype=wide), torch.full((64,), float("nan"), dtype=wide)])[
                : count * size
            ]
            scales = None
            if dtype == torch.int8:
                flat = torch.full((out * size + 64,), -128, dtype=torch.int8)
                flat[: out * size] = torch.randint(-127, 128, (out * size,), generator=generator(), dtype=torch.int8)
                scales = torch.rand(out, generator=generator())
            else:
                flat = torch.cat(
                    [normal(out * size, seed=2, dtype=dtype), torch.full((64,), float("nan"), dtype=dtype)]
                )
            weight = flat[: out * size].view(out, size)
            error = relative_error(few_rows_linear, rows.few_rows_linear, (x.view(count, size), weight, scales, None))
            assert error <= bound(wide), (size, count, out)


@pytest.mark.parametrize("size", few([1, 2, 15, 16, 17, 127, 129], 3))
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_norms_of_every_width(size: int, dtype: torch.dtype) -> None:
    x, y, weight = (
        normal(*shape, seed=seed, dtype=dtype) for seed, shape in enumerate([(5, size), (5, size), (size,)])
    )
    assert relative_error(operations.rms_norm, rows.rms_norm, (x, weight, 1e-6)) <= bound(dtype)
    assert relative_error(operations.add_rms_norm, rows.add_rms_norm, (x, y, weight, 1e-6)) <= bound(dtype)
    heads = normal(3, 6, 16, dtype=dtype)
    for part in heads.split([3, 2, 1], dim=1):  # not contiguous
        assert relative_error(operations.rms_norm, rows.rms_norm, (part, heads[0, 0], 1e-6)) <= bound(dtype)


def test_nan_stays_in_its_row() -> None:
    x, weight = normal(7, 70), normal(9, 70, seed=2)
    right = rows.few_rows_linear(x, weight)
    x[3, 69] = float("nan")
    made = rows.few_rows_linear(x, weight)
    assert made[3].isnan().all()
    others = [0, 1, 2, 4, 5, 6]
    assert torch.equal(made[others], right[others])
    assert rows.rms_norm(x, normal(70), 1e-6).isnan().any(1).tolist() == [row == 3 for row in range(7)]
    weight[2, 69] = float("nan")
    assert rows.few_rows_linear(x, weight)[0].isnan().tolist() == [out == 2 for out in range(9)]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("width", few([2, 16, 18, 33, 64], 2))
def test_attention_over_slots_reads_only_those_of_a_request(width: int, dtype: torch.dtype, threads: None) -> None:
    """Slots that no request has, and those behind a request's length, are NaN; a NaN of one request stays in it, whatever the team."""
    reference = pytest.importorskip("omni_torch.engine.attention.decode").paged_decode.reference
    paged_decode = load("omni_kernels_cpu.attention:paged_decode")
    lengths, heads, kv_heads = [1, 3, 17, 40], 6, 2
    longest, slots = max(lengths), sum(lengths) + 9
    order = torch.randperm(slots, generator=generator())
    read = order[-1].repeat(len(lengths), longest)  # a slot that is NaN
    begin = 0
    keys, values = (torch.full((slots, kv_heads, width), float("nan"), dtype=dtype) for _ in range(2))
    for row, length in enumerate(lengths):
        read[row, :length] = mine = order[begin : begin + length]
        keys[mine], values[mine] = (normal(length, kv_heads, width, seed=seed + row, dtype=dtype) for seed in (0, 9))
        begin += length
    query = normal(len(lengths), heads, width, seed=20, dtype=dtype)
    counts = torch.tensor(lengths)
    seen = torch.arange(longest) < counts.unsqueeze(1)
    torch.set_num_threads(1)
    made = paged_decode(query, keys, values, read, counts, seen, None)
    for row, length in enumerate(lengths):  # the reference of a row alone has nothing that is not its own
        alone = query[row : row + 1], keys, values, read[row : row + 1, :length].contiguous(), counts[row : row + 1]
        right = reference(
            *(each.double() if each.is_floating_point() else each for each in alone), seen[row : row + 1, :length], None
        )
        assert (made[row].double() - right[0]).norm() <= bound(dtype) * right.norm(), length
        assert torch.equal(paged_decode(*alone, seen[row : row + 1, :length], None)[0], made[row])
    torch.set_num_threads(3)
    assert torch.equal(paged_decode(query, keys, values, read, counts, seen, None), made)
    values[read[2, 5]] = float("nan")
    spoilt = paged_decode(query, keys, values, read, counts, seen, None)
    assert [bool(each.isnan().any()) for each in spoilt] == [False, False, True, False]
    assert torch.equal(spoilt[[0, 1, 3]], made[[0, 1, 3]])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_experts_read_only_the_chosen_ones(dtype: torch.dtype) -> None:
    """Experts that no row has chosen are NaN, and so is what lies behind the matrices; a row with NaN spoils no other."""
    count, hidden, inner = 5, 45, 19
    gate_up, down = (
        torch.full((count, 2 * inner, hidden), float("nan"), dtype=dtype),
        torch.full((count + 1, hidden, inner), float("nan"), dtype=dtype),
    )
    down = down[:count]
    for expert in (0, 2, 3):
        gate_up[expert], down[expert] = (
            normal(2 * inner, hidden, seed=expert, dtype=dtype),
            normal(hidden, inner, seed=9, dtype=dtype),
        )
    x, shares = normal(7, hidden, seed=3, dtype=dtype), torch.rand(7, 2, generator=generator()).to(dtype)
    chosen = torch.tensor([[0, 2], [3, 0], [2, 3], [0, 3], [2, 0], [3, 2], [0, 2]])
    arguments = x, shares, chosen, gate_up, down
    made = rows.experts(*arguments)
    right = experts.reference(*(each.double() if each.is_floating_point() else each for each in arguments))
    assert (made.double() - right).norm() <= bound(dtype) * right.norm()
    x[4, hidden - 1] = float("nan")
    spoilt = rows.experts(*arguments)
    assert spoilt.isnan().all(1).tolist() == [row == 4 for row in range(7)]
    others = [0, 1, 2, 3, 5, 6]
    assert torch.equal(spoilt[others], made[others])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_row_does_not_depend_on_the_batch_or_on_threads(dtype: torch.dtype, threads: None) -> None:
    x, weight = normal(11, 90, dtype=dtype), normal(37, 90, seed=2, dtype=dtype)
    gate_up, down = normal(6, 34, 90, seed=3, dtype=dtype), normal(6, 90, 17, seed=4, dtype=dtype)
    chosen = torch.stack([torch.randperm(6, generator=generator(row))[:2] for row in range(11)])
    shares = torch.rand(11, 2, generator=generator()).to(dtype)
    torch.set_num_threads(1)
    product, mixed = rows.few_rows_linear(x, weight), rows.experts(x, shares, chosen, gate_up, down)
    assert relative_error(experts, rows.experts, (x, shares, chosen, gate_up, down)) <= bound(dtype)
    for row in range(11):
        one = slice(row, row + 1)
        assert torch.equal(rows.few_rows_linear(x[one], weight), product[one])
        assert torch.equal(rows.experts(x[one], shares[one], chosen[one], gate_up, down), mixed[one])
    for count in (2, 3):
        torch.set_num_threads(count)
        assert torch.equal(rows.few_rows_linear(x, weight), product)
        assert torch.equal(rows.experts(x, shares, chosen, gate_up, down), mixed)


@pytest.mark.parametrize("count", few([1, 7, 32, 33], 2))
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_experts_of_one_rank(dtype: torch.dtype, count: int) -> None:
    """Choices of other experts are left out: all ranks together are the mixture, and a row without a choice is zero. Of more rows than the
    library takes, the reference computes.
    """
    x, gate_up, down = normal(count, 45, dtype=dtype), normal(6, 38, 45, dtype=dtype), normal(6, 45, 19, dtype=dtype)
    chosen = torch.stack([torch.randperm(6, generator=generator(row))[:2] for row in range(count)])
    chosen[-1] = torch.tensor([4, 5])
    shares = torch.rand(count, 2, generator=generator()).to(dtype)
    parts = []
    for first in (0, 4):
        mine = slice(first, first + 4)
        arguments = x, shares, chosen, gate_up[mine], down[mine], first, 6
        assert relative_error(experts, rows.experts, arguments) <= bound(dtype)
        parts.append(rows.experts(*arguments))
    assert (parts[0][-1] == 0).all()
    whole = rows.experts(x, shares, chosen, gate_up, down)
    assert (sum(parts).double() - whole.double()).norm() <= 3 * bound(dtype) * whole.double().norm()


STACK: dict[str, Any] = {
    "hidden": 50, "heads": 6, "kv_heads": 2, "head_dim": 18, "lengths": [1, 40, 7, 16, 17], "experts": 5, "shared": True, "bias": True,
}  # fmt: skip


def step(dtype: torch.dtype, seed: int = 1) -> list[Any]:
    """Return arguments of ``decode_layers``; slots that are not read hold NaN."""
    arguments = list(decoder_stack.example(dtype, generator(seed), **STACK))
    for cache in (arguments[6], arguments[7]):
        cache[cache == decoder_stack.POISON] = float("nan")
    return arguments


def copied(arguments: list[Any], rows: list[int] | None = None) -> list[Any]:
    """Return a copy, of some rows only."""
    made = [each.clone() if isinstance(each, torch.Tensor) else each for each in arguments]
    if rows is not None:
        made[:5] = [each[rows] for each in made[:5]]
    return made


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_step_reads_nothing_else_and_a_row_depends_on_itself_only(dtype: torch.dtype, threads: None) -> None:
    arguments = step(dtype)
    torch.set_num_threads(1)
    whole = copied(arguments)
    hidden, captured = decoder.decode_layers(*whole)
    assert hidden.isfinite().all(), "unread slots hold NaN"
    assert captured.isfinite().all()
    for row in range(len(hidden)):
        alone, alone_captured = decoder.decode_layers(*copied(arguments, [row]))
        assert torch.equal(alone[0], hidden[row])
        assert torch.equal(alone_captured[0], captured[row])
    for count in (2, 3):
        torch.set_num_threads(count)
        again = copied(arguments)
        assert torch.equal(decoder.decode_layers(*again)[0], hidden)
        assert all(torch.equal(again[each].nan_to_num(), whole[each].nan_to_num()) for each in (6, 7))
    poisoned = copied(arguments)
    poisoned[0][2, 0] = float("nan")
    rows = decoder.decode_layers(*poisoned)[0]
    others = [0, 1, 3, 4]
    assert rows[2].isnan().all()
    assert torch.equal(rows[others], hidden[others])


def test_caches_in_turn() -> None:
    """The layers of a stack are pointed to the cache of each call: tuples, which an engine has, and tensors in any order."""
    arguments = step(torch.float32)
    expected, given = decoder.decode_layers(*copied(arguments))[0], copied(arguments)
    joined = [each.clone() for each in arguments[6:8]]
    first, second = ([tuple(each.clone().unbind()) for each in joined] for _ in range(2))
    for caches in (first, first, second, joined, second, first):
        for layer in [layer for some in (first, second, joined) for each in some for layer in each]:
            layer.fill_(float("nan"))  # who reads another cache than that of the call shows it
        for each, content in zip(caches, arguments[6:8], strict=True):
            for layer, right in zip(each, content, strict=True):
                layer.copy_(right)
        given[6:8] = caches
        assert torch.equal(decoder.decode_layers(*given)[0], expected)


def test_a_new_cache_may_begin_where_the_last_one_began() -> None:
    """An allocator hands out an address again: the layers behind the first then lie elsewhere."""
    arguments = step(torch.float32)
    expected, given = decoder.decode_layers(*copied(arguments))[0], copied(arguments)
    layers, slots, *sizes = arguments[6].shape
    memory = [torch.empty(2 * each.numel()) for each in arguments[6:8]]
    for larger in (1, 2):
        caches = [each[: larger * layers * slots * sizes[0] * sizes[1]] for each in memory]
        for place, flat in zip((6, 7), caches, strict=True):
            given[place] = flat.view(layers, larger * slots, *sizes).fill_(float("nan"))
            given[place][:, :slots] = arguments[place]
        assert torch.equal(decoder.decode_layers(*given)[0], expected), larger


PROMPTS: dict[str, Any] = {**STACK, "lengths": [40, 1, 19, 70, 6], "counts": [40, 1, 18, 33, 1]}


def prompts(dtype: torch.dtype) -> list[Any]:
    """Return arguments of ``prefill_layers`` of five requests, two of which decode; slots that are not read hold NaN."""
    arguments = list(decoder_stack.example(dtype, generator(2), **PROMPTS))
    for cache in (arguments[6], arguments[7]):
        cache[cache == decoder_stack.POISON] = float("nan")
    return arguments


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_prompts_read_nothing_else_and_do_not_depend_on_each_other(dtype: torch.dtype, threads: None) -> None:
    """A request has the same results alone, in a batch, in two chunks and on several threads; NaN stays in its request."""
    arguments = prompts(dtype)
    torch.set_num_threads(1)
    whole = copied(arguments)
    hidden, captured = decoder.prefill_layers(*whole)
    assert hidden.isfinite().all(), "unread slots hold NaN"
    assert captured.isfinite().all()
    ends = [0, *torch.tensor(PROMPTS["counts"]).cumsum(0).tolist()]
    for begin, end in pairwise(ends):
        alone, alone_captured = decoder.prefill_layers(*copied(arguments, list(range(begin, end))))
        assert torch.equal(alone, hidden[begin:end])
        assert torch.equal(alone_captured, captured[begin:end])
    chunked = copied(arguments)
    first = decoder.prefill_layers(*shared_cache(chunked, list(range(ends[3], ends[3] + 21))))[0]
    second = decoder.prefill_layers(*shared_cache(chunked, list(range(ends[3] + 21, ends[4]))))[0]
    assert torch.equal(torch.cat([first, second]), hidden[ends[3] : ends[4]])
    for count in (2, 3):
        torch.set_num_threads(count)
        again = copied(arguments)
        assert torch.equal(decoder.prefill_layers(*again)[0], hidden)
        assert all(torch.equal(again[each].nan_to_num(), whole[each].nan_to_num()) for each in (6, 7))
    poisoned = copied(arguments)
    poisoned[0][ends[2] + 5, 0] = float("nan")
    rows = decoder.prefill_layers(*poisoned)[0]
    assert rows[ends[2] + 5 : ends[3]].isnan().all()
    clean = [row for row in range(len(rows)) if not ends[2] <= row < ends[3]]
    assert torch.equal(rows[clean], hidden[clean])


@pytest.mark.parametrize("head_dim", few([2, 16, 30, 32, 34, 80], 3))
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_prompts_of_odd_sizes(dtype: torch.dtype, head_dim: int) -> None:
    """Every remainder of lanes, panels and pairs, in widths, heads and positions."""
    for number, (hidden, heads, kv_heads, length, count) in enumerate(
        [(33, 1, 1, 2, 2), (48, 6, 2, 31, 17), (62, 5, 1, 65, 33), (17, 2, 2, 33, 32)]
    ):
        given = decoder_stack.example(
            dtype, generator(number), hidden=hidden, heads=heads, kv_heads=kv_heads, head_dim=head_dim,
            lengths=[length, 3], counts=[count, 1], experts=3 * (number % 2), shared=number == 3, bias=number > 1,
        )  # fmt: skip
        assert relative_error(decoder_stack.prefill_layers, decoder.prefill_layers, given) <= bound(dtype), number


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_prompts_in_parts_of_any_number(dtype: torch.dtype, threads: None) -> None:
    """Sizes of several parts for each thread, the last of them shorter: the same bits, and right."""
    given = list(
        decoder_stack.example(
            dtype, generator(3), hidden=1240, heads=9, kv_heads=3, head_dim=72, lengths=[21], counts=[20], experts=3
        )
    )
    torch.set_num_threads(1)
    expected = decoder.prefill_layers(*copied(given))[0]
    assert relative_error(decoder_stack.prefill_layers, decoder.prefill_layers, tuple(copied(given))) <= bound(dtype)
    for count in (2, 3, 5):
        torch.set_num_threads(count)
        for _ in range(5):
            assert torch.equal(decoder.prefill_layers(*copied(given))[0], expected), count


def shared_cache(arguments: list[Any], rows: list[int]) -> list[Any]:
    """Return some rows of a call on the same cache."""
    return [*(each[rows] for each in arguments[:5]), *arguments[5:]]


def int8(matrix: Matrix) -> Matrix:
    scales = (matrix.weight.float().abs().amax(1) / 127).to(torch.bfloat16)
    return Matrix((matrix.weight / scales.float().unsqueeze(1)).round().to(torch.int8), scales, matrix.bias)


def int8_groups(matrix: Matrix) -> Matrix:
    return matrix if matrix.weight.shape[1] % 32 else Matrix(*quantized_int8_groups(matrix.weight), matrix.bias)


def int4(matrix: Matrix) -> Matrix:
    return matrix if matrix.weight.shape[1] % 32 else Matrix(*quantized_int4(matrix.weight), matrix.bias)


def coded(matrix: Matrix) -> Matrix:
    if matrix.weight.shape[1] % UNIT or (made := coded_bfloat16(matrix.weight)) is None:
        return matrix
    return Matrix(*made, matrix.bias)


def with_zero_points(matrix: Matrix) -> Matrix:
    """4-bit values as GPTQ's and AWQ's checkpoints have them: a zero point for each group."""
    made = int4(matrix)
    if made.scales is None:
        return made
    zeros = torch.randint(4, 12, made.scales.shape, generator=generator(5)).to(torch.bfloat16)
    return Matrix(made.weight, torch.stack([made.scales, zeros], 1), made.bias)


@pytest.mark.parametrize(
    ("narrow", "hidden"),
    [(int8, 300), (int8, 384), (int8_groups, 384), (int4, 384), (with_zero_points, 384), (coded, 384)],
    ids=lambda each: getattr(each, "__name__", str(each)),
)
@pytest.mark.parametrize("prompt", [False, True], ids=["decode", "prompt"])
def test_steps_with_quantised_weights(
    narrow: Callable[[Matrix], Matrix], hidden: int, prompt: bool, threads: None
) -> None:
    """Activations are float32, and rounded to bfloat16 for the products with narrow weights. Rows do not depend on each other.

    Inputs are wider than what is widened at once for few rows.
    """
    sizes = {
        **(PROMPTS if prompt else STACK),
        "hidden": hidden,
        **({"head_dim": 64 if narrow is coded else 32} if hidden % 32 == 0 else {}),
    }
    arguments = list(decoder_stack.example(torch.float32, generator(3), **sizes))
    stack: DecoderStack = arguments[8]
    for layer in stack.layers:
        layer.qkv, layer.output = narrow(layer.qkv), narrow(layer.output)
        assert isinstance(layer.mixture, MixtureWeights)
        assert layer.dense is not None
        layer.mixture.experts = [(narrow(first), narrow(second)) for first, second in layer.mixture.experts]
        layer.dense = narrow(layer.dense[0]), narrow(layer.dense[1])
    assert stack.layers[0].qkv.scales is not None
    operation = decoder_stack.prefill_layers if prompt else decoder_stack.decode_layers
    kernel = decoder.prefill_layers if prompt else decoder.decode_layers
    assert relative_error(operation, kernel, tuple(arguments)) < 2e-3
    torch.set_num_threads(2)
    whole = kernel(*copied(arguments))[0]
    torch.set_num_threads(1)
    assert torch.equal(kernel(*copied(arguments))[0], whole)
    assert torch.equal(kernel(*copied(arguments, [0, 1] if prompt else [0]))[0], whole[: 2 if prompt else 1])


def with_matrices(stack: DecoderStack, change: Callable[[Matrix], Matrix]) -> DecoderStack:
    def layer(each: LayerWeights) -> LayerWeights:
        dense, mixture = each.dense, each.mixture
        if mixture is not None:
            mixture = evolve(mixture, experts=[(change(first), change(second)) for first, second in mixture.experts])
        return evolve(
            each, qkv=change(each.qkv), output=change(each.output), mixture=mixture,
            dense=None if dense is None else (change(dense[0]), change(dense[1])),
        )  # fmt: skip

    return evolve(stack, layers=[layer(each) for each in stack.layers])


@pytest.mark.parametrize("prompt", [False, True], ids=["decode", "prompt"])
@pytest.mark.parametrize("size", [384, 128])
def test_coded_weights_have_the_bits_of_bfloat16(prompt: bool, size: int, threads: None) -> None:
    """Rare weights are where a part ends and where the next begins, and many in one place."""
    given = list(
        decoder_stack.example(
            torch.bfloat16, generator(3), **{**(PROMPTS if prompt else STACK), "hidden": size, "head_dim": 64}
        )
    )

    def with_rare(matrix: Matrix) -> Matrix:
        if matrix.weight.numel() >= 512:
            matrix.weight[0, 0], matrix.weight[-1, -1] = 2.0**40, -(2.0**-40)
        if matrix.weight.numel() >= 128 * 256:  # so many in one panel that it is widened in another way
            matrix.weight[:2, 20:60] = 2.0**-30
        return matrix

    given[8] = with_matrices(given[8], with_rare)
    changed: list[Matrix] = []

    def counted(matrix: Matrix) -> Matrix:
        made = coded(matrix)
        if made is not matrix:
            changed.append(made)
        return made

    stack = with_matrices(given[8], counted)
    assert len(changed) > 4 * len(stack.layers)
    kernel = decoder.prefill_layers if prompt else decoder.decode_layers
    plain, narrow = copied(given), copied(given)
    narrow[8] = stack
    assert torch.equal(kernel(*narrow)[0], kernel(*plain)[0])
    assert torch.equal(narrow[6].nan_to_num(), plain[6].nan_to_num()), "keys of the cache"


@pytest.mark.parametrize("narrow", [int8, int8_groups, int4, with_zero_points, coded], ids=lambda each: each.__name__)
@pytest.mark.parametrize("hidden", few([32, 128, 384], 2))
def test_steps_of_more_rows_than_lanes(narrow: Callable[[Matrix], Matrix], hidden: int) -> None:
    """Two blocks of rows, all of other requests, as a step of prompts has them: each row as it is alone, and right."""
    for count in (20, 32):
        sizes = {
            "hidden": hidden,
            "heads": 4,
            "kv_heads": 2,
            "head_dim": 32,
            "lengths": [3] * count,
            "counts": [1] * count,
        }
        given = list(decoder_stack.example(torch.float32, generator(3), **sizes))
        given[8] = with_matrices(given[8], narrow)
        whole = decoder.prefill_layers(*copied(given))[0]
        assert relative_error(decoder_stack.prefill_layers, decoder.prefill_layers, tuple(copied(given))) < 4e-3
        for row in (0, 15, 16, count - 1):
            assert torch.equal(decoder.prefill_layers(*copied(given, [row]))[0], whole[row : row + 1]), (count, row)


def test_products_of_codes_have_the_bits_of_bfloat16() -> None:
    for size in (128, 384, 512, 1152):
        for count, out in ((1, 1), (2, 15), (3, 16), (4, 33), (5, 17), (16, 31), (32, 50)):
            weight = normal(out, size, seed=size).to(torch.bfloat16)
            places = out * size // 512  # of a room twice as large, for those that are rare by chance
            weight.view(-1)[size - 1 : size - 1 + places] = 2.0**50
            matrix = coded(Matrix(weight))
            assert matrix.scales is not None, (size, count, out)
            x, bias = normal(count, size, dtype=torch.bfloat16), normal(out).to(torch.bfloat16)
            assert torch.equal(
                rows.few_rows_linear(x, matrix.weight, matrix.scales, bias), rows.few_rows_linear(x, weight, None, bias)
            ), (size, count, out)


def stored(matrix: Matrix) -> Matrix:
    """A matrix in float32 as a checkpoint stores it in bfloat16."""
    return evolve(matrix, weight=matrix.weight.to(torch.bfloat16))


def test_products_of_floats_with_weights_in_bfloat16_have_the_bits_of_float32() -> None:
    """Every remainder of sizes, outputs and rows; what lies beyond the matrices is NaN."""
    for size in (1, 15, 16, 17, 31, 33, 64, 100, 300):
        for count, out in ((1, 1), (2, 15), (3, 16), (4, 33), (5, 17), (16, 31), (32, 50), (33, 70), (70, 49)):
            flat = torch.cat([normal(out * size), torch.full((64,), float("nan"))]).to(torch.bfloat16)
            weight = flat[: out * size].view(out, size)
            x = torch.cat([normal(count * size, seed=1), torch.full((64,), float("nan"))])[: count * size].view(
                count, size
            )
            bias = normal(out, seed=2)
            made = rows.few_rows_linear(x, weight, None, bias)
            assert torch.equal(made, rows.few_rows_linear(x, weight.float(), None, bias)), (size, count, out)
            right = F.linear(x.double(), weight.double(), bias.double())
            assert (made.double() - right).norm() <= 1e-5 * right.norm(), (size, count, out)


@pytest.mark.parametrize("prompt", [False, True], ids=["decode", "prompt"])
@pytest.mark.parametrize("hidden", [50, 384])
def test_steps_in_float32_with_weights_in_bfloat16_have_the_bits_of_float32(
    prompt: bool, hidden: int, threads: None
) -> None:
    sizes = {**(PROMPTS if prompt else STACK), "hidden": hidden}
    given = list(decoder_stack.example(torch.float32, generator(3), **sizes))
    given[8] = with_matrices(given[8], lambda matrix: evolve(matrix, weight=matrix.weight.to(torch.bfloat16).float()))
    kept = copied(given)
    kept[8] = with_matrices(given[8], stored)
    assert {layer.qkv.weight.dtype for layer in kept[8].layers} == {torch.bfloat16}
    kernel = decoder.prefill_layers if prompt else decoder.decode_layers
    wide = copied(given)
    assert torch.equal(kernel(*kept)[0], kernel(*wide)[0])
    assert torch.equal(kept[6].nan_to_num(), wide[6].nan_to_num()), "keys of the cache"
    operation = decoder_stack.prefill_layers if prompt else decoder_stack.decode_layers
    again = copied(given)
    again[8] = kept[8]
    assert relative_error(operation, kernel, tuple(again)) <= bound(torch.float32)


MANY: dict[str, Any] = {
    "hidden": 390,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 32,
    "lengths": [700, 19],
    "counts": [700, 19],
}


@pytest.mark.parametrize("experts", [0, 3], ids=["dense", "experts"])
@pytest.mark.parametrize("kind", ["float32", "float32 stored in bfloat16", "bfloat16"])
def test_rows_of_a_long_prompt_do_not_depend_on_how_many_there_are(kind: str, experts: int, threads: None) -> None:
    """More rows than stay in the second cache pass several panels together; those of the second request alone are few."""
    dtype = torch.bfloat16 if kind == "bfloat16" else torch.float32
    for hidden in (390, 384):
        given = list(decoder_stack.example(dtype, generator(3), **{**MANY, "hidden": hidden}, experts=experts))
        if kind == "float32 stored in bfloat16":
            given[8] = with_matrices(given[8], stored)
        torch.set_num_threads(1)
        whole = decoder.prefill_layers(*copied(given))[0]
        assert relative_error(decoder_stack.prefill_layers, decoder.prefill_layers, tuple(copied(given))) <= bound(
            dtype
        )
        assert torch.equal(decoder.prefill_layers(*copied(given, list(range(700, 719))))[0], whole[700:])
        torch.set_num_threads(2)
        assert torch.equal(decoder.prefill_layers(*copied(given))[0], whole)


def test_floats_that_are_split_are_as_exact_as_vectors(instruction_set: str, threads: None) -> None:
    """Of three numbers in bfloat16 none may be missing: without the smallest ones errors are sixteen times as large."""
    if instruction_set != "amx":
        pytest.skip("floats are not split here")
    for keep in (lambda matrix: matrix, stored):
        given = list(decoder_stack.example(torch.float32, generator(3), **PROMPTS))
        given[8] = with_matrices(given[8], keep)

        def error(given: list[Any] = given) -> float:
            return relative_error(decoder_stack.prefill_layers, decoder.prefill_layers, tuple(copied(given)))

        split = error()
        assert library.use("avx512")
        assert split < 2 * error()
        assert library.use("amx")


def test_no_rows_do_not_widen_a_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    """A talker's prompt without media multiplies none with a whole projection."""
    matrix = coded(Matrix(normal(40, 512)))
    assert matrix.scales is not None
    monkeypatch.setattr(
        "omni_torch.operations.few_rows.decoded_bfloat16", lambda *given: pytest.fail("the weight is decoded")
    )
    for shape in ((0, 512), (2, 0, 512)):
        assert rows.few_rows_linear(torch.empty(shape), matrix.weight, matrix.scales).shape == (*shape[:-1], 40)


@pytest.mark.parametrize("bits", [4, 8])
def test_products_in_groups_read_nothing_beyond_the_matrix(bits: int) -> None:
    """Scales and values after the last are NaN and noise; every remainder of outputs and rows."""
    for size in (32, 64, 96, 160):
        for count, out in ((1, 1), (2, 15), (3, 16), (5, 17), (16, 31), (17, 33), (33, 50)):
            nbytes = out * size * bits // 8
            values = torch.full((nbytes + 64,), 255, dtype=torch.uint8)
            values[:nbytes] = torch.randint(0, 256, (nbytes,), generator=generator(), dtype=torch.uint8)
            scales = torch.full((out * size // 32 + 64,), float("nan")).to(torch.bfloat16)
            scales[: out * size // 32] = torch.rand(out * size // 32, generator=generator()).to(torch.bfloat16)
            weight, groups = values[:nbytes].view(out, -1), scales[: out * size // 32].view(out, -1)
            weight = weight.view(torch.int8) if bits == 8 else weight
            x = torch.cat([normal(count * size), torch.full((64,), float("nan"))])[: count * size].view(count, size)
            bias = normal(out)
            made = rows.few_rows_linear(x, weight, groups, bias).double()
            # A prompt's products with the scales are rounded to bfloat16.
            wide = widened(weight, groups, torch.float64, exact=count <= 32)
            right = F.linear(x.to(torch.bfloat16).double(), wide, bias.double())
            assert (made - right).norm() <= 1e-5 * right.norm(), (size, count, out)


def test_groups_that_the_library_does_not_multiply_go_to_the_reference() -> None:
    """Int8 with zero points or with inputs in 8 bits; a stack of such weights is not computed as one call."""
    x, (weight, scales) = normal(3, 64), quantized_int8_groups(normal(5, 64, seed=1))
    zeros = torch.randint(-9, 9, scales.shape, generator=generator()).to(torch.bfloat16)
    for some, integers in ((torch.stack([scales, zeros], 1), False), (scales, True)):
        arguments = x, weight, some, None, integers
        assert torch.equal(rows.few_rows_linear(*arguments), few_rows_linear.reference(*arguments))
        assert not rows.groups_fit(weight, some, integers)
    assert rows.groups_fit(weight, scales, False)
    assert not rows.groups_fit(weight[:, :48], scales[:, :1], False), "a group is cut"


@pytest.mark.parametrize("narrow", [int8_groups, int4, with_zero_points], ids=lambda each: each.__name__)
@pytest.mark.parametrize("size", few([96, 512, 1120], 2))
def test_a_row_of_a_product_in_groups_does_not_depend_on_the_others(
    narrow: Callable[[Matrix], Matrix], size: int
) -> None:
    """Few rows multiply weights that are widened in registers, and more rows those in memory, a stretch of 512 inputs at a time."""
    matrix = narrow(Matrix(normal(11, size), None, normal(11)))
    assert matrix.scales is not None
    x = normal(9, size)
    x[8, 3] = float("nan")
    product = partial(rows.few_rows_linear, weight=matrix.weight, scales=matrix.scales, bias=matrix.bias)
    whole = product(x)
    arguments = x[:8], matrix.weight, matrix.scales, matrix.bias
    assert relative_error(few_rows_linear, rows.few_rows_linear, arguments) <= 1e-5
    assert whole[8].isnan().all()
    assert whole[:8].isfinite().all()
    for count in range(1, 9):
        assert torch.equal(product(x[:count]), whole[:count]), count
        assert torch.equal(product(x[8 - count : 8]), whole[8 - count : 8]), count


def finite(arguments: list[Any]) -> tuple[Any, ...]:
    """Return the arguments from the cache on without NaN, which no comparison of writes can have."""
    return arguments[6].nan_to_num(0.0), arguments[7].nan_to_num(0.0), *arguments[8:]


def test_weights_that_the_library_cannot_read_go_to_the_reference() -> None:
    arguments = step(torch.float32)
    arguments[8].layers[1].qkv = Matrix(arguments[8].layers[1].qkv.weight.half(), None, arguments[8].layers[1].qkv.bias)
    right = decoder_stack.decode_layers.reference(*copied(arguments))[0]
    assert torch.equal(decoder.decode_layers(*copied(arguments))[0], right)
