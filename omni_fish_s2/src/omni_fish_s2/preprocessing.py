"""The preprocessing stage: turns a text and reference voices into the prompt of each turn."""

from __future__ import annotations

import re
from typing import Any

from attrs import frozen

from omni_core.api import (
    ConfigError,
    InvalidRequestError,
    OmniRequest,
    RequestTooLargeError,
    Scheduler,
    StagePayload,
)
from omni_fish_s2.codec.weights import FILE, CodecFile
from omni_fish_s2.config import read_config
from omni_fish_s2.payloads import SpeechInputs
from omni_fish_s2.prompt import PromptBuilder, Voice
from omni_fish_s2.reference import ReferenceLimits, VoiceEncoder
from omni_fish_s2.sampling import speech_sampling
from omni_fish_s2.text import SPEAKER_TAG, split_text
from omni_media.api import MediaSource

MOST_REFERENCES = 5
"""Reference voices of one request."""

_SPEAKER_NUMBER = re.compile(r"[0-9]{1,3}")

SHORTEST_SEGMENT = 40
"""The least ``segment_bytes``: a part must hold a speaker's tag and a word."""

SPEECH_ROOM = 2048
"""The number of context positions that a prompt must leave for speech."""


@frozen
class TextLimits:
    """``max_characters``: of one request. ``segment_bytes``: the longest part that is spoken in one turn."""

    max_characters: int = 10_000
    segment_bytes: int = 512


class Preprocessor:
    """Builds the inputs of semantic_ar from a request."""

    def __init__(self, model_path: str, text: TextLimits, voices: VoiceEncoder, max_context: int | None) -> None:
        config = read_config(model_path)
        self.limits, self.voices = text, voices
        self._room = (max_context or config.max_positions) - SPEECH_ROOM
        self.builder = PromptBuilder(model_path, config)

    def __call__(self, payload: StagePayload) -> SpeechInputs:
        """Raise InvalidRequestError if the request is invalid; the message names the part."""
        request = payload.request
        speech_sampling(request)  # invalid parameters fail the request before a voice is encoded
        text = self._spoken(request.inputs)
        if (tag := self.speaker(request)) and SPEAKER_TAG.search(text):
            raise InvalidRequestError("metadata.speaker: the text names its speakers itself; give one or the other")
        turns = split_text(tag + text, self.limits.segment_bytes)
        return self.opening(turns, self.voices_of(request.inputs.get("references") or []))

    def opening(self, turns: list[str], voices: list[Voice]) -> SpeechInputs:
        """Build the prompt of the first turn, with voices, and the later turns.

        Raises:
            RequestTooLargeError: the prompt is too long.
        """
        inputs = self.builder.build(turns, voices)
        if len(inputs["token_ids"]) > self._room:
            raise RequestTooLargeError(
                f"the prompt has {len(inputs['token_ids'])} positions; the context leaves {self._room} beside the "
                "speech: use shorter references"
            )
        return inputs

    def _spoken(self, inputs: Any) -> str:
        """Return the text of the last message, checked. Earlier messages are a chat's history, which this model does not read."""
        messages = inputs.get("messages") if isinstance(inputs, dict) else None
        if not isinstance(messages, list) or not messages:
            raise InvalidRequestError("inputs.messages: must be a non-empty list of {'role': 'user', 'content': ...}")
        where = f"messages[{len(messages) - 1}]"
        message = messages[-1]
        if not isinstance(message, dict) or message.get("role") != "user":
            raise InvalidRequestError(f"{where}: must be {{'role': 'user', 'content': ...}}: the text to speak")
        if any(isinstance(each, dict) and each.get("role") == "system" for each in messages):
            raise InvalidRequestError("messages: this model takes no system message; it speaks the text as it is")
        content = message.get("content")
        text = content if isinstance(content, str) else self._joined(content, where)
        if not SPEAKER_TAG.sub("", text).strip():
            raise InvalidRequestError(f"{where}.content: there is no text to speak")
        self.check(text, f"{where}.content")
        return text

    def check(self, text: str, where: str) -> None:
        """Raise InvalidRequestError if the text is too long, or holds a marker of the prompt's own structure."""
        if len(text) > self.limits.max_characters:
            raise RequestTooLargeError(
                f"{where}: {len(text)} characters are over the limit of {self.limits.max_characters} "
                "(max_characters); speak it in several requests"
            )
        found = self.builder.reserved.search(text)
        if found:
            raise InvalidRequestError(
                f"{where}: contains {found.group()!r}, which is reserved for the prompt's own structure"
            )

    def _joined(self, content: Any, where: str) -> str:
        if not isinstance(content, list) or not content:
            raise InvalidRequestError(f"{where}.content: must be text or a non-empty list of parts")
        texts = []
        for index, part in enumerate(content):
            kind = part.get("type") if isinstance(part, dict) else None
            if kind != "text":
                raise InvalidRequestError(
                    f"{where}.content[{index}].type: this model speaks text, not {kind!r}; a voice goes into references"
                )
            if not isinstance(part.get("text"), str):
                raise InvalidRequestError(f"{where}.content[{index}].text: must be text")
            texts.append(part["text"])
        return "\n".join(texts)

    def speaker(self, request: OmniRequest) -> str:
        """Return the tag of ``metadata["speaker"]``, for a text that names no speaker; empty if none is given."""
        speaker = request.metadata.get("speaker")
        if speaker is None:
            return ""
        if isinstance(speaker, bool) or not _SPEAKER_NUMBER.fullmatch(str(speaker)):
            raise InvalidRequestError(
                f"metadata.speaker: speakers are numbers, in the order of the references from 0; {speaker!r} is none"
            )
        return f"<|speaker:{int(speaker)}|>"

    def voices_of(self, references: Any) -> list[Voice]:
        """Read and encode the recordings of a request. Raises InvalidRequestError: one is invalid."""
        if not isinstance(references, list) or len(references) > MOST_REFERENCES:
            raise InvalidRequestError(
                f"inputs.references: must be a list of at most {MOST_REFERENCES} {{'path': ..., 'text': ...}}"
            )
        return [self._voice(part, f"references[{index}]") for index, part in enumerate(references)]

    def _voice(self, part: Any, where: str) -> Voice:
        if not isinstance(part, dict):
            raise InvalidRequestError(f"{where}: must be {{'path': ..., 'text': ...}}")
        text = part.get("text")
        if not isinstance(text, str) or not SPEAKER_TAG.sub("", text).strip():
            raise InvalidRequestError(f"{where}.text: needed beside the recording: the words that are said in it")
        self.check(text, f"{where}.text")
        return Voice(text, self.voices.codes(MediaSource("recording", part, where)))


def takes_long(payload: StagePayload) -> bool:
    """Return if a request brings voices, which are decoded and encoded. Its inputs are not checked yet."""
    inputs = payload.request.inputs
    return isinstance(inputs, dict) and bool(inputs.get("references"))


def create_preprocessing(
    model_path: str,
    device: str = "cpu",
    dtype: str = "float32",
    max_characters: int = TextLimits().max_characters,
    segment_bytes: int = TextLimits().segment_bytes,
    max_reference_seconds: float = ReferenceLimits().max_audio_seconds,
    max_reference_mb: int = ReferenceLimits().max_file_mb,
    voices_kept: int = 64,
    max_context: int | None = None,
    text_stream: bool = False,
    reference: str | None = None,
    reference_text: str | None = None,
) -> Scheduler:
    """Make the preprocessing stage. The limits are those of :class:`TextLimits` and :class:`ReferenceLimits`; the codes
    of ``voices_kept`` recordings are cached.

    Args:
        text_stream: true if another stage writes the text, which is spoken while it arrives.
        reference, reference_text: with a text stream, the voice of every request: a recording and its transcript.
    """
    if segment_bytes < SHORTEST_SEGMENT:
        raise ConfigError(f"segment_bytes: must be at least {SHORTEST_SEGMENT}, is {segment_bytes}")
    if reference is not None and not text_stream:
        raise ConfigError(
            "reference: requests bring their voices themselves, unless their text is a stream (text_stream)"
        )
    limits = ReferenceLimits(max_audio_seconds=max_reference_seconds, max_file_mb=max_reference_mb)
    voices = VoiceEncoder(CodecFile(f"{model_path}/{FILE}"), limits, kept=voices_kept, device=device, dtype=dtype)
    preprocessor = Preprocessor(model_path, TextLimits(max_characters, segment_bytes), voices, max_context)
    from omni_fish_s2.text_stream import PreprocessingScheduler

    references = [] if reference is None else [{"path": reference, "text": reference_text}]
    return PreprocessingScheduler(preprocessor, text_stream, references)
