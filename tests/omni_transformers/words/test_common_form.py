"""Decoders of the common form become data that computes the same; others are left alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from omni_transformers.words.common_form import described

SIZES = {
    "vocab_size": 264,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
}
SPARSE = {
    "head_dim": 16,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "mlp_only_layers": [1],
}


def decoder(name: str, **fields: Any) -> Any:
    """Make a decoder whose norms and biases are not those of a fresh one."""
    config = getattr(transformers, f"{name}Config")(num_key_value_heads=2, pad_token_id=0, **SIZES, **fields)
    torch.manual_seed(0)
    made = getattr(transformers, f"{name}Model")(config).eval().requires_grad_(False)
    for parameter in made.parameters():
        if parameter.dim() == 1:
            parameter.data = torch.randn_like(parameter) * 0.1 + 1
    return made


@pytest.mark.parametrize(
    ("name", "fields", "pairs"),
    [
        ("Llama", {}, False),
        ("Qwen2", {}, False),
        ("Qwen3", {"head_dim": 16}, False),
        ("Mistral", {"sliding_window": None}, False),
        ("Phi3", {}, False),
        ("Helium", {"head_dim": 16}, True),
        ("Ernie4_5", {"head_dim": 16}, True),
        ("Qwen3Moe", SPARSE, False),
        ("Mixtral", {"num_local_experts": 4}, False),
    ],
)
@torch.inference_mode()
def test_it_is_found_and_its_modules_compute_as_before(name: str, fields: dict[str, Any], pairs: bool) -> None:
    made = decoder(name, **fields)
    rows = torch.randn(1, 6, 64)
    before = made(inputs_embeds=rows).last_hidden_state
    form = described(made)
    assert form is not None
    assert form.stack.pairs == pairs
    assert len(form.stack.layers) == 5
    assert torch.equal(made(inputs_embeds=rows).last_hidden_state, before)
    weights = {each.data_ptr() for each in made.parameters()}
    assert {each.qkv.weight.data_ptr() for each in form.stack.layers} <= weights  # no second copy of a weight
    assert made.config._attn_implementation == "sdpa"


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("Gemma", {"head_dim": 16}),  # norms with one plus the weight, another activation
        ("Gemma2", {"head_dim": 16}),  # norms behind, soft caps, windows
        ("Granite", {"residual_multiplier": 0.3}),
        ("Olmo2", {}),  # norms behind only
        ("Cohere", {}),
        ("Glm", {"head_dim": 16}),  # rotates a part of a head
        ("SmolLM3", {}),  # a layer without positions
        ("Qwen2Moe", {"num_experts": 4}),
    ],
)
def test_another_form_is_not(name: str, fields: dict[str, Any]) -> None:
    assert described(decoder(name, **fields)) is None


def test_a_layer_that_differs_is_noticed() -> None:
    made = decoder("Llama")
    made.layers[3].register_forward_hook(lambda module, given, output: output * 1.01)
    assert described(made) is None
