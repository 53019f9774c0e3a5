"""The preprocessing stage: turns messages into token ids, positions, and the inputs of the encoders that a request needs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from attrs import define, field

from omni_core.api import ConfigError, InvalidRequestError, RequestTooLargeError, StagePayload
from omni_qwen3.chat import replace_in_order
from omni_qwen3.content import content_of, digest_of, image_inputs
from omni_qwen3.media import Limits, MediaSource
from omni_qwen3.media.audio import SAMPLE_RATE, Samples, load_audio
from omni_qwen3.media.image import load_image
from omni_qwen3.media.video import load_video
from omni_qwen3.mel_features import MelFeatures, MelSettings
from omni_qwen3.patches import PatchSettings, image_patches, resized_frame, video_patches
from omni_qwen3.payloads import AudioInputs
from omni_qwen3.preprocessing import preprocessing_stage
from omni_qwen3.room import Room
from omni_qwen3.routing import wants_audio
from omni_qwen25.config import part_config, read_config
from omni_qwen25.interface import LIMITS
from omni_qwen25.positions import Piece, alternating, rope_index
from omni_qwen25.prompts import Prompts
from omni_torch.api import check_length

VIDEO_PIXELS = (128 * 28 * 28, 768 * 28 * 28)
"""Bounds on the pixels of a resized video frame; the reference's processor uses these and ignores the checkpoint's."""


@define
class _Media:
    """The decoded media of a request, each list in prompt order.

    Attributes:
        pieces: all of them; the number of placeholders of a clip is known once its features are.
        owners: for each clip, the piece that it is the sound of.
    """

    room: Room
    pieces: list[Piece] = field(factory=list)
    patches: dict[str, list[torch.Tensor]] = field(factory=lambda: {"image": [], "video": []})
    grids: dict[str, list[list[int]]] = field(factory=lambda: {"image": [], "video": []})
    clips: list[Samples] = field(factory=list)
    owners: list[int] = field(factory=list)
    notices: list[str] = field(factory=list)


class Preprocessor:
    """Turns a request into the inputs of the encoders and the thinker.

    Token ids, positions and the features of images and sound equal those of the reference's processor with PIL image processing.
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
        if limits.max_audio_seconds > LIMITS.max_audio_seconds:
            most = f"more than the model's extractor reads, {LIMITS.max_audio_seconds:g}"
            raise ConfigError(f"max_audio_seconds: {limits.max_audio_seconds:g} is {most}")
        self._config = config = read_config(model_path)
        self._payload_bytes = payload_bytes or {}
        self._limits, self._fps = limits, video_fps
        self._max_context = max_context or config.thinker.max_positions
        self._prompts = Prompts(model_path)
        self._longest = self._prompts.longest_token
        self._pixels, self._frames = PatchSettings.read(model_path)
        bins = part_config(config, "thinker_config", "audio_config").num_mel_bins
        self._mel = MelSettings.read(model_path, bins)
        self._features = MelFeatures(self._mel)
        self._tokens = {
            "image": self._prompts.token(config.image),
            "video": self._prompts.token(config.video),
            "audio": self._prompts.token(config.audio),
        }
        self._around = self._prompts.token(config.audio_start), self._prompts.token(config.audio_end)

    def __call__(self, payload: StagePayload) -> dict[str, Any]:
        """Return the data of :func:`omni_qwen3.routing.to_aggregate` plus the encoders' inputs.

        Raises:
            InvalidRequestError: the request is invalid; the message names the part.
        """
        request = payload.request
        chat = self._prompts.read(request.inputs)
        text = self._prompts.render(chat, speaks=wants_audio(request))
        check_length(text, self._longest, self._max_context - 1)
        media = _Media(Room(self._max_context, self._payload_bytes))
        for source in chat.media:
            self._decode(source, media, bool(request.metadata.get("use_audio_in_video")))
        audio = self._audio_inputs(media)
        text = replace_in_order(text, list(self._tokens.values()), [self._placeholders(each) for each in media.pieces])
        ids = torch.tensor(self._prompts.encode(text), dtype=torch.int64)
        if not len(ids):
            raise InvalidRequestError("messages: the checkpoint's chat template makes nothing of them")
        if len(ids) >= self._max_context:
            raise RequestTooLargeError(f"the prompt has {len(ids)} tokens; the context holds {self._max_context}")
        config = self._config
        positions, delta = rope_index(
            ids, media.pieces, {config.image, config.video, config.audio}, config.per_second, config.chunk_seconds
        )
        data: dict[str, Any] = {
            "input_ids": ids,
            "positions": positions,
            "position_delta": delta,
            "notices": media.notices,
        }
        if audio is not None:
            data["audio"] = audio
        image = image_inputs(media.patches, media.grids)
        if image:
            data["image"] = image
        tokens = {"image": config.image, "video": config.video, "audio": config.audio}
        data["content"] = content_of(ids, tokens, self._pixels.merge, image, audio)
        return data

    def _decode(self, source: MediaSource, media: _Media, use_audio_in_video: bool) -> None:
        if source.kind == "image":
            bounds = self._pixels.min_pixels, self._pixels.max_pixels
            image = load_image(source, self._limits, media.room.fits(source, self._pixels, bounds))
            patches, grid = image_patches(image, self._pixels)
            media.room.take_pictures(source, self._pixels, grid)
            self._add("image", patches, grid, 0.0, media)
        elif source.kind == "audio":
            self._add_clip(source, load_audio(source, self._limits), media)
            media.pieces.append(Piece("audio"))
        else:
            video = load_video(
                source,
                self._limits,
                fps=self._fps,
                with_sound=use_audio_in_video,
                resize=partial(resized_frame, settings=self._frames, bounds=VIDEO_PIXELS),
                fits=media.room.fits(source, self._frames, VIDEO_PIXELS),
            )
            if video.sound is not None:
                self._add_clip(source, video.sound, media)
            elif use_audio_in_video:
                media.notices.append(f"{source.title}: the video has no audio track; only its pictures were used")
            patches, grid = video_patches(video.frames, self._frames, VIDEO_PIXELS)
            media.room.take_pictures(source, self._frames, grid)
            self._add("video", patches, grid, self._frames.temporal / video.fps, media)

    def _add_clip(self, source: MediaSource, clip: Samples, media: _Media) -> None:
        """Add the sound of the next piece."""
        frames = -(-len(clip) // self._mel.hop)
        media.room.take_sound(source, clip_tokens(frames), frames * self._mel.bins)
        media.owners.append(len(media.pieces))
        media.clips.append(clip)

    def _add(self, kind: str, patches: torch.Tensor, grid: list[int], seconds: float, media: _Media) -> None:
        merge = self._pixels.merge
        media.patches[kind].append(patches)
        media.grids[kind].append(grid)
        media.pieces.append(Piece(kind, (grid[0], grid[1] // merge, grid[2] // merge), seconds))

    def _audio_inputs(self, media: _Media) -> AudioInputs | None:
        """Compute the features of the clips, and note their numbers of placeholders."""
        if not media.clips:
            return None
        mels, lengths = [], []
        for clip, owner in zip(media.clips, media.owners, strict=True):
            frames = -(-len(clip) // self._mel.hop)
            # The reference's extractor sees silence behind a clip, not the clip's own end reflected.
            [mel], _ = self._features([np.pad(clip, (0, SAMPLE_RATE // 10))])
            mels.append(mel[:, :frames])
            lengths.append(frames)
            piece = media.pieces[owner]
            media.pieces[owner] = Piece(piece.kind, piece.grid, piece.seconds, clip_tokens(frames))
        return AudioInputs(
            input_features=mels,
            feature_lengths=torch.tensor(lengths),
            clip_tokens=[clip_tokens(each) for each in lengths],
            audio_digests=[digest_of("audio", mel.contiguous()) for mel in mels],
        )

    def _placeholders(self, piece: Piece) -> str:
        """Return the run of placeholder tokens for a piece of media."""
        if piece.kind == "audio":
            return self._tokens["audio"] * piece.sound
        time, height, width = piece.grid
        if not piece.mixed:
            return self._tokens[piece.kind] * (time * height * width)
        order = alternating(piece, self._config.per_second, self._config.chunk_seconds)
        begin, end = self._around
        return begin + "".join(self._tokens[kind] * (last - first) for kind, first, last in order) + end


def clip_tokens(frames: int) -> int:
    """Return the placeholders of a clip of so many mel frames: the encoder's convolution and pooling halve them twice."""
    return ((frames - 1) // 2 + 1 - 2) // 2 + 1


create_preprocessing = partial(preprocessing_stage, Preprocessor, max_audio_seconds=LIMITS.max_audio_seconds)
