"""The decode stage: token ids to text, by the checkpoint's tokenizer."""

from __future__ import annotations

from functools import cache

from tokenizers import Tokenizer

from omni_core.api import ConfigError
from omni_qwen3.tokenizer import load_tokenizer
from omni_qwen25.config import OmniConfig
from omni_torch.api import Detokenizer

END = "<|im_end|>"


@cache
def tokenizer_of(model_path: str) -> Tokenizer:
    """Return the checkpoint's tokenizer, read once per process. Raises ConfigError if it cannot be read."""
    return load_tokenizer(model_path, {})


def end_ids(model_path: str, config: OmniConfig) -> list[int]:
    """Return the ids that end a reply: the config's, or that of ``<|im_end|>``.

    Raises:
        ConfigError: neither says.
    """
    if config.end:
        return list(config.end)
    found = tokenizer_of(model_path).token_to_id(END)
    if found is None:
        raise ConfigError(f"{model_path}: neither config.json has an eos_token_id, nor the tokenizer a token {END}")
    return [int(found)]


def create_decode(model_path: str) -> Detokenizer:
    """Make the decode stage."""
    return Detokenizer(tokenizer_of(model_path), "thinker")
