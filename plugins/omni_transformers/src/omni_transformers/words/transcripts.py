"""Transcripts by models that read a recording as a prompt and write what is said in it."""

from __future__ import annotations

import omni_transformers.stand_ins.first  # noqa: F401

# isort: split

from collections.abc import Callable, Generator
from functools import partial
from typing import Any

from attrs import define, field

from omni_core.api import (
    InvalidRequestError,
    OmniRequest,
    Scheduler,
    Segment,
    StagePayload,
    TokenLogprob,
    Transcript,
    TranscriptChunk,
)
from omni_media.api import LIMITS
from omni_transformers.calls.choice import Loop, calls_of
from omni_transformers.calls.lines import Compute
from omni_transformers.checkpoints import read
from omni_transformers.interleaved import Interleaved
from omni_transformers.logprobs import told
from omni_transformers.recognise.live_windows import STEP, Form, LiveInterleaved
from omni_transformers.recognise.speakers import Diarizer, with_speakers
from omni_transformers.words.declaration import GROUP
from omni_transformers.words.messages import Conversation, rate_of, read_messages
from omni_transformers.words.recognisers import RECOGNISERS, Recogniser
from omni_transformers.words.recordings import check_heard
from omni_transformers.words.steps import Text, Writer, chunks, load_writer, placed

TOKENS_PER_SECOND = 25
"""Of speech, at most: a longer text than these make is one that repeats itself."""

PARSE = "extract_speaker_dict"
"""The method of a processor that reads segments."""

_OWN = ("language", "prompt", "timestamps", "diarize")
"""Parameters that are not of the sampling."""


def create_recogniser(
    model_path: str,
    device: str = "cpu",
    dtype: str = "auto",
    backend: str = "auto",
    limits: dict[str, Any] | None = None,
    max_running: int = 8,
    kv_cache_mb: int | None = None,
    live_step: float = STEP,
    diarizer: str | None = None,
) -> Scheduler:
    """Return the stage that writes recordings down.

    Args:
        backend: ``auto``, ``engine``, ``steps`` or ``generate``.
        limits: of the recording, as fields of :class:`Limits`.
        max_running: requests that are written at one time; further ones wait.
        kv_cache_mb: of the engine's cache.
        live_step: seconds of new sound after which that of a live request is written again.
        diarizer: folder or hub id of a diarizer that tells speakers.

    Raises:
        ConfigError: the checkpoint cannot be loaded.
    """
    recogniser = RECOGNISERS[read(model_path).architecture.name]
    writer = load_writer(model_path, device, dtype, {"max_audio_seconds": LIMITS.max_audio_seconds, **(limits or {})})

    def recognise(payload: StagePayload) -> Generator[TranscriptChunk | None, None, Transcript]:
        params = payload.request.params.get(GROUP, {})
        recording = _recording(writer, payload.request)
        inputs = placed(_request(writer, recogniser, recording, params), writer.model)
        seconds = len(recording.sounds[0]) / rate_of(writer.prompts.processor)
        sampling = {name: value for name, value in params.items() if name not in _OWN}
        sampling.setdefault("max_new_tokens", 64 + int(seconds * TOKENS_PER_SECOND))
        reading = Reading(
            recogniser, heard=bool(params.get("language")), parse=getattr(writer.prompts.processor, PARSE, None)
        )
        holds = bool(params.get("logprobs"))  # until all are known
        text = yield from chunks(
            writer.write(inputs, sampling),
            lambda piece: reading.chunk(piece, holds, _tells(params)),
        )
        rest, segments = reading.end(writer, text)
        logprobs = _logprobs(writer, recogniser, text)
        rest, new = reading.text if holds else rest, segments[reading.told :]
        if rest or new:
            yield TranscriptChunk(rest, segments=new if _tells(params) else [], logprobs=logprobs)
        return Transcript(
            reading.text,
            language=_code(writer, reading.language) or params.get("language"),
            segments=segments if _tells(params) else [],
            duration=seconds,
            finish_reason=text.finish_reason,
            usage=text.usage,
            logprobs=logprobs,
        )

    running = 1 if backend == "generate" else writer.running(max_running)
    calls = calls_of(Loop(writer.model), backend, running, kv_cache_mb)
    if recogniser.segments:  # speakers of one window are not those of the next
        return Interleaved(recognise, running, calls)
    form = Form(rate_of(writer.prompts.processor), GROUP, (limits or {}).get("max_audio_seconds"), step=live_step)
    write: Compute = recognise
    if diarizer is not None:
        seconds = writer.prompts.limits.max_audio_seconds
        write = with_speakers(write, Diarizer(diarizer, dtype, device), GROUP, seconds)
    return LiveInterleaved(write, running, calls, form=form)


def _logprobs(writer: Writer, recogniser: Recogniser, text: Text) -> list[TokenLogprob]:
    """Return the log probabilities of the tokens of a transcript, if they were asked for: behind the mark that ends the language."""
    if not text.logprobs:
        return []
    tokenizer, first = writer.prompts.tokenizer, 0
    if recogniser.marker:
        mark = tokenizer.convert_tokens_to_ids(recogniser.marker)
        first = text.ids.index(mark) + 1 if mark in text.ids else 0
    return told(tokenizer, text.ids[first:], text.logprobs[first:])


def _tells(params: dict[str, Any]) -> bool:
    return bool(params.get("diarize")) or params.get("timestamps", "none") != "none"


def _recording(writer: Writer, request: OmniRequest) -> Conversation:
    found = read_messages(request.inputs, ["audio"], writer.prompts.processor, writer.prompts.limits)
    if len(found.sounds) != 1 or found.text:
        raise InvalidRequestError(
            "messages: this model writes recordings down: it takes one message with one recording and no text"
        )
    return found


def _request(writer: Writer, recogniser: Recogniser, recording: Conversation, params: dict[str, Any]) -> Any:
    """Return the inputs of the model for a recording, by its processor's own prompt."""
    prompts = writer.prompts
    named = {name: params[name] for name in recogniser.parameters if params.get(name)}
    if spelled := prompts.spelled(Conversation([], [named])):
        raise prompts.refusal(spelled)
    ask = getattr(prompts.processor, "apply_transcription_request", None)
    if ask is None:
        inputs = prompts.made(prompts.processor, audio=recording.sounds[0], return_tensors="pt")
    else:
        inputs = prompts.made(ask, recording.sounds[0], return_tensors="pt", **named)
    check_heard(prompts.processor, inputs, recording.sounds)
    return {**inputs, **prompts.extra}


@define
class Reading:
    """Reads what a recogniser writes: the name of a language before a mark, or a list of segments that is read at its end.

    Attributes:
        heard: the language was told; none is named.
        text: the transcript so far.
        language: the name that was read.
        parse: reads the segments of a text that may go on; ``None``: they are read at its end.
        told: how many segments have been told of.
    """

    recogniser: Recogniser
    heard: bool
    text: str = ""
    language: str | None = None
    parse: Callable[[str], Any] | None = None
    told: int = 0
    _held: str = ""
    _segments: list[Segment] = field(factory=list)

    def chunk(self, piece: str, holds: bool, tells: bool) -> TranscriptChunk | None:
        """Take a piece; return what is told of it.

        Args:
            holds: the text is told of at its end.
            tells: its segments are told of.
        """
        before = self.told
        more = self.feed(piece)
        new = self._segments[before:] if tells else []
        return TranscriptChunk(more, segments=new) if (more or new) and not holds else None

    def feed(self, piece: str) -> str:
        """Take a piece; return what it adds to the transcript."""
        marker = self.recogniser.marker
        if self.recogniser.segments:
            return self._complete(piece)
        if not marker or self.heard:
            self.text += piece
            return piece
        self._held += piece
        before, found, after = self._held.partition(marker)
        if not found:
            return ""
        self.heard, self._held, self.language = True, "", before.removeprefix("language").strip() or None
        self.text = after.lstrip()
        return self.text

    def _complete(self, piece: str) -> str:
        """Take a piece of marked segments; return the text of those that it completes."""
        self._held += piece
        mark, marks = self.recogniser.mark, self.recogniser.marks * (self.told + 1)
        if self.parse is None or not marks or mark not in piece or self._held.count(mark) < marks:
            return ""
        parsed, before = _parsed(partial(self.parse, self._held)), self.text
        if isinstance(parsed, str) or len(parsed) <= self.told:
            return ""
        self._segments = _segments(parsed)
        self.told, self.text = len(self._segments), _joined(parsed)
        return self.text.removeprefix(before)

    def _untold(self) -> str:
        """Return what was written behind the segments that were told of."""
        pieces = self._held.split(self.recogniser.mark)
        return self.recogniser.mark.join(pieces[self.recogniser.marks * self.told :]).strip()

    def end(self, writer: Writer, text: Text) -> tuple[str, list[Segment]]:
        """Return what was held back, and the segments."""
        segments: list[Segment] = []
        if self.recogniser.segments:
            decode = writer.prompts.processor.decode
            parsed = _parsed(partial(decode, text.ids, return_format="parsed"), text.text)
            if isinstance(parsed, str) and self.told:
                segments, rest = self._segments, f" {self._untold()}".rstrip()
            elif isinstance(parsed, str):
                rest = parsed.strip()
            else:
                segments = _segments(parsed)
                rest = _joined(parsed).removeprefix(self.text)
        else:
            rest = self._held
        self.text += rest
        return rest, segments


def _parsed(read: Callable[[], Any], otherwise: str = "") -> Any:
    """Return the segments that a processor reads; a text: they are malformed, for which some processors raise."""
    try:
        return read()
    except ValueError:
        return otherwise


def _segments(parsed: list[dict[str, Any]]) -> list[Segment]:
    return [each for index, one in enumerate(parsed) if (each := _segment(one, index)) is not None]


def _joined(parsed: list[dict[str, Any]]) -> str:
    return " ".join(str(one.get("Content", "")).strip() for one in parsed)


def _segment(parsed: dict[str, Any], index: int) -> Segment | None:
    start, end, speaker = parsed.get("Start"), parsed.get("End"), parsed.get("Speaker")
    if not isinstance(start, float) or not isinstance(end, float) or end < start:
        return None
    text = str(parsed.get("Content", "")).strip()
    return Segment(text if not index else f" {text}", start, end, None if speaker is None else str(speaker))


def _code(writer: Writer, language: str | None) -> str | None:
    """Return the code of a language that the model named."""
    if language is None:
        return None
    import importlib

    names = getattr(importlib.import_module(type(writer.prompts.processor).__module__), "LANGUAGE_CODE_TO_NAME", {})
    return next((code for code, name in names.items() if name.casefold() == language.casefold()), None)
