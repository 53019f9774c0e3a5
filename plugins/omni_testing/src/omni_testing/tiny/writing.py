"""Functions that the writers of tiny checkpoints share."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LINES = (
    "You are a friendly voice that answers in words and in speech.",
    "What is in the picture and what do you hear?",
    *["Tell me a story about a red fox, a blue house and the sound of the sea."] * 3,
)
"""The text that a tiny checkpoint's tokenizer is trained on."""


def new_folder(directory: str | Path, shape: str, shapes: Collection[str], index: str = "config.json") -> Path:
    """Return the folder of a new checkpoint, made if missing.

    Raises:
        ValueError: an unknown shape. FileExistsError: the folder holds an ``index``.
    """
    if shape not in shapes:
        raise ValueError(f"unknown shape {shape!r}; there are: {', '.join(shapes)}")
    folder = Path(directory)
    if (folder / index).exists():
        raise FileExistsError(f"{folder} already holds a checkpoint; choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def drawing(seed: int) -> Iterator[None]:
    """Draw the weights of a network of transformers: seeded, in one thread, without its warnings and progress bars."""
    import torch
    from transformers.utils import logging

    verbosity, threads = logging.get_verbosity(), torch.get_num_threads()
    logging.set_verbosity_error()  # transformers warns of fields that the released configs have too
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            yield
    finally:
        torch.set_num_threads(threads)
        logging.set_verbosity(verbosity)
        logging.enable_progress_bar()


def write_qwen_tokenizer(
    folder: Path, merges: int, lines: Sequence[str], special: list[str], chat_template: str, media: dict[str, str]
) -> Any:
    """Train and write a byte-level BPE over a few lines, in which each role is one token.

    Args:
        special: the special tokens, in their released order.
        media: those of media, by the tokenizer's names for them.

    Returns:
        A ``Qwen2TokenizerFast``.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import Qwen2TokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    roles = ("system", "user", "assistant")
    size = 256 + sum(len(role) - 1 for role in roles) + merges
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([*[f"{role}\n" for role in roles] * 50, *lines], trainer)
    tokenizer.add_special_tokens(special)
    fast = Qwen2TokenizerFast(
        tokenizer_object=tokenizer,
        unk_token=None,
        bos_token=None,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=chat_template,
        extra_special_tokens=media,
    )
    fast.add_special_tokens({"additional_special_tokens": special})
    fast.save_pretrained(folder)
    return fast
