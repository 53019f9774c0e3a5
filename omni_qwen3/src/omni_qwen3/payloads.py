"""The payloads between the stages of Qwen3-Omni: typed dictionaries of plain data and CPU tensors."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

import torch


class ImageInputs(TypedDict, total=False):
    """preprocessing -> image_encoder. Patches of images and of videos in the processor's layout."""

    pixel_values: torch.Tensor  # [patches, channels * temporal * patch * patch] float32
    image_grid_thw: torch.Tensor  # [images, 3] int64
    pixel_values_videos: torch.Tensor  # [patches, ...] float32
    video_grid_thw: torch.Tensor  # [videos, 3] int64
    image_digests: list[bytes]  # per image: a hash of its patches and grid
    video_digests: list[bytes]


class AudioInputs(TypedDict):
    """preprocessing -> audio_encoder. Log-mel features of each clip."""

    input_features: list[torch.Tensor]  # per clip [mel_bins, frames] float32
    feature_lengths: torch.Tensor  # [clips] int64, valid frames
    clip_tokens: list[int]  # per clip: how many positions it takes in the prompt
    audio_digests: list[bytes]  # per clip: a hash of its valid frames


class ThinkerInputs(TypedDict, total=False):
    """mm_aggregate -> thinker."""

    input_ids: torch.Tensor  # [P] int64, placeholders expanded
    positions: torch.Tensor  # [3, P] rotary positions (mRoPE): int64, or float32 if they are not integers
    position_delta: float
    features: (
        torch.Tensor
    )  # [M, hidden]: encoder outputs for the M multimodal positions, in prompt order; absent for text
    feature_mask: torch.Tensor  # [P] bool, M true
    deepstack: list[torch.Tensor]  # per deepstack layer [V, hidden] for the V visual (image and video) positions
    visual_mask: torch.Tensor  # [P] bool, V true
    content: list[tuple[int, int, bytes]]  # runs of multimodal positions: first, last + 1, digest of their content
    talker_positions: torch.Tensor  # [3, U + 9] rotary positions of the talker's prompt; absent for text-only prompts
    talker_position_delta: float
    notices: list[str]  # notices for the client, such as a video without an audio track
    given: int  # tokens at the prompt's end that are spoken as they are, and nothing is written; absent if the thinker writes
    begun: str  # what the reply begins with and the prompt ends with: the beginning of a call; absent without tools
    spoken_until: str  # speech ends before this text in the reply, a call of a tool; empty: nothing is spoken; absent without tools


class TalkerStart(TypedDict):
    """thinker -> talker_ar, first stream chunk: the prompt part of the talker's prefill, sent once the prompt has been computed."""

    user_rows: (
        torch.Tensor
    )  # [U, hidden]: input embeddings at the text rows of user turns, accept-layer hidden at multimodal ones
    assistant_rows: (
        torch.Tensor
    )  # [3, hidden]: input embeddings of the assistant turn's opening (im_start, assistant, newline)
    multimodal: torch.Tensor  # [U] bool: which rows are hidden states
    positions: torch.Tensor | None  # talker_positions, or None for text-only prompts (0, 1, 2, ...)
    position_delta: float
    content: (
        list[tuple[int, int, bytes]] | None
    )  # runs of user rows: first, last + 1, digest of what they are; None: not shared


class TalkerText(TypedDict):
    """thinker -> talker_ar, every later stream chunk: tokens to be spoken, without the last one that was generated."""

    token_ids: list[int]
    embeds: torch.Tensor  # [k, hidden]: the thinker's input embeddings of token_ids


class TalkerResult(TypedDict):
    """talker_ar -> code2wav: the end of speech, after one chunk ``[groups]`` int64 per codec frame."""

    frames: int
    finish_reason: str
    said: NotRequired[str]  # the text of the speech, of a request that asks for the times of its words


def thinker_params(params: dict[str, Any]) -> dict[str, Any]:
    """Return the thinker's generation parameters of a request: ``params["thinker"]`` plus the request's seed."""
    return {"seed": params.get("seed"), **params.get("thinker", {})}


def talker_params(params: dict[str, Any]) -> dict[str, Any]:
    """Return the talker's generation parameters of a request: ``params["talker"]`` plus the request's seed."""
    return {"seed": params.get("seed"), **params.get("talker", {})}
