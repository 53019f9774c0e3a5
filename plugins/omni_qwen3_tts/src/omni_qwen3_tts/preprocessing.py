"""The preprocessing stage: turns a text, whole or as it is being written, and a voice into what the talker reads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from attrs import define, field

from omni_core.api import (
    WORD_TIMES,
    Aside,
    ConfigError,
    InvalidRequestError,
    OmniRequest,
    ReasoningChunk,
    StagePayload,
    StreamingScheduler,
    TextChunk,
)
from omni_media.api import MediaSource
from omni_qwen3_tts.asking import asked_of, recording_in, sampling_of, text_in, too_long
from omni_qwen3_tts.config import BASE, generation_defaults, read_config
from omni_qwen3_tts.interface import MAX_CHARACTERS
from omni_qwen3_tts.payloads import ClonedVoice, SpeechStart, SpeechText
from omni_qwen3_tts.tokenizer import TextCutter, TextTokenizer
from omni_qwen3_tts.voices import Recorded, ReferenceLimits, VoiceEncoder

THREADS = 2
"""Recordings that are encoded at once, which bounds their memory."""

STYLE_CHARACTERS = 2000
"""The longest instruction: it is read before the first sound."""


@define(eq=False)
class Speaking:
    """A request so far.

    Attributes:
        start: the talker's first chunk; ``None`` before the payload has come, and after it was sent.
        voice: the recording as it is being encoded.
        checked: the end of the text that has been looked at.
        ids: tokens that were not sent yet.
        spoken: there is something to speak.
        is_whole: the text came with the request.
        may_be_empty: another pipeline writes the text, and may have nothing to say.
        tells: the text is also told to the stage that aligns it.
        told: of it, what was not sent yet.
    """

    start: SpeechStart | None = None
    voice: Future[Recorded] | None = None
    where: str = "the text to speak"
    cutter: TextCutter = field(factory=TextCutter)
    checked: str = ""
    characters: int = 0
    ids: list[int] = field(factory=list)
    spoken: bool = False
    is_whole: bool = False
    may_be_empty: bool = False
    tells: bool = False
    told: str = ""


class PreprocessingScheduler(StreamingScheduler[Speaking]):
    """Streams to the talker a :class:`SpeechStart` and the text's tokens as soon as they are certain.

    Recordings of voices are encoded in threads aside; other requests go on meanwhile.

    Args:
        voices: of a Base checkpoint.
        reference: the recording of the voice of requests that bring none, as they would bring it.
        aligner: the stage that finds when words are heard; it gets the text of requests that ask for it, ``{"text": piece}``.

    Attributes:
        enter_thread: called first in each further thread; see :class:`~omni_core.scheduling.base.Scheduler`.
    """

    def __init__(
        self,
        model_path: str,
        voices: VoiceEncoder | None,
        max_characters: int,
        reference: dict[str, Any] | None = None,
        aligner: str | None = None,
    ) -> None:
        super().__init__()
        self._reference, self._aligner = reference, aligner
        self._config, self._generation = read_config(model_path), generation_defaults(model_path)
        self._tokenizer = TextTokenizer(model_path, self._config)
        self._voices, self._most = voices, max_characters
        self.enter_thread: Callable[[], None] = lambda: None
        self._aside = Aside(self, THREADS)

    def start(self) -> None:
        try:
            super().start()
        finally:
            self._aside.close()

    def forget(self, request_id: str) -> None:
        with suppress(KeyError):
            if (voice := self.state_of(request_id).voice) is not None:
                voice.cancel()
        super().forget(request_id)

    def new_state(self, request_id: str, request: OmniRequest | None) -> Speaking:
        return Speaking()

    def on_payload(self, state: Speaking, payload: StagePayload) -> None:
        """Raise InvalidRequestError if the request is invalid; the message names the part."""
        request = payload.request
        sampling_of(
            request, self._config, self._generation
        )  # invalid parameters fail the request before a voice is encoded
        text, recording = text_in(request.inputs), recording_in(request.inputs) or self._reference
        state.is_whole, state.may_be_empty = text is not None, request.may_be_empty
        state.tells = self._aligner is not None and request.params.get(WORD_TIMES.name) == "word"
        asked = asked_of(request, self._config, recorded=recording is not None)
        dual_track = asked.dual_track
        if dual_track is None:
            dual_track = text is None or self._config.kind == BASE
        start = SpeechStart(opening=torch.tensor(self._tokenizer.opening), dual_track=dual_track)
        if asked.style:
            if len(asked.style) > STYLE_CHARACTERS:
                raise too_long("params.talker.instructions", STYLE_CHARACTERS)
            start["style"] = torch.tensor(self._tokenizer.style(asked.style))
        if asked.language is not None:
            start["language"] = asked.language
        if asked.speaker is not None:
            start["speaker"] = asked.speaker
        if text is not None:
            state.where = f"messages[{len(request.inputs['messages']) - 1}].content"
            self._read(state, text)
        if recording is not None:
            self._begin_voice(payload.request_id, state, start, recording)
        state.start = start

    def _begin_voice(self, name: str, state: Speaking, start: SpeechStart, recording: dict[str, Any]) -> None:
        words = (recording.get("text") or "").strip()
        voice = start["voice"] = ClonedVoice()
        if words:
            if len(words) > self._most:
                raise too_long("references[0].text", self._most)
            self._tokenizer.checked(words, "references[0].text")
            voice["words"] = torch.tensor(self._tokenizer.encode(words))
        assert self._voices is not None
        source = MediaSource("recording", recording, "references[0]")
        state.voice = self._aside.submit(name, partial(self._voices.voice, source))

    def running_computes(self) -> dict[str, float]:
        """See :class:`~omni_core.scheduling.base.Scheduler`."""
        return self._aside.running

    def on_chunk(self, state: Speaking, chunk: Any, metadata: dict[str, Any] | None) -> None:
        if isinstance(chunk, ReasoningChunk):
            return  # nobody says what is thought only
        if state.is_whole:
            raise InvalidRequestError(
                "send: this request came with its text; open one without messages to send a text in chunks"
            )
        text = chunk.text if isinstance(chunk, TextChunk) else chunk
        if not isinstance(text, str):
            raise TypeError(f"a chunk of text to speak must be str or TextChunk, is {type(text).__name__}")
        self._read(state, text)

    def _read(self, state: Speaking, text: str) -> None:
        state.characters += len(text)
        if state.characters > self._most:
            raise too_long(state.where, self._most)
        state.checked = self._tokenizer.checked(text, state.where, state.checked)
        state.told += text if state.tells else ""
        self._add(state, state.cutter.feed(text))

    def _add(self, state: Speaking, text: str) -> None:
        if text:
            state.ids += self._tokenizer.encode(text)
            state.spoken = True

    def step(self, states: dict[str, Speaking]) -> dict[str, BaseException]:
        failures: dict[str, BaseException] = {}
        self.unfinished = {}
        for name, state in states.items():
            try:
                if state.voice is not None and not state.voice.done():
                    self.unfinished[name] = None  # its end wakes the loop
                else:
                    self._send(name, state)
            except BaseException as error:
                failures[name] = error
        return failures

    def _send(self, request_id: str, state: Speaking) -> None:
        if state.start is not None:
            if state.voice is not None:
                found, voice = state.voice.result(), state.start["voice"]
                voice["embedding"] = found.embedding
                if "words" in voice:
                    voice["codes"] = found.codes
            self.emit(request_id, state.start, target="talker")
            state.start = state.voice = None
        if state.told:
            self.emit(request_id, {"text": state.told}, target=self._aligner)
            state.told = ""
        if state.ids:
            self.emit(request_id, SpeechText(ids=torch.tensor(state.ids)), target="talker")
            state.ids = []

    def finish(self, request_id: str, state: Speaking) -> dict[str, Any]:
        self._add(state, state.cutter.finish())
        if not state.spoken and not state.may_be_empty:
            raise InvalidRequestError(f"{state.where}: there is no text to speak")
        self._send(request_id, state)
        return {}

    def statistics(self) -> dict[str, float]:
        """Return counters; of the cache of voices, how many were encoded and how many found."""
        if self._voices is None:
            return super().statistics()
        return {
            **super().statistics(),
            "voices_encoded": float(self._voices.encoded),
            "voices_found": float(self._voices.found),
            "cpu_seconds": self._aside.cpu_seconds,
        }

    def flush_caches(self) -> None:
        """Forget the voices that were encoded before. From any thread."""
        if self._voices is not None:
            self._voices.clear()


def create_preprocessing(
    model_path: str,
    device: str = "cpu",
    dtype: str = "float32",
    max_characters: int = MAX_CHARACTERS,
    max_reference_seconds: float = ReferenceLimits().max_audio_seconds,
    max_reference_mb: int = ReferenceLimits().max_file_mb,
    voices_kept: int = 64,
    reference: str | None = None,
    reference_text: str | None = None,
    aligner: str | None = None,
) -> PreprocessingScheduler:
    """Make the preprocessing stage.

    Args:
        max_characters: of a text.
        max_reference_seconds, max_reference_mb: of a recording of a voice.
        voices_kept: recordings whose voices are cached.
        reference, reference_text: the recording of the voice of requests that bring none, and the words in it, if they are known.
        aligner: see :class:`PreprocessingScheduler`.

    Raises:
        ConfigError: an option is out of range, or the checkpoint is invalid.
    """
    for name, value in {"max_characters": max_characters, "voices_kept": voices_kept}.items():
        if value < 1:
            raise ConfigError(f"{name}: must be at least 1, is {value}")
    config, voices, given = read_config(model_path), None, None
    if reference is not None:
        given = {"path": reference, **({} if reference_text is None else {"text": reference_text})}
    if config.kind == BASE:
        limits = ReferenceLimits(max_audio_seconds=max_reference_seconds, max_file_mb=max_reference_mb)
        voices = VoiceEncoder(model_path, config, limits, kept=voices_kept, device=device, dtype=dtype)
        if given is not None:
            voices.voice(MediaSource("recording", given, "reference"))  # an unreadable one is an error at the start
    elif given is not None:
        raise ConfigError("reference: this checkpoint speaks with no recorded voices")
    return PreprocessingScheduler(model_path, voices, max_characters, given, aligner)
