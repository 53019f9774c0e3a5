"""The decode stage: token ids to text, by the checkpoint's tokenizer."""

from __future__ import annotations

from functools import cache

from tokenizers import Tokenizer

from omni_qwen3.config import read_config
from omni_qwen3.tokenizer import load_tokenizer, markers
from omni_torch.api import Detokenizer


@cache
def tokenizer_of(model_path: str) -> Tokenizer:
    """Return the checkpoint's tokenizer, read once per process. Raises ConfigError if it cannot be read."""
    return load_tokenizer(model_path, markers(read_config(model_path)))


def create_decode(model_path: str) -> Detokenizer:
    """Make the decode stage."""
    return Detokenizer(tokenizer_of(model_path), "thinker")
