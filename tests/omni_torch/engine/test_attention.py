"""Every attention backend computes the same. Libraries that need a GPU are replaced by their documented behaviour."""

from __future__ import annotations

import random
import re

import pytest
import torch
from attention_stand_in import BLOCK, HEADS, KV_HEADS, LAYOUT, WIDTH, made, paged_attention
from tiers import few
from toy_model import ToyModel, ToyRunner

from omni_core.errors import ConfigError
from omni_core.model_runner import ARRequest, KVLayout, SamplingParams
from omni_core.protocol.messages import OmniRequest
from omni_torch.engine.attention import BACKENDS, SdpaBackend, choose, sdpa
from omni_torch.engine.attention.flashinfer import FlashInferBackend
from omni_torch.engine.kv_cache import KVCache
from omni_torch.engine.scheduler import EngineScheduler

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", sorted(BACKENDS))
@pytest.mark.parametrize("seed", few(range(6), 4))
@pytest.mark.parametrize("scale", few([None, 0.3], 1))
def test_backends_agree(name: str, seed: int, scale: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decodes and chunks of requests with blocks in random places, some shared; other requests' blocks hold large
    values.
    """
    if seed >= 3:
        monkeypatch.setattr(sdpa, "MOST_GATHERED", 0)  # decode rows one by one
    chance = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    cache = KVCache(LAYOUT, 64, BLOCK, CPU)
    for each in (cache.keys[0], cache.values[0]):
        each.copy_(100 * torch.randn(each.shape, generator=generator))
    only_decodes = seed % 3 == 0
    requests, starts, lengths = [], [], []
    for index in range(chance.choice([1, 4])):
        start = chance.randrange(0, 40)
        length = 1 if only_decodes or chance.random() < 0.4 else chance.randrange(1, 30)
        request = ARRequest(str(index), OmniRequest(), [1] * (start + length), SamplingParams())
        shared = cache.blocks("0")[: start // BLOCK] if index == 3 else []
        shared = shared[: starts[0] // BLOCK] if starts else []
        assert cache.open(str(index), shared, chance.randrange(start + 1, start + length + 1))
        cache.pool.take(chance.randrange(3))  # a gap
        assert cache.reserve(str(index), start + length)
        requests.append(request)
        starts.append(start)
        lengths.append(length)
    query = torch.randn(sum(lengths), HEADS, WIDTH, generator=generator)
    key, value = torch.randn(2, sum(lengths), KV_HEADS, WIDTH, generator=generator)
    step = made(name, cache, monkeypatch).plan(requests, starts, lengths)
    output = step(0, query, key, value, scale)
    slots, *written = step.place(0)
    assert all(torch.equal(each[slots], new) for each, new in zip(written, (key, value), strict=True))
    assert torch.equal(step.attend(0, query, scale), output), "a layer may have written by itself"
    row = 0
    for request, start, length in zip(requests, starts, lengths, strict=True):
        table = torch.tensor(cache.blocks(request.request_id)).unsqueeze(1)
        slots = (table * BLOCK + torch.arange(BLOCK)).reshape(-1)[: start + length]
        assert torch.equal(cache.keys[0][slots[start:]], key[row : row + length])
        expected = paged_attention(query[row : row + length], cache.keys[0], cache.values[0], slots, scale)
        torch.testing.assert_close(output[row : row + length], expected, rtol=1e-4, atol=1e-4)
        row += length
    assert row == len(output)


@pytest.mark.parametrize(
    ("name", "shape", "wanted"),
    [
        ("key", (2, KV_HEADS, WIDTH), f"[14, {KV_HEADS}, {WIDTH}]"),
        ("value", (14, KV_HEADS + 1, WIDTH), f"[14, {KV_HEADS}, {WIDTH}]"),
        ("value", (14, KV_HEADS * WIDTH), f"[14, {KV_HEADS}, {WIDTH}]"),
        ("query", (15, HEADS, WIDTH), f"[14, a multiple of {KV_HEADS}, {WIDTH}]"),
        ("query", (14, KV_HEADS + 1, WIDTH), f"[14, a multiple of {KV_HEADS}, {WIDTH}]"),
        ("query", (14, HEADS, WIDTH + 1), f"[14, a multiple of {KV_HEADS}, {WIDTH}]"),
    ],
)
def test_a_tensor_unlike_the_batch_is_named_and_nothing_is_stored(
    name: str, shape: tuple[int, ...], wanted: str
) -> None:
    cache = KVCache(LAYOUT, 8, BLOCK, CPU)
    assert cache.open("a", [], 14)
    assert cache.reserve("a", 14)
    step = SdpaBackend(cache).plan([ARRequest("a", OmniRequest(), [1] * 14, SamplingParams())], [0], [14])
    given = {"query": (14, HEADS, WIDTH), "key": (14, KV_HEADS, WIDTH), "value": (14, KV_HEADS, WIDTH)}
    tensors = {each: torch.ones(size) for each, size in {**given, name: shape}.items()}
    before = cache.keys[0].clone()
    with pytest.raises(ValueError, match=re.escape(f"layer 0: {name} is {list(shape)}, and must be {wanted}: ")):
        step(0, **tensors)
    assert torch.equal(cache.keys[0], before)


def test_on_a_cpu_the_choice_is_sdpa_and_the_others_say_why_not() -> None:
    assert choose("auto", CPU, LAYOUT, 16) is SdpaBackend
    with pytest.raises(ConfigError, match=r"flashinfer.*GPU"):
        choose("flashinfer", CPU, LAYOUT, 16)
    with pytest.raises(ConfigError, match=r"'flashinfr' is unknown; there are: auto, "):
        EngineScheduler(ToyRunner(ToyModel()), attention="flashinfr")


@pytest.mark.parametrize(
    ("layout", "word"),
    [
        (KVLayout(1, 2, 128, torch.bfloat16), None),
        (KVLayout(1, 2, 128, torch.float32), "float32"),
        (KVLayout(1, 2, 80, torch.float16), "80"),
    ],
)
def test_the_probe_on_a_gpu(layout: KVLayout, word: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr("omni_torch.engine.attention.flashinfer.find_spec", lambda name: object())
    reason = FlashInferBackend.probe(torch.device("cuda:0"), layout, 16)
    assert reason is None if word is None else word in str(reason)


def test_a_library_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omni_torch.engine.attention.flashinfer.find_spec", lambda name: None)
    assert "pip install" in str(FlashInferBackend.probe(torch.device("cuda:0"), LAYOUT, 16))
