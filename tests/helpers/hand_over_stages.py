"""Stages that hand keys and values to each other, on a toy model that several ranks compute bit for bit as one does.

Children of the tests import this module.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from toy_model import HEADS, HIDDEN, KV_HEADS, LAYERS, POISON_TOKEN, WIDTH, ToyModel

from omni_core.errors import InvalidRequestError
from omni_core.model_runner import ARRequest, KVLayout, RandomStream, SamplingParams
from omni_core.scheduling.base import IncomingMessage, OutgoingMessage
from omni_torch.engine.key_values import KeyValues
from omni_torch.processes.tensor_parallel import ALONE, TensorParallel
from omni_torch.runners.model_runner import ARModelRunner


class RankedModel(ToyModel):
    """Each head is a product of its own, and what ranks add to each other is zero, so no bit depends on the number of ranks."""

    def __init__(self, parallel: TensorParallel = ALONE, layers: int = LAYERS) -> None:
        super().__init__()
        self.layers = self.layers[:layers]
        self.parallel = parallel
        self.heads, self.kv_heads = HEADS // parallel.size, max(1, KV_HEADS // parallel.size)
        self.first = parallel.rank * self.heads
        self.first_kv = parallel.rank * KV_HEADS // parallel.size
        self.kv_layout = KVLayout(len(self.layers), self.kv_heads, WIDTH, torch.float32)

    def run(self, x: torch.Tensor, positions: torch.Tensor, attention: Any) -> torch.Tensor:
        angle = positions.float().unsqueeze(-1) * torch.arange(1, HIDDEN + 1) * 0.1
        x = x + angle.sin()
        for index, (q, kv, o) in enumerate(self.layers):
            normed = F.layer_norm(x, (HIDDEN,))

            def heads(weight: torch.Tensor, first: int, count: int, given: torch.Tensor = normed) -> torch.Tensor:
                parts = weight.view(-1, WIDTH, HIDDEN)[first : first + count]
                return torch.stack([given @ part.T for part in parts], 1)

            key = heads(kv, self.first_kv, self.kv_heads)
            value = heads(kv, KV_HEADS + self.first_kv, self.kv_heads)
            mixed = torch.zeros(len(x), HEADS, WIDTH)
            mixed[:, self.first : self.first + self.heads] = attention(
                index, heads(q, self.first, self.heads), key, value
            )
            x = x + self.parallel.all_reduce(mixed).reshape(len(x), -1) @ o.T
        return F.layer_norm(x, (HIDDEN,))


class HandingRunner(ARModelRunner):
    """Generates ``tokens[stage]`` tokens greedily after what it is given: a ``prompt``, or keys and values and the ids that follow.

    The result has both for the next stage. A request whose ``fails`` names the stage fails when it is done; one whose ``holds`` does
    stays there after its second token.
    """

    hands_over = exports_hidden = True
    kv_heads = KV_HEADS

    def __init__(self, model: RankedModel, stage: str) -> None:
        super().__init__(model)
        self.parallel, self.stage = model.parallel, stage
        self.past: dict[str, KeyValues] = {}

    def receive(self, message: IncomingMessage) -> ARRequest | None:
        data: dict[str, Any] = message.data.data or message.data.request.inputs
        past, ids, positions, delta = data.get("key_values"), list(data["ids"]), None, data.get("delta", 0)
        if past is not None:
            self.past[message.request_id] = past
            ids, delta = [*past.ids, *ids], int(past.next_position) - past.positions
            positions = torch.arange(len(ids)) + delta
        sampling = SamplingParams(max_new_tokens=data["tokens"][self.stage], suppressed_ids=frozenset({POISON_TOKEN}))
        random = RandomStream(0)
        own = message.data.request
        return ARRequest(message.request_id, own, ids, sampling, None, positions, delta, data, random=random)

    def past_key_values(self, request: ARRequest) -> KeyValues | None:
        return self.past.get(request.request_id)

    def can_step(self, request: ARRequest) -> bool:
        return request.state.get("holds") != self.stage or len(request.output_ids) < 2

    def emit(self, request: ARRequest, token_id: int) -> Iterable[OutgoingMessage]:
        if request.state.get("streams") == self.stage:
            yield OutgoingMessage(request.request_id, "stream", token_id)

    def result(self, request: ARRequest) -> dict[str, Any]:
        exported = self.export_key_values(request)
        if request.state.get("fails") == self.stage:
            raise InvalidRequestError(f"as asked, in {self.stage}")
        made = list(request.output_ids)
        return {
            **request.state,
            "key_values": exported,
            "ids": made[-1:],
            "made": [*request.state.get("made", []), *made],
        }

    def release(self, request_id: str) -> None:
        self.past.pop(request_id, None)


def create_runner(
    stage_name: str, tp_rank: int = 0, tp_size: int = 1, tp_rendezvous: str | None = None, layers: int = LAYERS
) -> HandingRunner:
    return HandingRunner(RankedModel(TensorParallel.connect(tp_rank, tp_size, tp_rendezvous), layers), stage_name)
