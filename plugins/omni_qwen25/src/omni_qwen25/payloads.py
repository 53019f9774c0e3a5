"""The payloads between the stages of Qwen2.5-Omni: typed dictionaries of plain data and CPU tensors."""

from __future__ import annotations

from typing import Any, TypedDict

import torch


class ThinkerInputs(TypedDict, total=False):
    """mm_aggregate -> thinker."""

    input_ids: torch.Tensor  # [P] int64, placeholders expanded
    positions: torch.Tensor  # [3, P] int64 rotary positions (TMRoPE)
    position_delta: int
    features: (
        torch.Tensor
    )  # [M, hidden]: encoder outputs for the M multimodal positions, in prompt order; absent for text
    feature_mask: torch.Tensor  # [P] bool, M true
    content: list[tuple[int, int, bytes]]  # runs of multimodal positions: first, last + 1, digest of their content
    notices: list[str]  # notices for the client, such as a video without an audio track
    given: int  # tokens at the prompt's end that are spoken as they are, and nothing is written; absent if the thinker writes


class TalkerStart(TypedDict):
    """thinker -> talker, first stream chunk: the prompt side, sent once the prompt has been computed."""

    rows: torch.Tensor  # [P, hidden]: hidden states, plus the input embeddings of text
    positions: torch.Tensor  # [3, P] int64
    position_delta: int
    content: (
        list[tuple[int, int, bytes]] | None
    )  # runs of rows: first, last + 1, digest of what they are; None: not shared


class TalkerText(TypedDict):
    """thinker -> talker, every later stream chunk: tokens to be spoken, without the last one that was generated."""

    token_ids: list[int]
    rows: torch.Tensor  # [k, hidden]: hidden states plus embeddings of token_ids


class TalkerResult(TypedDict):
    """talker -> code2mel: the whole speech."""

    codes: torch.Tensor  # [n] int64
    finish_reason: str


class Mel(TypedDict):
    """code2mel -> mel2wav."""

    mel: torch.Tensor  # [mel_bins, frames] float32, log amplitudes
    codes: torch.Tensor | None  # [n] int64, if the request asks for them
    is_cut: bool  # a limit has ended the speech


def token2wav_params(params: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of token2wav of a request: ``params["token2wav"]`` plus the request's seed."""
    return {"seed": params.get("seed"), **params.get("token2wav", {})}
