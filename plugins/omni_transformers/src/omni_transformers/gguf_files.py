"""GGUF files as checkpoints: the config and the tokenizer are written into a folder once; weights stay in the file, and narrow.

The forms of llama.cpp's converter for Llama, Mistral, Qwen2 and Qwen3 are read; its names of tensors are those of
:mod:`omni_torch.checkpoints.gguf_checkpoints`.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from omni_core.api import ConfigError
from omni_torch.api import written_once
from omni_transformers.architectures import table

_TYPES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
"""Architectures by ``general.architecture`` of a file's metadata, which transformers takes as the model type."""


def is_gguf(model: str) -> bool:
    """Return whether a model is named as a GGUF file."""
    return model.endswith(".gguf")


def folder_of(path: str) -> str:
    """Return the folder with config and tokenizer of a GGUF file; it is written at the first call, which imports transformers.

    Raises:
        ConfigError: the file cannot be read, or is of a model that is not run from GGUF files.
    """
    file = Path(path).expanduser().absolute()
    try:
        status = file.stat()
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
    identity = f"{file} {status.st_size} {status.st_mtime_ns}"
    name = f"gguf-{file.stem[:40]}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"
    return written_once(name, lambda folder: _write(folder, file), origin=file)


def _write(folder: Path, file: Path) -> None:
    try:
        import gguf
    except ImportError as error:
        raise ConfigError(f'{file}: reading GGUF needs the gguf package: pip install "omni-torch[gguf]"') from error
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    try:
        model = gguf.GGUFReader(file).fields["general.architecture"].contents()
        if model not in _TYPES:
            raise ConfigError(
                f"{file}: models of the type {model!r} are not run from GGUF files; use the checkpoint in safetensors. "
                f"There are: {', '.join(_TYPES)}"
            )
        config = AutoConfig.from_pretrained(file.parent, gguf_file=file.name, trust_remote_code=False)
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name, trust_remote_code=False)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"{file}: cannot be read: {type(error).__name__}: {error}; download it again") from error
    config.architectures = [table()[_TYPES[config.model_type]].name]
    config.dtype = "float32"
    tokenizer.save_pretrained(folder)
    ends = [each for each in {tokenizer.eos_token_id, config.eos_token_id} if isinstance(each, int)]
    GenerationConfig(bos_token_id=tokenizer.bos_token_id, eos_token_id=ends or None).save_pretrained(folder)
    config.save_pretrained(folder)


def load_linked(kind: Any, folder: Path, file: Path, dtype: Any) -> Any:
    """Return a model whose weights are read from a GGUF file: linear layers of a narrow type stay narrow.

    Args:
        kind: the model class.
        dtype: of everything else, such as ``torch.float32``.

    Raises:
        ConfigError: the file cannot be read, or lacks a tensor.
    """
    import torch
    from torch import nn
    from transformers import AutoConfig, GenerationConfig

    from omni_torch.api import SCALES, VALUES, GgufCheckpoint

    config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    checkpoint = GgufCheckpoint(file, "", ("llama", "mistral", "qwen2", "qwen3"), {}, {}, folder)
    with torch.device("meta"):
        model = kind(config)
    model.model.rotary_emb = type(model.model.rotary_emb)(config=config)
    permuted = config.model_type in ("llama", "mistral")
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}

    def rows_of(name: str, count: int) -> torch.Tensor:
        """Return the order of a matrix's rows: llama.cpp has the values of a rotary pair side by side."""
        order = torch.arange(count)
        part = next((each for each in heads if f".{each}." in name), None)
        return order.view(heads[part], -1, 2).transpose(1, 2).flatten() if permuted and part else order

    for name, layer in list(model.named_modules()):
        if type(layer) is not nn.Linear or (groups := checkpoint.narrow([f"{name}.weight"])) is None:
            continue
        weights = checkpoint.read([f"{name}{VALUES}", f"{name}{SCALES}"])
        order = rows_of(f"{name}.", layer.out_features)
        bias = None if layer.bias is None else checkpoint.read([f"{name}.bias"])[f"{name}.bias"].to(dtype)
        values, scales = (each[order] for each in weights.values())
        model.set_submodule(name, _narrow(groups, layer, values, scales, bias))
    missing = [each for each, value in model.state_dict().items() if value.device.type == "meta"]
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    read = checkpoint.read([each for each in missing if each not in tied])
    for each, value in read.items():
        read[each] = value[rows_of(each, len(value))].to(dtype) if value.dim() else value.to(dtype)
    model.load_state_dict(read, strict=False, assign=True)
    if type(model.lm_head) is nn.Linear:
        model.tie_weights()
    model.generation_config = GenerationConfig.from_pretrained(folder)
    return model


def _narrow(groups: Any, layer: Any, values: Any, scales: Any, bias: Any) -> Any:
    from omni_torch.api import SCALES, VALUES, Int4WeightLinear, Int8GroupsLinear

    kind = Int4WeightLinear if groups.bits == 4 else Int8GroupsLinear
    made = kind.described(layer.out_features, layer.in_features, zero_points=groups.zero_points, bias=bias)
    made.load_state_dict({VALUES[1:]: values, SCALES[1:]: scales}, strict=False, assign=True)
    return made
