"""Payloads between the stages of Fish S2: typed dictionaries of plain data and CPU tensors."""

from __future__ import annotations

from typing import NotRequired, TypedDict

import torch


class TextError(TypedDict):
    """The error of a text that is still being written, which ends its request when the turns before it are spoken."""

    message: str
    too_large: bool


class SpeechInputs(TypedDict, total=False):
    """preprocessing -> semantic_ar. If the text is a stream, this is the first chunk, without turns; each later turn is
    a chunk, a tensor of ids, and a :class:`TextError` may be the last one.
    """

    token_ids: torch.Tensor  # [P] int64: the prompt of the first turn
    codes: torch.Tensor  # [R, codebooks] int64: the frames of the reference voices; absent without
    codes_start: int  # the position of the first of these frames in the prompt
    turns: list[torch.Tensor]  # for each turn but the last: int64 ids that follow its speech


class SpeechResult(TypedDict):
    """semantic_ar -> vocoder: the end of speech. The vocoder is streamed one ``[codebooks]`` int64 tensor per frame before it."""

    frames: int
    finish_reason: str
    error: NotRequired[TextError]
