"""Transcripts in the forms of OpenAI's API: verbose, with speakers, as subtitles, and the log probabilities of their tokens."""

from __future__ import annotations

import html
import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attrs import define, field

from omni_core.api import Segment, TokenLogprob, Word
from omni_serve.calls import Call
from omni_serve.long_recordings import LongCall
from omni_serve.usage import of_transcript


def verbose(
    call: Call | LongCall, times: Sequence[str], task: str, language: str, seconds: float | None, *, timed: bool
) -> dict[str, Any]:
    """Return what the verbose form has beside the text: nothing that neither the pipeline nor the client has said.

    Args:
        times: of segments and words, those that are wanted.
        timed: the pipeline tells times: without segments, nothing is said.
        language: that was asked for.
        seconds: of the recording, where the pipeline does not tell them.
    """
    found = call.transcript
    heard = found.duration if found is not None else None
    duration = next((each for each in (heard, seconds) if each is not None), 0.0)
    answer: dict[str, Any] = {
        "task": task,
        "language": (found.language if found is not None else None) or language,
        "duration": duration,
        "usage": {"type": "duration", "seconds": duration},
    }
    segments = found.segments if found is not None else []
    if "segment" in times and (segments or timed):
        answer["segments"] = [_segment(number, each) for number, each in enumerate(segments)]
    if "word" in times:
        answer["words"] = [{"word": each.text, **_times(each)} for each in (found.words if found is not None else [])]
    return answer


def diarized(call: Call | LongCall, seconds: float | None) -> dict[str, Any]:
    """Return what the form with speakers has beside the text."""
    found, speakers = call.transcript, Speakers()
    heard = found.duration if found is not None else None
    return {
        "task": "transcribe",
        "duration": next((each for each in (heard, seconds) if each is not None), 0.0),
        "segments": speakers.told(found.segments if found is not None else []),
        "usage": of_transcript(call.usage, call.heard),
    }


@define
class Speakers:
    """Names the speakers of a transcript A, B, ... Z, AA, ..., in the order in which they are told of."""

    _names: dict[str | None, str] = field(factory=dict)
    _count: int = 0

    def told(self, segments: Iterable[Segment]) -> list[dict[str, Any]]:
        """Return the next segments, as events and as parts of the whole form."""
        return [self._told(each) for each in segments]

    def _told(self, segment: Segment) -> dict[str, Any]:
        speaker = self._names.setdefault(segment.speaker, _letters(len(self._names)))
        self._count += 1
        return {
            "type": "transcript.text.segment",
            "id": f"seg_{self._count - 1}",
            "start": segment.start,
            "end": segment.end,
            "text": segment.text,
            "speaker": speaker,
        }


def _letters(number: int) -> str:
    """Return the letters of a column of a table of that number."""
    return (_letters(number // 26 - 1) if number >= 26 else "") + chr(ord("A") + number % 26)


def logprobs(found: Iterable[TokenLogprob]) -> list[dict[str, Any]]:
    """Return the log probabilities of tokens."""
    return [{"token": each.text, "logprob": each.logprob, "bytes": [*each.data]} for each in found]


def subtitles(segments: Iterable[Segment], form: str) -> str:
    """Return segments as SubRip (``srt``) or WebVTT (``vtt``)."""

    def clock(seconds: float) -> str:
        whole, thousandths = divmod(round(seconds * 1000), 1000)
        mark = "," if form == "srt" else "."
        return f"{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}{mark}{thousandths:03}"

    def written(text: str) -> str:
        """Return a text without what would end a cue: an empty line, an arrow."""
        lines = "\n".join(line for each in text.splitlines() if (line := each.strip()))
        return lines.replace("-->", "->") if form == "srt" else html.escape(lines, quote=False)

    timed = [(each, text) for each in segments if (text := written(each.text))]
    cues = [f"{clock(each.start)} --> {clock(each.end)}\n{text}\n" for each, text in timed]
    if form == "srt":
        cues = [f"{number}\n{cue}" for number, cue in enumerate(cues, 1)]
    return "\n".join(["WEBVTT\n", *cues] if form == "vtt" else cues)


def _segment(number: int, segment: Segment) -> dict[str, Any]:
    """Return a segment with all that OpenAI's has. Figures that the pipeline does not know are 0."""
    data = segment.text.encode()
    return {
        "id": number,
        "seek": round(segment.start * 100),
        "text": segment.text,
        "tokens": segment.token_ids,
        "temperature": segment.temperature,
        "avg_logprob": math.log(segment.confidence) if segment.confidence else 0.0,
        "compression_ratio": len(data) / len(zlib.compress(data)),
        "no_speech_prob": segment.no_speech or 0.0,
        **_times(segment),
    }


def _times(timed: Segment | Word) -> Mapping[str, Any]:
    known = {"speaker": timed.speaker, "confidence": timed.confidence}
    return {"start": timed.start, "end": timed.end, **{name: each for name, each in known.items() if each is not None}}
