"""Tiny checkpoints of transformers' architectures with random weights, made from their config classes.

Each maker is a function of a folder, registered by the name of its architecture; :func:`checkpoint` makes a folder once per run.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

MAKERS: dict[str, Callable[[Path], None]] = {}
"""By architecture."""

TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for p in m['content'] %}{% if p['type'] == 'text' %}{{ p['text'] }}{% else %}{{ '<' + p['type'] + '>' }}{% endif %}"
    "{% endfor %}{% endif %}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)
"""A chat template; a part that is no text is written as ``<image>``, ``<audio>`` or ``<video>``."""


def maker(architecture: str) -> Callable[[Callable[[Path], None]], Callable[[Path], None]]:
    """Register the decorated function as the maker of an architecture's checkpoint."""

    def register(make: Callable[[Path], None]) -> Callable[[Path], None]:
        MAKERS[architecture] = make
        return make

    return register


@cache
def _folders() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="tiny-transformers-")


@cache
def checkpoint(architecture: str) -> Path:
    """Return the folder of an architecture's checkpoint."""
    folder = Path(_folders().name) / architecture
    folder.mkdir()
    torch.manual_seed(0)
    MAKERS[architecture](folder)
    return folder


def byte_tokenizer(*special: str, template: str | None = TEMPLATE) -> PreTrainedTokenizerFast:
    """Return a tokenizer of bytes, ids 0 to 255, with ``<pad>`` 256, ``<s>`` 257, ``</s>`` 258 and further ``special`` tokens behind."""
    vocabulary = {character: number for number, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<pad>", "<s>", "</s>", *special])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>", chat_template=template
    )
