"""Messages between the stages: typed dictionaries of plain data and CPU tensors."""

from __future__ import annotations

from typing import TypedDict

import torch


class ClonedVoice(TypedDict, total=False):
    """The voice of a recording."""

    embedding: torch.Tensor  # [hidden] float32
    codes: torch.Tensor  # [R, groups] int64: its frames, where its words are known
    words: torch.Tensor  # [W] int64: the tokens of these words


class SpeechStart(TypedDict, total=False):
    """preprocessing -> talker, the first chunk: all of the prompt but the text. Each later chunk is :class:`SpeechText`."""

    opening: torch.Tensor  # [3] int64: tokens before the text
    style: torch.Tensor  # int64: tokens of the instruction; absent without
    language: int  # the code of the language; absent: heard from the text
    speaker: int  # the code of the speaker
    voice: ClonedVoice  # instead
    dual_track: bool  # a token of text with each frame; else all text before the first


class SpeechText(TypedDict):
    """preprocessing -> talker: tokens of text."""

    ids: torch.Tensor  # [n] int64


class SpeechResult(TypedDict):
    """talker -> code2wav: the end of speech. The stage is streamed one ``[groups]`` int64 tensor per frame before it."""

    frames: int
    finish_reason: str
