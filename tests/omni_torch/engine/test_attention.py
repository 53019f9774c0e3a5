"""Every attention backend computes the same. Libraries that need a GPU are replaced by their documented behaviour."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from engine_harness import Driven
from toy_model import ToyModel, ToyRunner, generate

from omni_core.errors import ConfigError
from omni_core.model_runner import ARRequest, KVLayout, SamplingParams
from omni_core.protocol.messages import OmniRequest
from omni_torch.engine.attention import BACKENDS, AttentionBackend, SdpaBackend, choose, sdpa
from omni_torch.engine.attention.flash_attention import FlashAttentionBackend
from omni_torch.engine.attention.flashinfer import FlashInferBackend
from omni_torch.engine.attention.flex import FlexBackend
from omni_torch.engine.kv_cache import KVCache
from omni_torch.engine.scheduler import EngineScheduler

HEADS, KV_HEADS, WIDTH, BLOCK = 4, 2, 16, 8
LAYOUT = KVLayout(1, KV_HEADS, WIDTH, torch.float32)
CPU = torch.device("cpu")


def paged_attention(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor, scale: float | None
) -> torch.Tensor:
    """Reference attention of the last ``len(query)`` positions of one sequence over its slots."""
    k, v = (
        each.reshape(-1, *each.shape[-2:])[slots].repeat_interleave(HEADS // KV_HEADS, 1) for each in (keys, values)
    )
    scores = torch.einsum("qhd,khd->hqk", query, k) * (WIDTH**-0.5 if scale is None else scale)
    seen = torch.arange(len(slots)) <= torch.arange(len(slots) - len(query), len(slots)).unsqueeze(1)
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(~seen, float("-inf")).softmax(-1), v)


class StandInWrapper:
    """FlashInfer's paged wrappers, as their documentation describes ``plan`` and ``run``; for CUDA graphs, in
    preallocated tensors.
    """

    def __init__(
        self,
        workspace: torch.Tensor,
        layout: str,
        use_tensor_cores: bool = False,
        use_cuda_graph: bool = False,
        paged_kv_indptr_buffer: torch.Tensor | None = None,
        paged_kv_indices_buffer: torch.Tensor | None = None,
        paged_kv_last_page_len_buffer: torch.Tensor | None = None,
    ) -> None:
        assert workspace.dtype == torch.uint8
        assert layout == "NHD"
        self.decode = use_tensor_cores
        buffers = (paged_kv_indptr_buffer, paged_kv_indices_buffer, paged_kv_last_page_len_buffer)
        assert all((each is not None) == use_cuda_graph for each in buffers)
        self.buffers: Any = buffers if use_cuda_graph else None

    def plan(
        self, *tables: Any, causal: bool = False, sm_scale: float | None, q_data_type: Any, kv_data_type: Any
    ) -> None:
        *tensors, heads, kv_heads, width, page_size = tables
        assert (heads, kv_heads, width, page_size) == (HEADS, KV_HEADS, WIDTH, BLOCK)
        assert all(each.dtype == torch.int32 for each in tensors)
        assert causal != self.decode
        if self.buffers is not None:
            assert [len(tensors[0]), len(tensors[2])] == [len(self.buffers[0]), len(self.buffers[2])], "fixed"
            for buffer, given in zip(self.buffers, tensors, strict=True):
                buffer[: len(given)] = given
            tensors = self.buffers
        if self.decode:
            tensors = [torch.arange(len(tensors[2]) + 1), *tensors]
        self.tables, self.scale = tensors, sm_scale

    def run(self, query: torch.Tensor, paged: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        rows, offsets, pages, last = [each.tolist() for each in self.tables]
        parts = []
        for index in range(len(last)):
            table = torch.tensor(pages[offsets[index] : offsets[index + 1]])
            slots = (table.unsqueeze(1) * BLOCK + torch.arange(BLOCK)).reshape(-1)
            slots = slots[: (len(table) - 1) * BLOCK + last[index]]
            parts.append(paged_attention(query[rows[index] : rows[index + 1]], *paged, slots, self.scale))
        return torch.cat(parts)


def stand_in_varlen(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, cu_seqlens_q: torch.Tensor, cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int, max_seqlen_k: int, softmax_scale: float | None, causal: bool, block_table: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    assert causal
    assert max_seqlen_q == int(cu_seqlens_q.diff().max())
    assert block_table.shape[1] * BLOCK >= max_seqlen_k >= int(cu_seqlens_k.diff().max())
    assert {cu_seqlens_q.dtype, cu_seqlens_k.dtype, block_table.dtype} == {torch.int32}
    parts = []
    for index, length in enumerate(cu_seqlens_k.diff().tolist()):
        slots = (block_table[index].long().unsqueeze(1) * BLOCK + torch.arange(BLOCK)).reshape(-1)[:length]
        parts.append(paged_attention(q[cu_seqlens_q[index] : cu_seqlens_q[index + 1]], k, v, slots, softmax_scale))
    return torch.cat(parts)


def made(name: str, cache: KVCache, monkeypatch: pytest.MonkeyPatch) -> AttentionBackend:
    if name == "flashinfer":
        module = ModuleType("flashinfer")
        module.BatchDecodeWithPagedKVCacheWrapper = StandInWrapper  # type: ignore[attr-defined]
        module.BatchPrefillWithPagedKVCacheWrapper = StandInWrapper  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "flashinfer", module)
        return FlashInferBackend(cache)
    if name == "flash-attention":
        module = ModuleType("flash_attn")
        module.flash_attn_varlen_func = stand_in_varlen  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "flash_attn", module)
        return FlashAttentionBackend(cache)
    return FlexBackend(cache, compiled=False) if name == "flex" else SdpaBackend(cache)


@pytest.mark.parametrize("name", sorted(BACKENDS))
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("scale", [None, 0.3])
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


def test_the_engine_gives_equal_results_on_flex(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FlexBackend, "probe", classmethod(lambda *_: None))
    monkeypatch.setattr(
        "omni_torch.engine.attention.flex._compiled",
        lambda: __import__("torch").nn.attention.flex_attention.flex_attention,
    )
    model = ToyModel()
    driven = Driven(EngineScheduler(ToyRunner(model), attention="flex", kv_blocks=30, max_context=200, chunk_size=16))
    prompts = [[3], [5, 9, 2, 7], list(range(1, 40)), [5, 9, 2, 7, *range(30)]]
    for index, prompt in enumerate(prompts):
        driven.ask(str(index), prompt, sampling=SamplingParams(max_new_tokens=9))
    final = driven.collect(len(prompts), 60.0)
    driven.close()
    for index, prompt in enumerate(prompts):
        assert final[str(index)].data["ids"] == generate(model, prompt, SamplingParams(max_new_tokens=9))


def test_on_a_cpu_the_choice_is_sdpa_and_the_others_say_why_not() -> None:
    assert choose("auto", CPU, LAYOUT, 16) is SdpaBackend
    for name in ("flashinfer", "flash-attention", "flex"):
        with pytest.raises(ConfigError, match=f"{name}.*GPU"):
            choose(name, CPU, LAYOUT, 16)
    with pytest.raises(ConfigError, match=r"'flashinfr' is unknown; there are: auto, "):
        EngineScheduler(ToyRunner(ToyModel()), attention="flashinfr")


@pytest.mark.parametrize(
    ("backend", "layout", "block_size", "word"),
    [
        (FlashInferBackend, KVLayout(1, 2, 128, torch.bfloat16), 16, None),
        (FlashInferBackend, KVLayout(1, 2, 128, torch.float32), 16, "float32"),
        (FlashInferBackend, KVLayout(1, 2, 80, torch.float16), 16, "80"),
        (FlashAttentionBackend, KVLayout(1, 2, 128, torch.float16), 256, None),
        (FlashAttentionBackend, KVLayout(1, 2, 128, torch.float16), 16, "256"),
        (FlexBackend, KVLayout(1, 2, 128, torch.float32), 16, None),
        (FlexBackend, KVLayout(1, 2, 128, torch.float32), 24, "power of two"),
    ],
)
def test_probes_on_a_gpu(
    backend: type[AttentionBackend],
    layout: KVLayout,
    block_size: int,
    word: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    for module in ("flashinfer", "flash_attention"):
        monkeypatch.setattr(f"omni_torch.engine.attention.{module}.find_spec", lambda name: object())
    reason = backend.probe(torch.device("cuda:0"), layout, block_size)
    assert reason is None if word is None else word in str(reason)


def test_a_library_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, backend in (("flashinfer", FlashInferBackend), ("flash_attention", FlashAttentionBackend)):
        monkeypatch.setattr(f"omni_torch.engine.attention.{module}.find_spec", lambda name: None)
        assert "pip install" in str(backend.probe(torch.device("cuda:0"), LAYOUT, 16))
