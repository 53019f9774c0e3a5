"""Checks of the results that a pipeline sends to its client: transcripts and sounds, streamed beside whole."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from omni_core.api import (
    TRANSCRIPTION,
    WORD_TIMES,
    AudioChunk,
    AudioResult,
    Interface,
    OmniRequest,
    Segment,
    Transcript,
    TranscriptChunk,
    Word,
)
from omni_core.runtime_api import StreamEvent

_LATE = 1e-3
"""Seconds by which times may disagree: of models, they are rounded."""


def check_outputs(events: Iterable[StreamEvent], interface: Interface | None, request: OmniRequest) -> None:
    """Check what was streamed for one request, and its final results.

    Raises:
        AssertionError: what is wrong, and of which stage.
    """
    by_stage: dict[str, list[StreamEvent]] = {}
    for event in events:
        by_stage.setdefault(event.stage, []).append(event)
    writer = None if interface is None else interface.roles.get(TRANSCRIPTION)
    for stage, found in by_stage.items():
        chunks, results = ([each.data for each in found if each.final is final] for final in (False, True))
        for result in results:
            try:
                if stage == writer or isinstance(result, Transcript):
                    check_transcript(chunks, result, _timestamps(interface, request))
                elif isinstance(result, AudioResult):
                    rate = None if interface is None else interface.sample_rate
                    check_sound(chunks, result, rate, _tells_words(interface, request))
            except AssertionError as error:
                raise AssertionError(f"stage {stage!r}: {error}") from None


def _timestamps(interface: Interface | None, request: OmniRequest) -> str:
    """Return the times that a request asks for, in the group of the transcription role or at the top level."""
    groups = [each.name for each in interface.groups if each.role == TRANSCRIPTION] if interface is not None else []
    places = [request.params, *(request.params.get(name) or {} for name in groups)]
    return next((str(each["timestamps"]) for each in places if "timestamps" in each), "none")


def _tells_words(interface: Interface | None, request: OmniRequest) -> bool:
    """Return if a request's sound comes with the times of its words."""
    if interface is None or not interface.word_times:
        return False
    always = all(each.name != WORD_TIMES.name for each in interface.params)
    return always or request.params.get(WORD_TIMES.name) == "word"


def check_transcript(chunks: Sequence[Any], result: Any, timestamps: str = "none") -> None:
    """Check a transcript and the chunks that were streamed before it.

    Args:
        timestamps: those that were asked for, of :data:`omni_core.interface.TIMESTAMPS`.

    Raises:
        AssertionError: what is wrong.
    """
    assert isinstance(result, Transcript), f"a transcript finishes with a Transcript, not {type(result).__name__}"
    assert result.finish_reason in ("stop", "length"), f"finish_reason: {result.finish_reason!r} is none"
    for each in chunks:
        assert isinstance(each, TranscriptChunk), (
            f"a transcript is streamed as TranscriptChunk, not {type(each).__name__}"
        )
    if chunks:
        whole = "".join(each.text for each in chunks)
        assert whole == result.text, (
            f"the final text of the chunks is not that of the result: {whole!r}, {result.text!r}"
        )
        for name in ("segments", "words", "logprobs"):
            streamed = [one for each in chunks for one in getattr(each, name)]
            assert streamed in ([], getattr(result, name)), f"the {name} of the chunks are not those of the result"
    if result.text.strip():
        assert timestamps == "none" or result.segments, f"timestamps={timestamps}: there are no segments"
        assert timestamps != "word" or result.words, "timestamps=word: there are no words"
    if result.logprobs:
        _check_logprobs(result)
    _check_times("segments", result.segments, result.duration)
    _check_times("words", result.words, result.duration)


def _check_logprobs(result: Transcript) -> None:
    for index, each in enumerate(result.logprobs):
        assert each.logprob <= 0.0, f"logprobs[{index}].logprob: {each.logprob} is no logarithm of a probability"
    data = b"".join(each.data for each in result.logprobs)
    texts = [each.replace("\ufffd", "") for each in (data.decode(errors="replace"), result.text)]
    same = "".join(texts[0].split()) == "".join(texts[1].split())
    assert same, f"logprobs: their bytes are {data!r}, and the text is {result.text!r}"


def check_sound(
    chunks: Sequence[Any], result: AudioResult, declared: int | None = None, tells_words: bool = False
) -> None:
    """Check a sound and the chunks that were streamed before it.

    Args:
        declared: the sample rate of the pipeline's interface.
        tells_words: the times of its words are told, as the interface declares.

    Raises:
        AssertionError: what is wrong.
    """
    for each in chunks:
        assert isinstance(each, AudioChunk), f"a sound is streamed as AudioChunk, not {type(each).__name__}"
    rate = result.sample_rate if declared is None else declared
    for each in (*chunks, result):
        assert each.sample_rate == rate > 0, f"sample_rate: {each.sample_rate} Hz, and {rate} Hz elsewhere"
    if chunks:
        streamed, whole = sum(len(each.samples) for each in chunks), len(result.samples)
        assert streamed == whole, f"the chunks have {streamed} samples, the result {whole}"
        words = [word for each in chunks for word in each.words]
        assert words == result.words[: len(words)], "the words of the chunks are not the first of the result's"
    starts = [each.start for each in chunks if each.start is not None]
    for one, other in pairwise([0.0, *starts]):
        assert one <= other, f"start: a chunk begins at {other} s, after one at {one} s"
    assert result.words or not (tells_words and len(result.samples)), "word_times is declared: there are no words"
    _check_times("words", result.words, len(result.samples) / rate)


def _check_times(name: str, timed: Sequence[Segment | Word], duration: float | None) -> None:
    end = float("inf") if duration is None else duration + _LATE
    for index, each in enumerate(timed):
        assert 0 <= each.start <= each.end <= end, (
            f"{name}[{index}]: from {each.start} to {each.end} s, of a sound of {duration} s"
        )
        assert each.confidence is None or 0 <= each.confidence <= 1, f"{name}[{index}].confidence: {each.confidence}"
    for one, other in pairwise(timed):
        assert one.start <= other.start, f"{name}: one starts at {one.start} s and the next at {other.start} s"
