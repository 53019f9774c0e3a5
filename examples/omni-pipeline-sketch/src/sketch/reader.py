"""The stage that reads: an autoregressive model on the engine, whose requests end with their keys and values."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch

from omni_core.api import (
    ARRequest,
    ContentSpan,
    ForwardBatch,
    ForwardOutput,
    IncomingMessage,
    KVLayout,
    RandomStream,
)
from omni_media.api import images
from omni_torch.api import ARModelRunner, Part, TensorParallel, sampling_from
from sketch.checkpoint import read_checkpoint
from sketch.interface import READ_SIZE
from sketch.network import BOS, EOS, VOCABULARY, Dimensions, Reader, patches

IMAGE = -1
"""The id of positions of an image."""


class ReaderModel:
    """The network as an :class:`omni_core.model_runner.ARModel`; with several ranks, this one's heads."""

    def __init__(self, dims: Dimensions, weights: dict[str, torch.Tensor], parallel: TensorParallel) -> None:
        heads, kv_heads = parallel.share(dims.heads, "heads"), parallel.share(dims.kv_heads, "key/value heads")
        self.network = Reader(dims, heads, kv_heads)
        self.network.load_state_dict({name: _share(name, value, parallel) for name, value in weights.items()})
        self.network.requires_grad_(False)
        self.hidden_size, self.vocab_size = dims.hidden, VOCABULARY
        self.kv_layout = KVLayout(dims.layers, kv_heads, dims.head_dim, torch.float32, heads)
        self._reduce = parallel.all_reduce

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        return self.network.table(ids)

    def forward(self, batch: ForwardBatch) -> ForwardOutput:
        assert batch.input_embeds is not None
        return ForwardOutput(self.network.run(batch.input_embeds, batch.positions, batch.attention, self._reduce))

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.network.head(hidden)


class ReaderRunner(ARModelRunner):
    """Requests are ``text``, ``image`` and ``sampling``, parameters as a request has them; the result is what the reader knows then."""

    hands_over = exports_hidden = True

    def __init__(self, model: ReaderModel, parallel: TensorParallel, device: str) -> None:
        super().__init__(model, device)
        self.parallel = parallel

    def receive(self, message: IncomingMessage) -> ARRequest | None:
        data: dict[str, Any] = message.data.data
        ids, content, embeds = [BOS], [], None
        model: Any = self.model
        if data["image"] is not None:
            pixels = np.array(images(data["image"])[0].resize((READ_SIZE, READ_SIZE)))
            seen = patches(torch.from_numpy(pixels).float() / 127.5 - 1, model.network.dims.patch)
            ids += [IMAGE] * len(seen)
            content.append(ContentSpan(1, 1 + len(seen), hashlib.sha256(pixels.tobytes()).digest()))
        ids += list(data["text"].encode())
        if content:
            embeds = model.embed(torch.tensor(ids).clamp(min=0))
            embeds[1 : content[0].end] = model.network.see(seen)
        sampling = sampling_from(data["sampling"], "sampling", stop_ids={EOS})
        random = RandomStream(sampling.seed)
        own = message.data.request
        return ARRequest(message.request_id, own, ids, sampling, embeds, content=content, random=random)

    def result(self, request: ARRequest) -> dict[str, Any]:
        return {"key_values": self.export_key_values(request)}


def _share(name: str, value: torch.Tensor, parallel: TensorParallel) -> torch.Tensor:
    """Return a rank's part of a weight: rows of queries, keys and values, columns of the output projection."""
    if parallel.size == 1 or not name.endswith((".q.weight", ".k.weight", ".v.weight", ".o.weight")):
        return value
    part: Part = parallel.part(1 if name.endswith(".o.weight") else 0)
    return value[part.bounds(name, tuple(value.shape))]


def create_reader(
    model_path: str, device: str = "cpu", tp_rank: int = 0, tp_size: int = 1, tp_rendezvous: str | None = None
) -> ReaderRunner:
    """Build the runner of one rank."""
    parallel = TensorParallel.connect(tp_rank, tp_size, tp_rendezvous, device)
    model = ReaderModel(*read_checkpoint(model_path, "read"), parallel)
    model.network.to(device)
    return ReaderRunner(model, parallel, device)
