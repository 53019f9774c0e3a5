"""The preprocessing stage: turns messages into token ids, positions, and the inputs of the encoders that a request
needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from attrs import define, field

from omni_core.api import AsideScheduler, InvalidRequestError, RequestTooLargeError, StagePayload
from omni_qwen3.chat import Chat, replace_in_order, takes_long
from omni_qwen3.config import QwenConfig, read_config
from omni_qwen3.content import content_of, digest_of, image_inputs
from omni_qwen3.media import Limits, MediaSource
from omni_qwen3.media.audio import Samples, load_audio
from omni_qwen3.media.image import load_image
from omni_qwen3.media.video import Video, load_video
from omni_qwen3.mel_features import MelFeatures, MelSettings
from omni_qwen3.patches import (
    VIDEO_MAX_PIXELS,
    VIDEO_MIN_PIXELS,
    PatchSettings,
    image_patches,
    resized_frame,
    video_patches,
)
from omni_qwen3.payloads import AudioInputs
from omni_qwen3.positions import RopeIndex
from omni_qwen3.room import Room
from omni_qwen3.rope_index import MediaGrids
from omni_qwen3.routing import wants_audio
from omni_qwen3.tokenizer import load_chat_tokenizer
from omni_qwen3.tool_calls import CALL_BEGIN, forced_beginning
from omni_qwen3.turns import user_rows
from omni_torch.api import check_length

THREADS = 4
"""Requests with media that are decoded at once."""


@define
class _Prompt:
    """The decoded media of a request, each list in prompt order."""

    room: Room
    image_patches: list[torch.Tensor] = field(factory=list)
    image_grids: list[list[int]] = field(factory=list)
    video_patches: list[torch.Tensor] = field(factory=list)
    video_grids: list[list[int]] = field(factory=list)
    seconds_per_grid: list[float] = field(factory=list)
    clips: list[Samples] = field(factory=list)
    order: list[tuple[str, int, int | None]] = field(factory=list)  # kind, its index, the clip inside a video
    notices: list[str] = field(factory=list)


class Preprocessor:
    """Turns a request into the inputs of the encoders and the thinker.

    Token ids, positions and the features of images and sound equal those of the reference's processor with PIL image
    processing. Resized video frames differ in up to 0.6 % of their values, by 1 or 2 of 255, because the reference
    resizes them with torchvision.
    """

    def __init__(
        self,
        model_path: str,
        limits: Limits,
        *,
        video_fps: float,
        max_context: int | None,
        payload_bytes: Mapping[str, int] | None = None,
    ) -> None:
        self._config: QwenConfig = read_config(model_path)
        self._payload_bytes = payload_bytes or {}
        self._limits, self._fps = limits, video_fps
        self._max_context = max_context or self._config.thinker.max_positions
        self._tokenizer = load_chat_tokenizer(model_path, self._config)
        self._longest = self._tokenizer.longest_token
        self._pixels, self._frames = PatchSettings.read(model_path)
        self._mel = MelSettings.read(model_path, self._config.audio.mel_bins)
        self._features = MelFeatures(self._mel)
        self._rope = RopeIndex(self._config)
        thinker = self._config.raw["thinker_config"]
        self._positions_per_second = thinker["position_id_per_seconds"]
        token = self._tokenizer.token
        self._image, self._audio = token(self._config.image_token), token(self._config.audio_token)
        self._video = token(self._config.video_token)
        self._audio_start, self._audio_end = (
            token(thinker["audio_start_token_id"]),
            token(thinker["audio_end_token_id"]),
        )

    def __call__(self, payload: StagePayload) -> dict[str, Any]:
        """Return the data of :func:`omni_qwen3.routing.to_aggregate` plus the encoders' inputs.

        Raises:
            InvalidRequestError: the request is invalid; the message names the part.
        """
        request = payload.request
        use_audio_in_video = bool(request.metadata.get("use_audio_in_video"))
        chat = Chat(request.inputs, self._tokenizer.special_tokens)
        text, begun = self._rendered(chat), forced_beginning(request.inputs, chat.tools)
        check_length(text, self._longest, self._max_context - 1)
        prompt = _Prompt(Room(self._max_context, self._payload_bytes))
        for source in chat.media:
            self._decode(source, prompt, use_audio_in_video)
        audio = self._audio_inputs(prompt.clips)
        clip_tokens = [] if audio is None else audio["clip_tokens"]
        pieces = [self._placeholders(prompt, clip_tokens, *entry) for entry in prompt.order]
        text = replace_in_order(text, [self._image, self._audio, self._video], pieces) + begun
        ids = torch.tensor(self._tokenizer.encode(text), dtype=torch.int64)
        if len(ids) >= self._max_context:
            raise RequestTooLargeError(f"the prompt has {len(ids)} tokens; the context holds {self._max_context}")
        data = self._data(ids, prompt, audio, wants_audio(request))
        return {**data, "begun": begun, "spoken_until": "" if begun else CALL_BEGIN} if chat.tools else data

    def _rendered(self, chat: Chat) -> str:
        """Return the prompt as the checkpoint's chat template writes it.

        Raises:
            InvalidRequestError: the template fails on these messages, or has no place for tools.
        """
        text = self._tokenizer.render(chat.messages, chat.tools or ())
        if chat.tools and text == self._tokenizer.render(chat.messages):
            raise InvalidRequestError("inputs.tools: the checkpoint's chat template has no place for tools")
        return text

    def _decode(self, source: MediaSource, prompt: _Prompt, use_audio_in_video: bool) -> None:
        room = prompt.room
        if source.kind == "image":
            bounds = self._pixels.min_pixels, self._pixels.max_pixels
            image = load_image(source, self._limits, room.fits(source, self._pixels, bounds))
            patches, grid = image_patches(image, self._pixels)
            room.take_pictures(source, self._pixels, grid)
            prompt.order.append(("image", len(prompt.image_grids), None))
            prompt.image_patches.append(patches)
            prompt.image_grids.append(grid)
        elif source.kind == "audio":
            prompt.order.append(("audio", len(prompt.clips), None))
            self._add_clip(source, load_audio(source, self._limits), prompt)
        else:
            video = load_video(
                source,
                self._limits,
                fps=self._fps,
                with_sound=use_audio_in_video,
                resize=partial(resized_frame, settings=self._frames),
                fits=room.fits(source, self._frames, (VIDEO_MIN_PIXELS, VIDEO_MAX_PIXELS)),
            )
            if use_audio_in_video and video.sound is None:
                prompt.notices.append(f"{source.title}: the video has no audio track; only its pictures were used")
            self._add_video(source, video, prompt)

    def _add_clip(self, source: MediaSource, clip: Samples, prompt: _Prompt) -> None:
        frames = -(-len(clip) // self._mel.hop)
        prompt.room.take_sound(source, self._config.audio.tokens(frames), frames * self._mel.bins)
        prompt.clips.append(clip)

    def _add_video(self, source: MediaSource, video: Video, prompt: _Prompt) -> None:
        patches, grid = video_patches(video.frames, self._frames)
        prompt.room.take_pictures(source, self._frames, grid)
        clip = None
        if video.sound is not None:
            clip = len(prompt.clips)
            self._add_clip(source, video.sound, prompt)
        prompt.order.append(("video", len(prompt.video_grids), clip))
        prompt.video_patches.append(patches)
        prompt.video_grids.append(grid)
        prompt.seconds_per_grid.append(self._pixels.temporal / video.fps)

    def _audio_inputs(self, clips: list[Samples]) -> AudioInputs | None:
        if not clips:
            return None
        mel, lengths = self._features(clips)
        return AudioInputs(
            input_features=mel,
            feature_lengths=lengths,
            clip_tokens=[self._config.audio.tokens(length) for length in lengths.tolist()],
            audio_digests=[digest_of("audio", clip) for clip in mel],
        )

    def _placeholders(self, prompt: _Prompt, clip_tokens: list[int], kind: str, index: int, clip: int | None) -> str:
        """Return the run of placeholder tokens for a piece of media."""
        merged = self._pixels.merge**2
        if kind == "audio":
            return self._audio * clip_tokens[index]
        if kind == "image":
            return self._image * (int(np.prod(prompt.image_grids[index])) // merged)
        time, height, width = prompt.video_grids[index]
        per_step = height * width // merged
        if clip is None:
            return self._video * (time * per_step)
        return self._interleaved(time, per_step, prompt.seconds_per_grid[index], clip_tokens[clip])

    def _interleaved(self, time: int, per_step: int, seconds: float, clip_tokens: int) -> str:
        """Return the placeholders of a video with sound: each time step's pictures, then the sound until the next step."""
        parts, heard = [self._audio_start], 0
        for step in range(time):
            begin = step * seconds * self._positions_per_second
            until = min(clip_tokens, max(heard, int(np.ceil(begin))))
            parts.append(self._audio * (until - heard) + self._video * per_step)
            heard = until
        parts.append(self._audio * (clip_tokens - heard) + self._audio_end)
        return "".join(parts)

    def _data(self, ids: torch.Tensor, prompt: _Prompt, audio: AudioInputs | None, speaks: bool) -> dict[str, Any]:
        grids = MediaGrids(
            images=torch.tensor(prompt.image_grids) if prompt.image_grids else None,
            videos=torch.tensor(prompt.video_grids) if prompt.video_grids else None,
            audio_frames=None if audio is None else audio["feature_lengths"],
            seconds_per_grid=torch.tensor(prompt.seconds_per_grid) if prompt.seconds_per_grid else None,
        )
        interleaved = any(clip is not None for _, _, clip in prompt.order)
        positions, delta = self._rope.thinker(ids, grids, use_audio_in_video=interleaved)
        data: dict[str, Any] = {
            "input_ids": ids,
            "positions": positions,
            "position_delta": delta,
            "notices": prompt.notices,
        }
        if speaks:
            talker = self._rope.talker(ids, user_rows(ids, self._config), grids)
            if talker is not None:
                data["talker_positions"], data["talker_position_delta"] = talker
        if audio is not None:
            data["audio"] = audio
        pictures = {"image": prompt.image_patches, "video": prompt.video_patches}
        image = image_inputs(pictures, {"image": prompt.image_grids, "video": prompt.video_grids})
        if image:
            data["image"] = image
        config = self._config
        tokens = {"image": config.image_token, "video": config.video_token, "audio": config.audio_token}
        data["content"] = content_of(ids, tokens, self._pixels.merge, image, audio)
        return data


def preprocessing_stage(
    kind: Callable[..., Callable[[StagePayload], dict[str, Any]]],
    model_path: str,
    max_image_pixels: int = Limits().max_image_pixels,
    max_audio_seconds: float = Limits().max_audio_seconds,
    max_video_seconds: float = Limits().max_video_seconds,
    max_video_frames: int = Limits().max_video_frames,
    max_file_mb: int = Limits().max_file_mb,
    max_request_pixels: int = Limits().max_request_pixels,
    max_request_samples: int = Limits().max_request_samples,
    max_request_frame_pixels: int = Limits().max_request_frame_pixels,
    video_fps: float = 2.0,
    max_context: int | None = None,
    threads: int = THREADS,
    payload_bytes: Mapping[str, int] | None = None,
) -> AsideScheduler:
    """Return the scheduler of the preprocessing stage.

    Args:
        kind: the class of the preprocessor, such as :class:`Preprocessor`.
        video_fps: frames taken per second of video.
        max_context: bound on the prompt in tokens, by default the checkpoint's.
        threads: requests with media, or with long texts, that are decoded at once; the others wait for none of them. The others:
            see :class:`omni_qwen3.media.Limits`.
    """
    limits = Limits(
        max_image_pixels,
        max_audio_seconds,
        max_video_seconds,
        max_video_frames,
        max_file_mb,
        max_request_pixels,
        max_request_samples,
        max_request_frame_pixels,
    )
    preprocessor = kind(model_path, limits, video_fps=video_fps, max_context=max_context, payload_bytes=payload_bytes)
    return AsideScheduler(preprocessor, takes_long, threads)


create_preprocessing = partial(preprocessing_stage, Preprocessor)
