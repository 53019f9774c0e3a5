"""The decoders' and the codec's norms are operations, so that an installed kernel runs in their place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fish_cases import SHAPES
from tiers import few
from torch import nn

from omni_fish_s2.codec.layers import WindowTransformer
from omni_fish_s2.codec.memory import Memory, StreamState
from omni_fish_s2.config import read_config
from omni_fish_s2.layers import DecoderLayer, rotary
from omni_torch.operations.kernels import Operation
from omni_torch.operations.shared import add_rms_norm, rms_norm


def calls_of(operation: Operation[..., Any], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    calls, reference = [0], operation.reference

    def count(*arguments: Any) -> Any:
        calls[0] += 1
        return reference(*arguments)

    monkeypatch.setattr(operation, "reference", count)
    return calls


@pytest.mark.parametrize("shape", few(SHAPES, 2))
def test_a_decoder_layer_calls_the_operations(
    shape: str, tiny: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = read_config(tiny[shape])
    normed, added = calls_of(rms_norm, monkeypatch), calls_of(add_rms_norm, monkeypatch)
    for decoder in (config.slow, config.fast):
        normed[0] = added[0] = 0
        layer = DecoderLayer(decoder, 0)
        for parameter in layer.parameters():
            nn.init.normal_(parameter, std=0.1)
        cos, sin = rotary(torch.arange(3), decoder.head_dim, decoder.rope_base)
        with torch.inference_mode():
            layer(torch.randn(3, decoder.dim), cos, sin, lambda layer, query, key, value: query)
        assert normed == [1 + 2 * decoder.qk_norm]
        assert added == [1]


def test_the_codec_s_transformers_call_the_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    normed, added = calls_of(rms_norm, monkeypatch), calls_of(add_rms_norm, monkeypatch)
    transformer = WindowTransformer(64, 32, 2, 4)
    for parameter in transformer.parameters():
        nn.init.normal_(parameter, std=0.1)
    with torch.inference_mode():
        transformer(torch.randn(1, 64, 5), Memory([StreamState()]))
    assert normed == [2 + 1]
    assert added == [2]
