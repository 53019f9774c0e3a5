"""A decoder with cross-attention on the engine: each request sees its own memory, in chunks, side by side and after a preemption."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from engine_harness import Driven
from toy_model import HEADS, KV_HEADS, LAYERS, WIDTH, ToyModel, ToyRunner, full_attention

from omni_core.model_runner import ARRequest, KVLayout, SamplingParams
from omni_core.scheduling.base import IncomingMessage
from omni_torch.engine.key_values import KeyValues


class Crossing(ToyModel):
    """The toy model; what a layer attends to in its memory is added to what it attends to in its own text."""

    def __init__(self) -> None:
        super().__init__()
        self.kv_layout = KVLayout(LAYERS, KV_HEADS, WIDTH, torch.float32, HEADS, memory=True)

    def run(self, x: torch.Tensor, positions: torch.Tensor, attention: Any) -> torch.Tensor:
        def both(layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = attention(layer, query, key, value) + attention.recall(layer, query)
            return found

        return super().run(x, positions, both)


class Alone:
    """The attention of one sequence with a memory, ``[2, layers, m, kv_heads, width]``."""

    def __init__(self, memory: torch.Tensor) -> None:
        self.memory = memory

    def __call__(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return full_attention(layer, query, key, value)

    def recall(self, layer: int, query: torch.Tensor) -> torch.Tensor:
        key, value = (each.repeat_interleave(HEADS // KV_HEADS, 1).transpose(0, 1) for each in self.memory[:, layer])
        return F.scaled_dot_product_attention(query.transpose(0, 1), key, value).transpose(0, 1)


class Remembering(ToyRunner):
    """Requests bring ``memory`` too."""

    hands_over = True

    def receive(self, message: IncomingMessage) -> ARRequest | None:
        request = super().receive(message)
        if request is not None:
            request.memory = count = request.state["memory"].shape[2]
            request.prompt_ids = [-1] * count + request.prompt_ids
            request.prompt_positions = torch.arange(len(request.prompt_ids)).sub(count).clamp(min=0)
            request.position_delta = -count
        return request

    def past_key_values(self, request: ARRequest) -> KeyValues | None:
        memory = request.state["memory"]
        return KeyValues(*memory, [-1] * request.memory, 0)


@pytest.mark.parametrize("options", [{"chunk_size": 5, "max_batch_tokens": 12}, {"kv_blocks": 5, "block_size": 8}])
def test_ids_are_those_of_each_alone(engine: Callable[..., Driven], options: dict[str, Any]) -> None:
    model, generator = Crossing(), torch.Generator().manual_seed(0)
    jobs = []
    for number, length in enumerate([3, 17, 9]):
        memory = torch.randn(2, LAYERS, 2 + 3 * number, KV_HEADS, WIDTH, generator=generator)
        prompt = torch.randint(0, 90, (length,), generator=generator).tolist()
        jobs.append((prompt, memory))
    expected = []
    for prompt, memory in jobs:
        ids = [*prompt]
        for _ in range(8):
            hidden = model.run(model.embed(torch.tensor(ids)), torch.arange(len(ids)), Alone(memory))
            ids.append(int(model.compute_logits(hidden[-1:]).argmax()))
        expected.append(ids[len(prompt) :])
    stage = engine(Remembering(model), **options)
    for number, (prompt, memory) in enumerate(jobs):
        stage.ask(str(number), prompt, memory=memory, sampling=SamplingParams(max_new_tokens=8))
    found = stage.collect(len(jobs))
    assert [found[str(number)].data["ids"] for number in range(len(jobs))] == expected
    assert (stage.statistics()["preemptions"] > 0) == ("kv_blocks" in options)
    assert stage.resting()
