"""Shrinks a config class of transformers to sizes that run in milliseconds, and saves a random model with its processor."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from omni_transformers.architectures import table
from tiny_transformers import TEMPLATE, byte_tokenizer

SIZES: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "embed_dim", "n_embd", "embedding_size", "dim", "feat_dim"), 32),
    **dict.fromkeys(
        ("intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim", "ffn_dim", "d_ff", "n_inner", "mlp_dim"), 64
    ),
    **dict.fromkeys(("shared_expert_intermediate_size", "moe_intermediate_size", "intermediate_size_mlp"), 32),
    **dict.fromkeys(
        (
            "num_hidden_layers",
            "encoder_layers",
            "decoder_layers",
            "num_layers",
            "num_decoder_layers",
            "depth",
            "n_layer",
        ),
        2,
    ),
    **dict.fromkeys(
        ("num_attention_heads", "num_heads", "encoder_attention_heads", "decoder_attention_heads", "n_head"), 4
    ),
    **dict.fromkeys(("attention_heads",), 4),
    **dict.fromkeys(("num_key_value_heads",), 2),
    **dict.fromkeys(("head_dim", "d_kv"), 8),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok",), 2),
}
"""Values of the fields of these names, wherever they are numbers."""


def shrunk(config: PreTrainedConfig, sizes: Mapping[str, Any]) -> PreTrainedConfig:
    """Return a config with small fields. ``sizes``: of fields, before :data:`SIZES`; those of a part of the config are a mapping."""
    fields = config.to_dict()
    parts = {
        name: each for name in config.sub_configs if isinstance(each := getattr(config, name, None), PreTrainedConfig)
    }
    for name, part in parts.items():
        own = sizes.get(name, {})
        fields[name] = shrunk(part, {**_plain(sizes), **own}).to_dict()
        fields[name]["model_type"] = own.get("model_type", part.model_type)
    for name, value in {**SIZES, **_plain(sizes)}.items():
        if name in fields and name not in parts and (name in sizes or isinstance(fields[name], int)):
            fields[name] = value
    fields |= {name: value for name, value in sizes.items() if name not in parts and name in sizes.get("_own", ())}
    for name in (
        "layer_types",
        "per_layer_config",
        "no_rope_layers",
        "mlp_layer_types",
        "local_layer_ids",
    ):  # made anew by the class
        if name not in sizes:
            fields.pop(name, None)
    return type(config).from_dict(fields)


def _plain(sizes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in sizes.items() if not name.endswith("_config") and name != "_own"}


def template(**marks: str) -> str:
    """Return a chat template that writes these texts for the parts of their kinds."""
    written = "{{ {" + ", ".join(f"'{kind}': '{mark}'" for kind, mark in marks.items()) + "}[p['type']] }}"
    return TEMPLATE.replace("{{ '<' + p['type'] + '>' }}", written)


def save(
    folder: Path,
    architecture: str,
    processor: Any,
    sizes: Mapping[str, Any] | None = None,
    ids: Mapping[str, Any] | None = None,
    config: PreTrainedConfig | None = None,
    scale: float = 0.3,
) -> None:
    """Write a checkpoint with random weights.

    Args:
        processor: its processor or tokenizer.
        sizes: of its config's fields; see :func:`shrunk`.
        ids: the tokens of the config's fields of ids, by their names.
        config: what is shrunk; by default that of the architecture.
        scale: of the weights.
    """
    tokenizer = getattr(processor, "tokenizer", processor)
    small = shrunk(
        config or CONFIG_MAPPING[table()[architecture].model_type](),
        {"vocab_size": 320, "tie_word_embeddings": False, **(sizes or {})},
    )
    _number(small, {"pad_token_id": "<pad>", "bos_token_id": "<s>", "eos_token_id": "</s>", **(ids or {})}, tokenizer)
    model = getattr(transformers, architecture)(small).eval()
    with torch.no_grad():  # attention that looks at one position only would hide most mistakes
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(0, scale)
    model.generation_config.pad_token_id, model.generation_config.eos_token_id = 256, 258
    if small.is_encoder_decoder:
        model.generation_config.decoder_start_token_id = 256
    model.save_pretrained(folder)
    processor.save_pretrained(folder)


def _number(config: PreTrainedConfig, tokens: Mapping[str, Any], tokenizer: Any) -> None:
    for name, token in tokens.items():
        if hasattr(config, name) and not callable(getattr(config, name)):
            setattr(config, name, tokenizer.convert_tokens_to_ids(token))  # one, or several
    for name in config.sub_configs:
        if isinstance(part := getattr(config, name, None), PreTrainedConfig):
            _number(part, tokens, tokenizer)


def tokenizer_of(marks: Mapping[str, str] | None = None, *more: str, **named: str) -> Any:
    """Return the tokenizer of bytes with tokens that are its attributes by name, such as ``image_token``, and more.

    Args:
        marks: what the chat template writes for each kind of media; ``None``: there is no template.
    """
    made = byte_tokenizer(
        *dict.fromkeys([*named.values(), *more]), template=None if marks is None else template(**marks)
    )
    return type(made)(
        tokenizer_object=made.backend_tokenizer,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        chat_template=made.chat_template,
        extra_special_tokens=named,
    )
