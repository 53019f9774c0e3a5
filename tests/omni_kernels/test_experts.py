"""Routing and the grouped products: any choice of experts, tiles of every size, and no host synchronisation."""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from omni_torch.operations import experts as operations
from omni_torch.operations.comparison import BOUNDS, relative_error


@pytest.fixture
def kernels(device: str) -> Any:
    return import_module("omni_kernels.experts")


@pytest.fixture
def routing(device: str) -> Any:
    return import_module("omni_kernels.routing")


def drawn(
    rows: int, experts: int, top_k: int, hidden: int, inner: int, device: str, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, ...]:
    """Arguments of the mixture: random choices, none twice in a row."""
    generator = torch.Generator(device).manual_seed(rows + experts)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=device).to(dtype)

    chosen = torch.rand(rows, experts, generator=generator, device=device).argsort(-1)[:, :top_k].contiguous()
    weights = torch.rand(rows, top_k, generator=generator, device=device).to(dtype)
    return normal(rows, hidden), weights, chosen, normal(experts, 2 * inner, hidden), normal(experts, hidden, inner)


def exact(dtype: torch.dtype) -> float:
    return BOUNDS[str(dtype).removeprefix("torch.")]


@pytest.mark.parametrize("rows", [1, 3, 17, 64])
@pytest.mark.parametrize(("experts", "top_k", "hidden", "inner"), [(8, 2, 64, 48), (8, 8, 40, 96), (128, 8, 32, 16)])
def test_mixtures_of_many_shapes(
    rows: int, experts: int, top_k: int, hidden: int, inner: int, kernels: Any, device: str
) -> None:
    arguments = drawn(rows, experts, top_k, hidden, inner, device)
    assert relative_error(operations.experts, kernels.experts, arguments) <= exact(torch.float32)


@pytest.mark.parametrize(("hidden", "inner"), [(2048, 48), (64, 768)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_long_sums(hidden: int, inner: int, dtype: torch.dtype, kernels: Any, device: str) -> None:
    x, weights, chosen, gate_up, down = drawn(3, 8, 2, hidden, inner, device, dtype)
    arguments = x, weights, chosen, gate_up / hidden**0.5, down / inner**0.5
    assert relative_error(operations.experts, kernels.experts, arguments) <= exact(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("rows", [8, 9, 31, 33, 64, 70, 130])
def test_tiles_of_every_size(rows: int, dtype: torch.dtype, kernels: Any, device: str) -> None:
    arguments = drawn(rows, 4, 2, 40, 24, device, dtype)
    scaled = *arguments[:3], arguments[3] / 40**0.5, arguments[4] / 24**0.5
    assert relative_error(operations.experts, kernels.experts, scaled) <= exact(dtype)


def test_the_tiles_grow_with_the_rows_that_an_expert_gets(kernels: Any) -> None:
    def rows(pairs: int, dtype: torch.dtype) -> int:
        first, second = kernels.tiles(pairs, 128, dtype)
        assert first.rows == second.rows, "both products share the blocks"
        return int(first.rows)

    assert [rows(8 * n, torch.bfloat16) for n in (1, 128, 129, 512, 8192)] == [16, 16, 32, 64, 128]
    assert [rows(8 * n, torch.float32) for n in (1, 128, 129, 512, 8192)] == [16, 16, 32, 64, 64]


@pytest.mark.parametrize("rows", [8, 9, 40])
def test_more_choices_and_columns_than_are_read_at_once(
    rows: int, kernels: Any, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "CHUNK", 16)
    arguments = drawn(rows, 8, 2, 40, 24, device)
    assert relative_error(operations.experts, kernels.experts, arguments) <= exact(torch.float32)


@pytest.mark.parametrize("rows", [1, 16, 17, 64])
def test_all_rows_may_choose_the_same_experts(rows: int, kernels: Any, device: str) -> None:
    x, weights, chosen, gate_up, down = drawn(rows, 8, 2, 32, 24, device)
    for same in ([7, 0], [0, 1], [6, 7]):
        chosen[:] = torch.tensor(same, device=device)
        arguments = x, weights, chosen, gate_up, down
        assert relative_error(operations.experts, kernels.experts, arguments) <= exact(torch.float32)


@pytest.mark.parametrize("rows", [1, 40])
def test_the_weights_of_unchosen_experts_are_not_read(rows: int, kernels: Any, device: str) -> None:
    x, weights, chosen, gate_up, down = drawn(rows, 9, 2, 40, 24, device)
    chosen = chosen % 3 * 3 + 1  # 1, 4 and 7; a row may choose one twice
    expected = operations.experts.reference(x, weights, chosen, gate_up, down)
    unread = torch.ones(9, dtype=torch.bool, device=device)
    unread[[1, 4, 7]] = False
    gate_up[unread], down[unread] = math.nan, math.nan
    torch.testing.assert_close(kernels.experts(x, weights, chosen, gate_up, down), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [1, 5, 40])
@pytest.mark.parametrize(("first", "held"), [(0, 4), (4, 4), (2, 3), (7, 1), (0, 8)])
def test_the_experts_of_a_rank_are_computed_and_no_others(
    rows: int, first: int, held: int, kernels: Any, device: str
) -> None:
    """The outputs of all ranks sum to the mixture, and what a rank leaves out is neither computed nor read: memory holds NaN there."""
    x, weights, chosen, gate_up, down = drawn(rows, 8, 2, 40, 24, device)
    mine = slice(first, first + held)
    arguments = x, weights, chosen, gate_up[mine], down[mine], first, 8
    assert relative_error(operations.experts, kernels.experts, arguments) <= exact(torch.float32)
    apart = torch.zeros_like(x)
    for begin, end in ((0, first), (first, first + held), (first + held, 8)):
        if begin < end:
            apart += kernels.experts(x, weights, chosen, gate_up[begin:end], down[begin:end], begin, 8)
    torch.testing.assert_close(apart, kernels.experts(x, weights, chosen, gate_up, down), rtol=1e-4, atol=1e-4)
    table = kernels._grouped(chosen, held, 16, first, True)[0][1:]
    blocks = table[0][: int(table[1])].tolist()
    counts = [int((chosen == first + each).sum()) for each in range(held)]
    assert sum(min(16, end - begin) for _, begin, end in blocks) == sum(counts)
    assert {each for each, _, _ in blocks} == {each for each, count in enumerate(counts) if count}


def test_a_row_without_an_expert_of_the_rank_is_zero(kernels: Any, device: str) -> None:
    x, weights, chosen, gate_up, down = drawn(3, 8, 2, 40, 24, device)
    chosen[:] = torch.tensor([[0, 1], [6, 7], [1, 6]], device=device)
    torch.full((1 << 16,), math.nan, device=device)  # freed at once: what is not written is likely to be NaN
    for first, zero in ((0, 1), (4, 0)):
        mixed = kernels.experts(x, weights, chosen, gate_up[first : first + 4], down[first : first + 4], first, 8)
        assert (mixed == 0).all(-1).tolist() == [row == zero for row in range(3)]


def test_tiles_follow_the_rows_of_an_expert_not_of_a_rank(
    kernels: Any, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, plain = [], kernels.tiles

    def noted(pairs: int, experts: int, dtype: torch.dtype) -> Any:
        asked.append((pairs, experts))
        return plain(pairs, experts, dtype)

    monkeypatch.setattr(kernels, "tiles", noted)
    x, weights, chosen, gate_up, down = drawn(9, 8, 2, 40, 24, device)
    kernels.experts(x, weights, chosen, gate_up[4:], down[4:], 4, 8)
    assert asked == [(18, 8)]


def test_a_row_s_mixture_is_the_same_to_the_bit_every_time_and_beside_others(kernels: Any, device: str) -> None:
    x, weights, chosen, gate_up, down = drawn(17, 8, 3, 72, 40, device)
    together = kernels.experts(x, weights, chosen, gate_up, down)
    assert torch.equal(kernels.experts(x, weights, chosen, gate_up, down), together)
    assert kernels.tiles(51, 8, x.dtype) == kernels.tiles(39, 8, x.dtype)
    assert torch.equal(kernels.experts(x[:13], weights[:13], chosen[:13], gate_up, down), together[:13])


def test_strided_rows_and_no_rows(kernels: Any, routing: Any, device: str) -> None:
    x, weights, chosen, gate_up, down = drawn(5, 8, 2, 32, 24, device)
    apart = torch.randn(5, 64, device=device)
    for view in (apart[:, :32], apart[:, ::2], apart.t()[:5, :1].expand(5, 32)):
        arguments = view, weights, chosen, gate_up, down
        torch.testing.assert_close(
            kernels.experts(*arguments), operations.experts.reference(*arguments), rtol=1e-4, atol=1e-4
        )
    turned = weights.t().contiguous().t(), chosen.t().contiguous().t()
    assert torch.equal(kernels.experts(x, *turned, gate_up, down), kernels.experts(x, weights, chosen, gate_up, down))
    assert kernels.experts(x[:0], weights[:0], chosen[:0], gate_up, down).shape == (0, 32)
    assert [each.shape for each in routing.route_experts(apart[:0], 3, True)] == [(0, 3), (0, 3)]


def test_unsupported_inputs_use_the_reference(
    kernels: Any, routing: Any, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routing, "_route", None)
    monkeypatch.setattr(kernels, "_grouped", None)
    x, weights, chosen, gate_up, down = drawn(3, 8, 2, 32, 24, device)
    with_gaps = torch.empty(8, 48, 64, device=device)[..., ::2].copy_(gate_up)
    expected = operations.experts.reference(x, weights, chosen, with_gaps, down)
    assert torch.equal(kernels.experts(x, weights, chosen, with_gaps, down), expected)
    logits = torch.randn(3, 20, device=device)
    for module in (kernels, routing):
        monkeypatch.setattr(module, "MOST_EXPERTS", 7)
    expected = operations.experts.reference(x, weights, chosen, gate_up, down)
    assert torch.equal(kernels.experts(x, weights, chosen, gate_up, down), expected)
    routed = routing.route_experts(logits, 2, False), operations.route_experts.reference(logits, 2, False)
    assert all(map(torch.equal, *routed))


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize(("experts", "top_k"), [(1, 1), (8, 2), (8, 8), (96, 5), (128, 8), (512, 16), (20, 17)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_routing(experts: int, top_k: int, normalize: bool, dtype: torch.dtype, routing: Any, device: str) -> None:
    for rows in (1, 3, 17):
        logits = operations._logits(rows, experts, dtype, torch.Generator(device).manual_seed(rows))
        for each in (logits, logits.t().contiguous().t()):
            assert relative_error(operations.route_experts, routing.route_experts, (each, top_k, normalize)) <= exact(
                dtype
            )


def test_of_equal_logits_the_lower_number_comes_first(routing: Any, device: str) -> None:
    logits = torch.tensor(
        [[1.0, 2.0, 2.0, 1.0, 2.0, 1.0], [-1.0, -0.0, 0.0, -1.0, -2.0, -1.0], [-math.inf] * 5 + [0.0]], device=device
    )
    weights, chosen = routing.route_experts(logits, 4, False)
    assert chosen.tolist() == [[1, 2, 4, 0], [1, 2, 0, 3], [5, 0, 1, 2]]
    torch.testing.assert_close(weights, logits.softmax(-1).gather(1, chosen))
    drawn_again = torch.randint(-3, 3, (40, 128), generator=torch.Generator().manual_seed(0)).to(device).bfloat16()
    _, chosen = routing.route_experts(drawn_again, 8, True)
    assert torch.equal(chosen, drawn_again.sort(dim=-1, descending=True, stable=True).indices[:, :8])


def test_a_row_with_nan_affects_only_itself(routing: Any, device: str) -> None:
    for value in (math.nan, -math.nan, math.inf):
        logits = torch.randn(3, 20, device=device)
        logits[1, 2:] = value
        weights, chosen = routing.route_experts(logits, 4, True)
        assert weights.isnan().any(-1).tolist() == [False, True, False]
        assert ((chosen >= 0) & (chosen < 20)).all()
        assert all(len(set(row)) == 4 for row in chosen.tolist())


class NoAnswers(TorchDispatchMode):
    """Fails where a shape depends on the values of a tensor."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert not any(name in str(function) for name in ("bincount", "nonzero", "unique")), f"{function} waits"
        return function(*args, **(kwargs or {}))


def test_the_host_is_not_synchronised(kernels: Any, routing: Any, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(tensor: torch.Tensor) -> Any:
        raise AssertionError("a value waits")

    arguments = drawn(17, 8, 2, 32, 24, device)
    expected = operations.experts.reference(*arguments)
    for name in ("item", "tolist", "__bool__", "__int__", "__index__", "__float__"):
        monkeypatch.setattr(torch.Tensor, name, asked)
    with NoAnswers():
        for asks in (lambda each: each.tolist(), lambda each: each.flatten().bincount(), lambda each: each.nonzero()):
            with pytest.raises(AssertionError, match="waits"):
                asks(arguments[2])
        routing.route_experts(arguments[0][:, :8], 2, True)
        mixed = kernels.experts(*arguments)
        x, weights, chosen, gate_up, down = arguments
        halves = [kernels.experts(x, weights, chosen, gate_up[a:b], down[a:b], a, 8) for a, b in ((0, 4), (4, 8))]
    monkeypatch.undo()
    torch.testing.assert_close(mixed, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(halves[0] + halves[1], expected, rtol=1e-4, atol=1e-4)


def test_a_graph_serves_every_choice(kernels: Any, routing: Any, device: str) -> None:
    if device != "cuda":
        pytest.skip("no GPU")
    x, _, _, gate_up, down = drawn(17, 8, 2, 32, 24, device)
    logits = torch.randn(17, 8, device=device)

    def block() -> torch.Tensor:
        mixed: torch.Tensor = kernels.experts(x, *routing.route_experts(logits, 2, True), gate_up, down)
        return mixed

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        block()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = block()
    for seed in range(3):
        logits.copy_(torch.randn(17, 8, generator=torch.Generator().manual_seed(seed)))
        if seed == 2:
            logits.copy_(torch.arange(8.0).expand(17, 8))
        graph.replay()
        assert torch.equal(captured, block())
