"""Log probabilities of the tokens that ``generate()`` writes, by the model's own logits, before rules, penalties and temperatures."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from transformers import GenerationConfig
from transformers.convert_slow_tokenizer import bytes_to_unicode

from omni_core.api import TokenLogprob


def ask(config: GenerationConfig) -> None:
    """Let ``generate()`` return what :func:`chosen` reads."""
    config.return_dict_in_generate = config.output_logits = True


def chosen(made: Any, count: int) -> list[float]:
    """Return the log probabilities of the last ``count`` tokens, all that were written, of the one text that ``generate()`` returns."""
    ids = made["sequences"][0, -count:].tolist()
    beams = made.get("beam_indices")
    rows = [0] * count if beams is None else beams[0, :count].tolist()
    logits = made["logits"]
    return [logprob(logits[at][row], token) for at, (row, token) in enumerate(zip(rows, ids, strict=True))]


def logprob(logits: torch.Tensor, token: int) -> float:
    """Return the log probability of a token by the logits ``[vocab]`` of its place."""
    return float(logits.float().log_softmax(-1)[token])


@contextmanager
def last_logits(model: Any) -> Iterator[list[torch.Tensor]]:
    """Keep the logits ``[vocab]`` of the last position of a model's last forward: of those that this thread computes."""
    own, kept = threading.get_ident(), list[torch.Tensor]()

    def keep(module: Any, args: Any, output: Any) -> None:
        if threading.get_ident() == own:
            kept[:] = [output.logits[0, -1]]

    hook = model.register_forward_hook(keep)
    try:
        yield kept
    finally:
        hook.remove()


def told(tokenizer: Any, ids: Sequence[int], found: Iterable[float]) -> list[TokenLogprob]:
    """Return the log probabilities of the tokens that are text; special ones are not."""
    special = set(tokenizer.all_special_ids)
    made = []
    for token, value in zip(ids, found, strict=True):
        data = b"" if token in special else _utf8(tokenizer, token)
        if data:
            made.append(TokenLogprob(data.decode(errors="replace"), data, min(value, 0.0), token))
    return made


def _utf8(tokenizer: Any, token: int) -> bytes:
    name = tokenizer.convert_ids_to_tokens(token) or ""
    text: str = tokenizer.decode([token], skip_special_tokens=True, clean_up_tokenization_spaces=False)
    if name.startswith("▁") and not text.startswith(" "):
        text = f" {text}"
    if "\ufffd" not in text:
        return text.encode()
    if name.startswith("<0x"):  # of a vocabulary that falls back to bytes
        return bytes([int(name[3:-1], 16)])
    known = _bytes()
    return bytes(known[each] for each in name) if all(each in known for each in name) else text.encode()


@cache
def _bytes() -> dict[str, int]:
    """Return the bytes that the letters of a vocabulary of bytes stand for."""
    return {letter: byte for byte, letter in bytes_to_unicode().items()}
