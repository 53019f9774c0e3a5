"""Sequences that share a paged cache, whatever is computed together and put aside, and cross-attention to what each remembers."""

from __future__ import annotations

import random

import pytest
import torch
from tiers import few

from omni_core.errors import ConfigError
from omni_core.model_runner import ARRequest, AttentionForm, KVLayout, SamplingParams
from omni_core.protocol.messages import OmniRequest
from omni_torch.engine.attention import SdpaBackend
from omni_torch.engine.kv_cache import KVCache
from omni_torch.engine.sequences import PagedSequences

HEADS, KV_HEADS, WIDTH = 4, 2, 8
CPU = torch.device("cpu")


def attended(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, first: int | None) -> torch.Tensor:
    """Attend with rows at positions from ``first`` on; ``None``: to everything."""
    wide = [each.repeat_interleave(HEADS // KV_HEADS, 1) for each in (key, value)]
    scores = torch.einsum("nhd,mhd->hnm", query, wide[0]) * WIDTH**-0.5
    if first is not None:
        rows = torch.arange(first, first + len(query)).unsqueeze(1)
        scores = scores.masked_fill(torch.arange(len(key)) > rows, -torch.inf)
    return torch.einsum("hnm,mhd->nhd", scores.softmax(-1), wide[1])


class Whole:
    """A sequence as it should be: what each layer has seen."""

    def __init__(self, layers: int, memory: int, chance: torch.Generator) -> None:
        self.memory = [torch.randn(2, memory, KV_HEADS, WIDTH, generator=chance) for _ in range(layers)]
        self.own = [torch.empty(2, 0, KV_HEADS, WIDTH) for _ in range(layers)]


@pytest.mark.parametrize("seed", few(range(12), 4))
def test_sequences_see_their_own_positions_and_memories(seed: int) -> None:
    """The cache holds less than all; a layer may have a window."""
    chance, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    remembers = seed % 3 > 0
    forms = (AttentionForm(window=3), None) if seed % 2 else ()
    layout = KVLayout(2, KV_HEADS, WIDTH, torch.float32, HEADS, forms, memory=remembers)
    sequences = PagedSequences(layout, CPU, longest=40, running=2, kv_cache_mb=1, block_size=4)
    for each in (*sequences.cache.keys, *sequences.cache.values):
        each.fill_(torch.nan)  # of nobody
    wholes: dict[str, Whole] = {}
    computed = 0
    for turn in range(60):
        if len(wholes) < 5:
            name = str(turn)
            wholes[name] = Whole(2, chance.randrange(1, 9) if remembers else 0, generator)
            keys, values = zip(*wholes[name].memory, strict=True)
            sequences.begin(name, (list(keys), list(values)) if remembers else None)
        wanted = {name: chance.choice([1, 1, 1, 2, 5]) for name in wholes if chance.random() < 0.7}
        wanted = {name: each for name, each in wanted.items() if sequences.length(name) + each <= 40}
        planned = sequences.plan(wanted)
        assert planned[:1] == [*wanted][:1], "the oldest waits"
        counts = [wanted[name] for name in planned]
        if not planned:
            continue
        attention = sequences.attention(planned, counts)
        for layer in range(2):
            query = torch.randn(sum(counts), HEADS, WIDTH, generator=generator)
            new = torch.randn(2, sum(counts), KV_HEADS, WIDTH, generator=generator)
            found, row = attention(layer, query, *new), 0
            crossed = attention.recall(layer, query) if remembers else None
            for name, count in zip(planned, counts, strict=True):
                rows, whole = slice(row, row + count), wholes[name]
                before = whole.own[layer].shape[1]
                whole.own[layer] = torch.cat([whole.own[layer], new[:, rows]], 1)
                first = 0
                if forms and layer == 0:
                    first = max(0, before - 2)
                if count == 1 or not (forms and layer == 0):
                    own = attended(query[rows], *whole.own[layer][:, first:].unbind(), before - first)
                    torch.testing.assert_close(found[rows], own, rtol=1e-4, atol=1e-5)
                if crossed is not None:
                    torch.testing.assert_close(
                        crossed[rows], attended(query[rows], *whole.memory[layer].unbind(), None), rtol=1e-4, atol=1e-5
                    )
                row += count
        sequences.computed(planned, counts)
        computed += len(planned)
        if chance.random() < 0.1:
            name = chance.choice([*wholes])
            del wholes[name]
            sequences.end(name)
    assert computed > 60
    assert sequences.stored > 0, "nothing was put aside"
    for name in wholes:
        sequences.end(name)
    assert sequences.cache.pool.free == sequences.cache.pool.total


def test_positions_that_no_window_reaches_are_dropped() -> None:
    """Three sequences in turns, of which the cache holds two."""
    chance, generator = random.Random(0), torch.Generator().manual_seed(0)
    windows = (3, 6)
    layout = KVLayout(2, KV_HEADS, WIDTH, torch.float32, HEADS, tuple(AttentionForm(window=each) for each in windows))
    sequences = PagedSequences(layout, CPU, longest=12, running=2, block_size=4)
    wholes = {name: Whole(2, 0, generator) for name in "abc"}
    for name in wholes:
        sequences.begin(name)
    for _ in range(120):
        name, count = chance.choice("abc"), chance.choice([1, 1, 2, 4])
        assert sequences.plan({name: count}) == [name]
        attention = sequences.attention([name], [count])
        for layer, window in enumerate(windows):
            query = torch.randn(count, HEADS, WIDTH, generator=generator)
            new = torch.randn(2, count, KV_HEADS, WIDTH, generator=generator)
            found, whole = attention(layer, query, *new), wholes[name].own
            before = whole[layer].shape[1]
            whole[layer] = torch.cat([whole[layer], new], 1)
            for row in range(count):
                first = max(0, before + row - window + 1)
                seen = whole[layer][:, first : before + row + 1]
                torch.testing.assert_close(
                    found[row : row + 1], attended(query[row : row + 1], *seen.unbind(), None), rtol=1e-4, atol=1e-5
                )
        sequences.computed([name], [count])
        assert len(sequences.cache.blocks(name)) <= 3
        assert sequences.cache.slot_numbers(name, sequences.length(name) - 1, sequences.length(name))
    assert sequences.stored > 0, "nothing was put aside"
    assert min(sequences.length(name) for name in "abc") > 40
    for name in "abc":
        sequences.end(name)
    assert sequences.cache.pool.free == sequences.cache.pool.total


def test_a_sequence_takes_the_room_of_one_that_waits_before_that_of_a_younger_one() -> None:
    layout = KVLayout(1, KV_HEADS, WIDTH, torch.float32, HEADS)
    sequences = PagedSequences(layout, CPU, longest=8, running=2, block_size=4)
    for name in "abc":
        sequences.begin(name)
    assert sequences.plan({"a": 8, "b": 8}) == ["a", "b"]
    sequences.computed(["a", "b"], [7, 7])
    assert sequences.plan({"b": 1, "c": 1}) == ["b", "c"]  # a asks for nothing
    sequences.computed(["b", "c"], [1, 1])
    assert sequences.plan({"a": 1, "b": 0, "c": 1}) == ["a", "b"]  # c is the youngest
    assert sequences.capacity == 16


def test_a_cache_without_a_block_is_refused() -> None:
    layout = KVLayout(64, 32, 512, torch.float32, 32)
    with pytest.raises(ConfigError, match=r"kv_cache_mb: a block of the KV cache has 128\.0 MiB; raise it"):
        PagedSequences(layout, CPU, longest=8, running=1, kv_cache_mb=1)


def test_attention_without_a_memory_refuses_to_recall() -> None:
    cache = KVCache(KVLayout(1, KV_HEADS, WIDTH, torch.float32, HEADS), 4, 4, CPU)
    request = ARRequest("a", OmniRequest(), [1], SamplingParams())
    cache.reserve("a", 1)
    with pytest.raises(ValueError, match="PagedAttention has no cross-attention"):
        SdpaBackend(cache).plan([request], [0], [1]).recall(0, torch.zeros(1, HEADS, WIDTH))
