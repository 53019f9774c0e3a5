"""The fast path of the code predictor equals its layers in a plain loop, for every sequence of batches."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from omni_qwen3.code_predictor import CodePredictor
from omni_qwen3.config import DecoderConfig
from omni_torch.quantization.packed_linear import pack_linears

CONFIG = DecoderConfig(
    vocab_size=64, hidden_size=48, layers=3, heads=6, kv_heads=2, head_dim=16, intermediate_size=96,
    norm_eps=1e-6, rope_theta=1e6, mrope_section=(), max_positions=64,
)  # fmt: skip
GROUPS = 7


def drawn(config: DecoderConfig, groups: int) -> CodePredictor:
    predictor = CodePredictor(config, groups)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in predictor.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / parameter.shape[-1] ** 0.5)
            if parameter.dim() == 1:
                parameter.add_(1.0)
    return predictor.eval().requires_grad_(False)


def plain(predictor: CodePredictor, hidden: torch.Tensor, first: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """One frame, every position computed again for every group, with attention written out."""

    def attention(
        layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float | None = None
    ) -> torch.Tensor:
        k, v = (each.repeat_interleave(q.shape[1] // k.shape[1], 1).transpose(0, 1) for each in (k, v))
        return F.scaled_dot_product_attention(q.transpose(0, 1), k, v, is_causal=True).transpose(0, 1)

    x, codes = torch.stack([hidden, first]), []
    for group in range(predictor.groups - 1):
        cos, sin = predictor.rotary(torch.arange(len(x)), x.dtype)
        y = x
        for layer in predictor.model.layers:
            y = layer(y, cos, sin, attention)
        codes.append(predictor.lm_head[group](predictor.model.norm(y[-1])).argmax())
        x = torch.cat([x, predictor.model.codec_embedding[group](codes[-1]).unsqueeze(0)])
    return torch.stack(codes), x[1:].sum(0)


@pytest.mark.parametrize("sizes", [[1], [4], [1, 5, 2, 5, 1]])
@torch.inference_mode()
def test_frames_equal_the_plain_computation(sizes: list[int]) -> None:
    predictor = drawn(CONFIG, GROUPS)
    for number, size in enumerate(sizes):
        generator = torch.Generator().manual_seed(number)
        hidden, first = torch.randn(2, size, 48, generator=generator)
        codes, total = predictor(hidden, first, lambda logits, group: logits.argmax(-1))
        for row in range(size):
            expected_codes, expected_total = plain(predictor, hidden[row], first[row])
            assert codes[row].tolist() == expected_codes.tolist()
            torch.testing.assert_close(total[row], expected_total, rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def test_results_do_not_alias_its_memory() -> None:
    """The next frame must not change codes that were returned."""
    predictor = drawn(CONFIG, GROUPS)
    hidden, first = torch.randn(2, 2, 48, generator=torch.Generator().manual_seed(0))
    codes, total = predictor(hidden, first, lambda logits, group: logits.argmax(-1))
    kept = codes.clone(), total.clone()
    predictor(-hidden, -first, lambda logits, group: logits.argmin(-1))
    assert torch.equal(codes, kept[0])
    assert torch.equal(total, kept[1])


@torch.inference_mode()
def test_packed_weights_give_the_same_frames() -> None:
    wide = DecoderConfig(
        vocab_size=256, hidden_size=512, layers=2, heads=8, kv_heads=2, head_dim=64, intermediate_size=1024,
        norm_eps=1e-6, rope_theta=1e6, mrope_section=(), max_positions=64,
    )  # fmt: skip
    predictor = drawn(wide, 4)
    hidden, first = torch.randn(2, 3, 512, generator=torch.Generator().manual_seed(0))
    expected = predictor(hidden, first, lambda logits, group: logits.argmax(-1))
    pack_linears(predictor)
    codes, total = predictor(hidden, first, lambda logits, group: logits.argmax(-1))
    assert torch.equal(codes, expected[0])
    torch.testing.assert_close(total, expected[1], rtol=1e-4, atol=1e-4)
