"""Reads a checkpoint's tokenizer and checks that it belongs to the checkpoint's config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from omni_core.errors import ConfigError
from omni_qwen3.config import QwenConfig
from omni_torch.checkpoints import load_checked, read_tokenizer


def load_tokenizer(model_path: str, config: QwenConfig) -> Tokenizer:
    """Read the tokenizer alone. transformers is imported only to convert older files, if there is no
    ``tokenizer.json``.

    Raises:
        ConfigError: it is missing, unreadable, or another checkpoint's.
    """
    markers = {"<|im_start|>": config.im_start, "<|im_end|>": config.im_end}
    if (Path(model_path) / "tokenizer.json").is_file():
        made: Tokenizer = read_tokenizer(model_path, markers)
        return made
    older: Tokenizer = load_chat_tokenizer(model_path, config).backend_tokenizer
    return older


def load_chat_tokenizer(model_path: str, config: QwenConfig) -> Any:
    """Read transformers' tokenizer, with the chat template.

    Raises:
        ConfigError: it is missing, unreadable, another checkpoint's, or has no chat template.
    """
    from transformers import AutoTokenizer

    tokenizer = load_checked(f"{model_path}: the tokenizer", lambda: AutoTokenizer.from_pretrained(model_path))
    for name, expected in (("<|im_start|>", config.im_start), ("<|im_end|>", config.im_end)):
        found = tokenizer.convert_tokens_to_ids(name)
        if found != expected:
            raise ConfigError(f"{model_path}: the tokenizer's id of {name} is {found}, config.json says {expected}")
    if tokenizer.chat_template is None:
        raise ConfigError(f"{model_path} has no chat template (chat_template.jinja); download the checkpoint again")
    return tokenizer
