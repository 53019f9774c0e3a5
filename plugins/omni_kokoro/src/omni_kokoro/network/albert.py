"""An ALBERT over phonemes: one layer, applied several times."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from omni_kokoro.config import KokoroConfig

EMBEDDING, EPSILON = 128, 1e-12


class _Embeddings(nn.Module):
    def __init__(self, config: KokoroConfig) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(config.tokens, EMBEDDING)
        self.position_embeddings = nn.Embedding(config.context, EMBEDDING)
        self.token_type_embeddings = nn.Embedding(2, EMBEDDING)
        self.LayerNorm = nn.LayerNorm(EMBEDDING, eps=EPSILON)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        positions = self.position_embeddings.weight[: len(ids)]
        found: torch.Tensor = self.LayerNorm(
            self.word_embeddings(ids) + self.token_type_embeddings.weight[0] + positions
        )
        return found


class _Attention(nn.Module):
    def __init__(self, config: KokoroConfig) -> None:
        super().__init__()
        size = config.bert_hidden
        self.heads = config.bert_heads
        self.query, self.key, self.value = nn.Linear(size, size), nn.Linear(size, size), nn.Linear(size, size)
        self.dense = nn.Linear(size, size)
        self.LayerNorm = nn.LayerNorm(size, eps=EPSILON)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            each(x).view(len(x), self.heads, -1).transpose(0, 1)[None] for each in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(query, key, value)[0].transpose(0, 1).reshape(len(x), -1)
        found: torch.Tensor = self.LayerNorm(x + self.dense(mixed))
        return found


class _Layer(nn.Module):
    def __init__(self, config: KokoroConfig) -> None:
        super().__init__()
        self.attention = _Attention(config)
        self.ffn = nn.Linear(config.bert_hidden, config.bert_intermediate)
        self.ffn_output = nn.Linear(config.bert_intermediate, config.bert_hidden)
        self.full_layer_layer_norm = nn.LayerNorm(config.bert_hidden, eps=EPSILON)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.attention(x)
        inner = self.ffn(x)
        # The formula, not F.gelu: their last bits differ, and become a pitch that is summed up.
        inner = 0.5 * inner * (1 + torch.tanh((2 / math.pi) ** 0.5 * (inner + 0.044715 * torch.pow(inner, 3.0))))
        found: torch.Tensor = self.full_layer_layer_norm(x + self.ffn_output(inner))
        return found


class _Group(nn.Module):
    def __init__(self, config: KokoroConfig) -> None:
        super().__init__()
        self.albert_layers = nn.ModuleList([_Layer(config)])


class _Encoder(nn.Module):
    def __init__(self, config: KokoroConfig) -> None:
        super().__init__()
        self.embedding_hidden_mapping_in = nn.Linear(EMBEDDING, config.bert_hidden)
        self.albert_layer_groups = nn.ModuleList([_Group(config)])


class Albert(nn.Module):
    """``[n]`` ids to ``[n, bert_hidden]``. Modules have the names of the published tensors."""

    def __init__(self, config: KokoroConfig) -> None:
        super().__init__()
        self.times = config.bert_layers
        self.embeddings = _Embeddings(config)
        self.encoder = _Encoder(config)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x: torch.Tensor = self.encoder.embedding_hidden_mapping_in(self.embeddings(ids))
        layer = self.encoder.get_submodule("albert_layer_groups.0.albert_layers.0")
        for _ in range(self.times):
            x = layer(x)
        return x
