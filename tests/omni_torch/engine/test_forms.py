"""Layers with sliding windows, soft caps and sinks equal a plain reference, whatever is batched, chunked, shared or preempted."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest
import torch
from asking import JOBS, ids_together
from eager_recorder import EagerRecorder
from engine_harness import Driven
from tiers import few
from toy_model import HEADS, KV_HEADS, LAYERS, WIDTH, ToyModel, ToyRunner, generate

from omni_core.errors import ConfigError
from omni_core.model_runner import ARRequest, AttentionForm, KVLayout, SamplingParams
from omni_core.protocol.messages import OmniRequest
from omni_torch.engine.attention import SdpaBackend, choose
from omni_torch.engine.attention.flashinfer import FlashInferBackend
from omni_torch.engine.kv_cache import KVCache
from omni_torch.engine.scheduler import EngineScheduler

BLOCK = 8
CPU = torch.device("cpu")
SINKS = torch.tensor([0.5, -1.0, 2.0, 0.0])
FORMS = [
    AttentionForm(window=5),
    AttentionForm(soft_cap=0.7),
    AttentionForm(sinks=SINKS),
    AttentionForm(window=11, soft_cap=2.0, sinks=SINKS),
]


def reference(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, form: AttentionForm | None, scale: float | None = None
) -> torch.Tensor:
    """Attend with the last ``len(query)`` positions of one sequence, head by head and row by row."""
    form = form or AttentionForm()
    output, offset = torch.empty_like(query), len(key) - len(query)
    for row in range(len(query)):
        first = 0 if form.window is None else max(0, offset + row + 1 - form.window)
        seen = slice(first, offset + row + 1)
        for head in range(query.shape[1]):
            group = head // (query.shape[1] // key.shape[1])
            scores = key[seen, group] @ query[row, head] * (query.shape[2] ** -0.5 if scale is None else scale)
            if form.soft_cap is not None:
                scores = form.soft_cap * torch.tanh(scores / form.soft_cap)
            weights = scores.exp()
            total = weights.sum() + (0 if form.sinks is None else form.sinks[head].exp())
            output[row, head] = weights @ value[seen, group] / total
    return output


@pytest.mark.parametrize("seed", few(range(8), 4))
@pytest.mark.parametrize("scale", few([None, 0.3], 1))
def test_a_step_equals_the_reference(seed: int, scale: float | None) -> None:
    """Decodes and chunks of requests with blocks in random places; other requests' blocks hold NaN."""
    chance, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    layout = KVLayout(5, KV_HEADS, WIDTH, torch.float32, HEADS, (None, *FORMS))
    cache = KVCache(layout, 64, BLOCK, CPU)
    for each in (*cache.keys, *cache.values):
        each.fill_(torch.nan)
    cache.pool.take(1)  # padding must not read the first slot, which is another request's
    requests, starts, lengths = [], [], []
    only_decodes = seed % 3 == 0
    for index in range(chance.choice([1, 4])):
        start = chance.randrange(0, 40)
        length = 1 if only_decodes or chance.random() < 0.4 else chance.randrange(1, 30)
        requests.append(ARRequest(str(index), OmniRequest(), [1] * (start + length), SamplingParams()))
        assert cache.reserve(str(index), max(start, 1))
        cache.pool.take(chance.randrange(3))  # a gap
        assert cache.reserve(str(index), start + length)
        starts.append(start)
        lengths.append(length)
    step = SdpaBackend(cache).plan(requests, starts, lengths)
    query = torch.randn(sum(lengths), HEADS, WIDTH, generator=generator)
    for layer in range(layout.layers):
        past = torch.randn(2, sum(starts), KV_HEADS, WIDTH, generator=generator)
        new = torch.randn(2, sum(lengths), KV_HEADS, WIDTH, generator=generator)
        before = row = 0
        expected = []
        for request, start, length in zip(requests, starts, lengths, strict=True):
            slots = cache.slot_numbers(request.request_id, 0, start)
            cache.keys[layer][slots], cache.values[layer][slots] = past[:, before : before + start]
            rows = slice(row, row + length)
            whole = [torch.cat([past[i, before : before + start], new[i, rows]]) for i in range(2)]
            expected.append(reference(query[rows], *whole, layout.forms[layer], scale))
            before, row = before + start, row + length
        output = step(layer, query, *new, scale)
        torch.testing.assert_close(output, torch.cat(expected), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize(
    "ends", [(0, 9, 20), (0, 6, 7, 20), (3, 20)]
)  # (6 to 9: in the middle of a block, as after a shared prefix)
def test_positions_of_a_block_see_each_other(window: int | None, ends: tuple[int, ...]) -> None:
    blocks = torch.tensor([-1, -1, 0, 0, 0, 0, 0, 0, 0, -1, 1, 1, -1, 1, -1, -1])
    places = torch.arange(20)
    numbers = torch.cat([blocks, torch.full((4,), -1)])
    seen = places <= places.unsqueeze(1)
    if window is not None:
        seen &= places > places.unsqueeze(1) - window
    seen |= (numbers == numbers.unsqueeze(1)) & (numbers >= 0)
    q, k, v = torch.randn(3, 20, HEADS, WIDTH, generator=torch.Generator().manual_seed(0))
    k, v = k[:, :KV_HEADS], v[:, :KV_HEADS]
    layout = KVLayout(1, KV_HEADS, WIDTH, torch.float32, HEADS, (AttentionForm(window=window, blocks=True),))
    cache = KVCache(layout, 8, BLOCK, CPU)
    assert cache.reserve("0", 20)
    whole = torch.nn.functional.scaled_dot_product_attention(
        *(each.transpose(0, 1) for each in (q, k, v)), seen, enable_gqa=True
    ).transpose(0, 1)
    request = ARRequest("0", OmniRequest(), [1] * 16, SamplingParams(), prompt_blocks=blocks)
    slots = cache.slot_numbers("0", 0, 20)
    cache.keys[0][slots], cache.values[0][slots] = k, v
    for start, end in itertools.pairwise(ends):
        run = slice(start, end)
        output = SdpaBackend(cache).plan([request], [start], [end - start])(0, q[run], k[run], v[run])
        shown = [place - start for place in range(start, end) if not bool((seen[place] & (places >= end)).any())]
        torch.testing.assert_close(output[shown], whole[run][shown], rtol=1e-4, atol=1e-5)


class FormedModel(ToyModel):
    """The toy model, one of whose layers attends in a form."""

    def __init__(self, *forms: AttentionForm | None) -> None:
        super().__init__()
        self.kv_layout = KVLayout(LAYERS, KV_HEADS, WIDTH, torch.float32, HEADS, forms)

    def alone(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Attend over a whole sequence."""
        return reference(query, key, value, self.kv_layout.forms[layer])


LONGEST = 30
"""The reference computes every token anew, so the longest prompts are left out."""


@pytest.mark.parametrize(("first", "second"), few([(None, FORMS[0]), (FORMS[0], FORMS[2]), (FORMS[3], FORMS[1])], 2))
def test_a_mixed_batch_equals_single_requests(
    engine: Callable[..., Driven], first: AttentionForm | None, second: AttentionForm
) -> None:
    """In chunks, in turns, preempted, and again from the prefix cache."""
    model = FormedModel(first, second)
    jobs = [job for job in JOBS if len(job[0]) < LONGEST]
    expected = [generate(model, *job, model.alone) for job in jobs]
    stage = engine(ToyRunner(model), chunk_size=7, max_batch_tokens=16, kv_blocks=14)
    for _ in range(2):
        assert ids_together(stage.scheduler, jobs) == expected
    state = stage.statistics()
    assert state["preemptions"] > 0 < state["reused_positions"]
    assert state["kernel_steps"] == 0
    assert stage.resting()
    assert expected != [generate(ToyModel(), *job) for job in jobs], "the forms make no difference here"


def test_backends_refuse_by_name_what_they_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr("omni_torch.engine.attention.flashinfer.find_spec", lambda name: object())
    gpu = torch.device("cuda:0")
    forms = (None, AttentionForm(window=4), AttentionForm(window=5, sinks=SINKS, blocks=True))
    formed, plain = (KVLayout(3, 2, 128, torch.bfloat16, 4, each) for each in (forms, ()))
    assert choose("auto", gpu, plain, 16) is FlashInferBackend
    assert choose("auto", gpu, formed, 16) is SdpaBackend
    with pytest.raises(ConfigError, match="the model has a sliding window and blocks that see each other and sinks"):
        choose("flashinfer", gpu, formed, 16)
    with pytest.raises(ConfigError, match=r"cuda_graphs: .* a soft cap"):
        EngineScheduler(ToyRunner(FormedModel(None, FORMS[1])), cuda_graphs=EagerRecorder, kv_blocks=4)
