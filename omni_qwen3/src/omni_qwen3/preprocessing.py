"""The preprocessing stage: turns messages into token ids, positions, and the inputs of the encoders that a request
needs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from attrs import define, field

from omni_core.api import AsideScheduler, InvalidRequestError, OmniRequest, RequestTooLargeError, StagePayload
from omni_media.api import Limits, MediaSource, Samples, frames, images, sound
from omni_qwen3.chat import Chat, read_aloud, replace_in_order, takes_long
from omni_qwen3.config import read_config
from omni_qwen3.content import content_of, digest_of, image_inputs
from omni_qwen3.mel_features import SAMPLE_RATE, MelFeatures, MelSettings
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
from omni_qwen3.routing import reads_aloud, wants_audio
from omni_qwen3.tokenizer import ChatTokenizer, load_chat_tokenizer
from omni_qwen3.tool_calls import CALL_BEGIN, forced_beginning
from omni_qwen3.turns import user_rows
from omni_torch.api import check_length

THREADS = 4
"""Requests with media that are decoded at once."""


@define
class Media:
    """The decoded media of a request, each list in prompt order.

    Attributes:
        patches, grids: of pictures, by ``image`` and ``video``.
        seconds: of each video, between two steps of its grid.
        order: of each piece its kind, its number among those of its kind, and the number of a video's clip.
    """

    room: Room
    patches: dict[str, list[torch.Tensor]] = field(factory=lambda: {"image": [], "video": []})
    grids: dict[str, list[list[int]]] = field(factory=lambda: {"image": [], "video": []})
    seconds: list[float] = field(factory=list)
    clips: list[Samples] = field(factory=list)
    order: list[tuple[str, int, int | None]] = field(factory=list)
    notices: list[str] = field(factory=list)


class MediaPreprocessor(ABC):
    """Turns a request into the inputs of the encoders and the thinker: what the families of Qwen share.

    Args:
        tokens: the placeholders of ``image``, ``video`` and ``audio``.
        bins: of the mel features.
        max_positions: the checkpoint's, where ``max_context`` is ``None``.

    Attributes:
        video_bounds: the fewest and the most pixels of a resized frame.
    """

    video_bounds: ClassVar[tuple[int, int]]

    def __init__(
        self,
        model_path: str,
        limits: Limits,
        tokenizer: ChatTokenizer,
        tokens: Mapping[str, int],
        *,
        bins: int,
        max_positions: int,
        video_fps: float,
        max_context: int | None,
        payload_bytes: Mapping[str, int] | None = None,
    ) -> None:
        self.tokenizer, self._longest = tokenizer, tokenizer.longest_token
        self.pixels, self._frames = PatchSettings.read(model_path)
        self.mel = MelSettings.read(model_path, bins)
        self.features = MelFeatures(self.mel)
        self._ids, self.tokens = tokens, {kind: tokenizer.token(number) for kind, number in tokens.items()}
        self._limits, self._fps, self._payload_bytes = limits, video_fps, payload_bytes or {}
        self._max_context = max_context or max_positions

    @abstractmethod
    def render(self, chat: Chat, request: OmniRequest) -> str:
        """Return the prompt with a placeholder for each piece of media.

        Raises:
            InvalidRequestError: the chat template cannot write these messages, or tools.
        """

    @abstractmethod
    def clip_tokens(self, frames: int) -> int:
        """Return the placeholders of a clip of so many mel frames."""

    @abstractmethod
    def mels(self, clips: list[Samples]) -> list[torch.Tensor]:
        """Return the features of clips, ``[bins, frames]`` each."""

    @abstractmethod
    def placeholders(self, media: Media, clip_tokens: list[int]) -> list[str]:
        """Return the run of placeholder tokens of each piece."""

    @abstractmethod
    def positions(
        self, ids: torch.Tensor, media: Media, audio: AudioInputs | None, request: OmniRequest
    ) -> dict[str, Any]:
        """Return the fields of rotary positions of :class:`omni_qwen3.payloads.ThinkerInputs`."""

    def __call__(self, payload: StagePayload) -> dict[str, Any]:
        """Return the data of :func:`omni_qwen3.routing.to_aggregate` plus the encoders' inputs.

        Raises:
            InvalidRequestError: the request is invalid; the message names the part.
        """
        request = payload.request
        chat = Chat(request.inputs, self.tokenizer.special_tokens)
        if chat.prompt is not None and wants_audio(request):
            raise InvalidRequestError("inputs.prompt: is gone on from in text only; ask for the modality 'text'")
        if chat.prompt is None and reads_aloud(request):
            return self._aloud(request, chat)
        text = self.render(chat, request) if chat.prompt is None else chat.prompt
        begun = forced_beginning(request.inputs, chat.tools)
        check_length(text, self._longest, self._max_context - 1)
        media = Media(Room(self._max_context, self._payload_bytes))
        for source in chat.media:
            self._decode(source, media, bool(request.metadata.get("use_audio_in_video")))
        audio = self._audio_inputs(media.clips)
        pieces = self.placeholders(media, [] if audio is None else audio["clip_tokens"])
        text = replace_in_order(text, list(self.tokens.values()), pieces) + begun
        ids = self._fitting(self.tokenizer.encode(text))
        image = image_inputs(media.patches, media.grids)
        data = {
            "input_ids": ids,
            **self.positions(ids, media, audio, request),
            "notices": media.notices,
            "content": content_of(ids, self._ids, self.pixels.merge, image, audio),
        }
        data |= {"begun": begun, "spoken_until": "" if begun else CALL_BEGIN} if chat.tools else {}
        return data | ({} if audio is None else {"audio": audio}) | ({"image": image} if image else {})

    def _fitting(self, ids: list[int]) -> torch.Tensor:
        if not ids:
            raise InvalidRequestError("messages: the checkpoint's chat template makes nothing of them")
        if len(ids) >= self._max_context:
            raise RequestTooLargeError(f"the prompt has {len(ids)} tokens; the context holds {self._max_context}")
        return torch.tensor(ids, dtype=torch.int64)

    def _aloud(self, request: OmniRequest, chat: Chat) -> dict[str, Any]:
        """Return the prompt of a text that is to be spoken: the assistant has begun its message with all of it.

        The user's turn is the same for all texts, so that they share its keys and values. A system message is put into it: talkers hear
        the turns of users, and some hear those alone.
        """
        text, chat.messages = read_aloud(request, chat)
        prompt = self.render(chat, request)
        check_length(prompt + text, self._longest, self._max_context - 1)
        given = self.tokenizer.encode(text)
        ids = self._fitting([*self.tokenizer.encode(prompt), *given])
        media = Media(Room(self._max_context, self._payload_bytes))
        return {
            "input_ids": ids,
            **self.positions(ids, media, None, request),
            "notices": [],
            "content": [],
            "given": len(given),
        }

    def _decode(self, source: MediaSource, media: Media, use_audio_in_video: bool) -> None:
        if source.kind == "image":
            bounds = self.pixels.min_pixels, self.pixels.max_pixels
            image = images(source, self._limits, media.room.fits(source, self.pixels, bounds))[0]
            self._add_pictures(source, media, *image_patches(image, self.pixels))
        elif source.kind == "audio":
            clip = sound(source, SAMPLE_RATE, self._limits)
            if len(clip) < self.mel.shortest:
                here, least = 1000 * len(clip) / SAMPLE_RATE, 1000 * self.mel.shortest / SAMPLE_RATE
                raise source.fail(f"{here:.1f} ms of audio; at least {least:.1f} ms are needed")
            media.order.append(("audio", len(media.clips), None))
            self._add_clip(source, clip, media)
        else:
            # Sound that is given with the frames is there to be heard.
            use_audio_in_video = use_audio_in_video or source.part.get("sound") is not None
            video = frames(
                source,
                self._fps,
                self._limits,
                sound_rate=SAMPLE_RATE if use_audio_in_video else None,
                resize=partial(resized_frame, settings=self._frames, bounds=self.video_bounds),
                fits=media.room.fits(source, self._frames, self.video_bounds),
            )
            heard = video.sound
            if heard is not None and len(heard) < self.mel.shortest:
                heard = None
            if use_audio_in_video and heard is None:
                problem = "no audio track" if video.sound is None else "an audio track that is too short to be heard"
                media.notices.append(f"{source.title}: the video has {problem}; only its pictures were used")
            number = None if heard is None else len(media.clips)
            self._add_pictures(source, media, *video_patches(video.frames, self._frames, self.video_bounds), number)
            media.seconds.append(self.pixels.temporal / video.fps)
            if heard is not None:
                self._add_clip(source, heard, media)

    def _add_pictures(
        self, source: MediaSource, media: Media, patches: torch.Tensor, grid: list[int], clip: int | None = None
    ) -> None:
        media.room.take_pictures(source, self.pixels, grid)
        media.order.append((source.kind, len(media.grids[source.kind]), clip))
        media.patches[source.kind].append(patches)
        media.grids[source.kind].append(grid)

    def _add_clip(self, source: MediaSource, clip: Samples, media: Media) -> None:
        frames = -(-len(clip) // self.mel.hop)
        media.room.take_sound(source, self.clip_tokens(frames), frames * self.mel.bins)
        media.clips.append(clip)

    def _audio_inputs(self, clips: list[Samples]) -> AudioInputs | None:
        if not clips:
            return None
        mels = self.mels(clips)
        lengths = [mel.shape[1] for mel in mels]
        return AudioInputs(
            input_features=mels,
            feature_lengths=torch.tensor(lengths),
            clip_tokens=[self.clip_tokens(length) for length in lengths],
            audio_digests=[digest_of("audio", mel) for mel in mels],
        )


class Preprocessor(MediaPreprocessor):
    """The preprocessing of Qwen3-Omni.

    Token ids, positions and all features equal those of the reference's processor with PIL image processing.
    """

    video_bounds = VIDEO_MIN_PIXELS, VIDEO_MAX_PIXELS

    def __init__(self, model_path: str, limits: Limits, **options: Any) -> None:
        self._config = config = read_config(model_path)
        tokenizer = load_chat_tokenizer(model_path, config)
        tokens = {"image": config.image_token, "audio": config.audio_token, "video": config.video_token}
        options |= {"bins": config.audio.mel_bins, "max_positions": config.thinker.max_positions}
        super().__init__(model_path, limits, tokenizer, tokens, **options)
        self._rope = RopeIndex(config)
        thinker = config.raw["thinker_config"]
        self._positions_per_second = thinker["position_id_per_seconds"]
        self._around = [tokenizer.token(thinker[f"audio_{each}_token_id"]) for each in ("start", "end")]

    def render(self, chat: Chat, request: OmniRequest) -> str:
        text = self.tokenizer.render(chat.messages, chat.tools or ())
        if chat.tools and text == self.tokenizer.render(chat.messages):
            raise InvalidRequestError("inputs.tools: the checkpoint's chat template has no place for tools")
        return text

    def clip_tokens(self, frames: int) -> int:
        return self._config.audio.tokens(frames)

    def mels(self, clips: list[Samples]) -> list[torch.Tensor]:
        return self.features(clips)

    def placeholders(self, media: Media, clip_tokens: list[int]) -> list[str]:
        made = []
        for kind, index, clip in media.order:
            if kind == "audio":
                made.append(self.tokens["audio"] * clip_tokens[index])
                continue
            time, height, width = media.grids[kind][index]
            per_step = height * width // self.pixels.merge**2
            if clip is None:
                made.append(self.tokens[kind] * (time * per_step))
            else:
                made.append(self._interleaved(time, per_step, media.seconds[index], clip_tokens[clip]))
        return made

    def _interleaved(self, time: int, per_step: int, seconds: float, clip_tokens: int) -> str:
        """Return the placeholders of a video with sound: each time step's pictures, then the sound until the next step."""
        begin, end = self._around
        parts, heard = [begin], 0
        for step in range(time):
            begins = step * seconds * self._positions_per_second
            until = min(clip_tokens, max(heard, int(np.ceil(begins))))
            parts.append(self.tokens["audio"] * (until - heard) + self.tokens["video"] * per_step)
            heard = until
        parts.append(self.tokens["audio"] * (clip_tokens - heard) + end)
        return "".join(parts)

    def positions(
        self, ids: torch.Tensor, media: Media, audio: AudioInputs | None, request: OmniRequest
    ) -> dict[str, Any]:
        images, videos = (torch.tensor(media.grids[kind]) if media.grids[kind] else None for kind in ("image", "video"))
        grids = MediaGrids(
            images=images,
            videos=videos,
            audio_frames=None if audio is None else audio["feature_lengths"],
            seconds_per_grid=torch.tensor(media.seconds) if media.seconds else None,
        )
        interleaved = any(clip is not None for _, _, clip in media.order)
        positions, delta = self._rope.thinker(ids, grids, use_audio_in_video=interleaved)
        data: dict[str, Any] = {"positions": positions, "position_delta": delta}
        if wants_audio(request):
            talker = self._rope.talker(ids, user_rows(ids, self._config), grids)
            if talker is not None:
                data["talker_positions"], data["talker_position_delta"] = talker
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
            see :class:`omni_media.api.Limits`.
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
