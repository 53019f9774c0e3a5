"""A tiny Llama that writes what it is told to: each token follows from the one before."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import torch
from tokenizers import AddedToken
from transformers import LlamaConfig, LlamaForCausalLM

from tiny_transformers import byte_tokenizer

RESPONSE_TEMPLATE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "reasoning_content": {"open": "<think>", "close": "</think>", "content": "text"},
        "tool_calls": {
            "open_pattern": r"\s*<tool>", "close": "</tool>", "repeats": True, "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close_pattern": r"\s*<\|im_end\|>", "content": "text"},
    },
}  # fmt: skip
"""A response template as transformers has it for Qwen3."""


def save_scripted(folder: Path, template: str, after: str, pieces: Sequence[str], special: Sequence[str] = ()) -> Path:
    """Write a checkpoint that answers with ``pieces``, tokens that are unlike each other, to prompts that end with ``after``.

    Args:
        after: a character, or a token of ``pieces`` or ``special``.
        special: those of the pieces that are special tokens, and others.
    """
    tokenizer = byte_tokenizer(*special, template=template)
    plain = [AddedToken(each, normalized=False) for each in pieces if each not in special]
    tokenizer.add_tokens(plain)
    size = len(tokenizer)
    config = LlamaConfig(
        vocab_size=size, hidden_size=size + size % 2, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1,
        head_dim=8, max_position_embeddings=512, bos_token_id=257, eos_token_id=258, pad_token_id=256,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    ids = [*tokenizer.encode(after, add_special_tokens=False)[-1:], *tokenizer.convert_tokens_to_ids(list(pieces)), 258]
    assert len(set(ids)) == len(ids)
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(0, 0.01)
        for norm in (model.model.norm, *(each.input_layernorm for each in model.model.layers)):
            norm.weight.fill_(1)
        model.model.embed_tokens.weight.copy_(torch.eye(size, config.hidden_size))
        for before, token in pairwise(ids):
            model.lm_head.weight[token, before] = 3
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = 258, 256
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
