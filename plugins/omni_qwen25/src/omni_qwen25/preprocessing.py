"""The preprocessing stage: turns messages into token ids, positions, and the inputs of the encoders that a request needs."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch

from omni_core.api import ConfigError, InvalidRequestError, OmniRequest
from omni_media.api import Limits, Samples
from omni_qwen3.chat import Chat
from omni_qwen3.mel_features import SAMPLE_RATE
from omni_qwen3.payloads import AudioInputs
from omni_qwen3.preprocessing import Media, MediaPreprocessor, preprocessing_stage
from omni_qwen3.routing import wants_audio
from omni_qwen3.tokenizer import load_older_chat
from omni_qwen25.config import part_config, read_config
from omni_qwen25.interface import LIMITS, SPEECH_PROMPT
from omni_qwen25.positions import Piece, alternating, rope_index


class Preprocessor(MediaPreprocessor):
    """The preprocessing of Qwen2.5-Omni.

    Token ids, positions and the features of images and sound equal those of the reference's processor with PIL image processing.
    """

    video_bounds = (128 * 28 * 28, 768 * 28 * 28)  # the reference's processor uses these and ignores the checkpoint's

    def __init__(self, model_path: str, limits: Limits, **options: Any) -> None:
        if limits.max_audio_seconds > LIMITS.max_audio_seconds:
            most = f"more than the model's extractor reads, {LIMITS.max_audio_seconds:g}"
            raise ConfigError(f"max_audio_seconds: {limits.max_audio_seconds:g} is {most}")
        self._config = config = read_config(model_path)
        tokenizer = load_older_chat(model_path, {})
        tokens = {"image": config.image, "video": config.video, "audio": config.audio}
        bins = part_config(config, "thinker_config", "audio_config").num_mel_bins
        options |= {"bins": bins, "max_positions": config.thinker.max_positions}
        super().__init__(model_path, limits, tokenizer, tokens, **options)
        self._around = tokenizer.token(config.audio_start), tokenizer.token(config.audio_end)

    def render(self, chat: Chat, request: OmniRequest) -> str:
        """See :class:`MediaPreprocessor`. The released model speaks with one system message, which is put before a conversation that has
        none and wants speech.
        """
        if chat.tools:
            raise InvalidRequestError("inputs.tools: Qwen2.5-Omni calls no tools")
        messages = chat.messages
        if wants_audio(request) and messages[0]["role"] != "system":
            messages = [{"role": "system", "content": [{"type": "text", "text": SPEECH_PROMPT}]}, *messages]
        return self.tokenizer.render(messages)

    def clip_tokens(self, frames: int) -> int:
        return ((frames - 1) // 2 + 1 - 2) // 2 + 1  # the encoder's convolution and pooling halve them twice

    def mels(self, clips: list[Samples]) -> list[torch.Tensor]:
        # The reference's extractor sees silence behind a clip, not the clip's own end reflected.
        padded = (self.features([np.pad(clip, (0, SAMPLE_RATE // 10))])[0] for clip in clips)
        return [mel[:, : -(-len(clip) // self.mel.hop)] for clip, mel in zip(clips, padded, strict=True)]

    def placeholders(self, media: Media, clip_tokens: list[int]) -> list[str]:
        return [self._placeholders(piece) for piece in self._pieces(media, clip_tokens)]

    def _placeholders(self, piece: Piece) -> str:
        if piece.kind == "audio":
            return self.tokens["audio"] * piece.sound
        time, height, width = piece.grid
        if not piece.mixed:
            return self.tokens[piece.kind] * (time * height * width)
        order = alternating(piece, self._config.per_second, self._config.chunk_seconds)
        begin, end = self._around
        return begin + "".join(self.tokens[kind] * (last - first) for kind, first, last in order) + end

    def _pieces(self, media: Media, clip_tokens: list[int]) -> list[Piece]:
        made = []
        for kind, index, clip in media.order:
            if kind == "audio":
                made.append(Piece(kind, sound=clip_tokens[index]))
                continue
            time, height, width = media.grids[kind][index]
            grid = time, height // self.pixels.merge, width // self.pixels.merge
            seconds = media.seconds[index] if kind == "video" else 0.0
            made.append(Piece(kind, grid, seconds, 0 if clip is None else clip_tokens[clip]))
        return made

    def positions(
        self, ids: torch.Tensor, media: Media, audio: AudioInputs | None, request: OmniRequest
    ) -> dict[str, Any]:
        config = self._config
        pieces = self._pieces(media, [] if audio is None else audio["clip_tokens"])
        media_ids = {config.image, config.video, config.audio}
        positions, delta = rope_index(ids, pieces, media_ids, config.per_second, config.chunk_seconds)
        return {"positions": positions, "position_delta": delta}


create_preprocessing = partial(preprocessing_stage, Preprocessor, max_audio_seconds=LIMITS.max_audio_seconds)
