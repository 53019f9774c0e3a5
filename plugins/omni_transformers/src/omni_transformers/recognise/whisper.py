"""Whisper: windows of a recording one after the other, as transformers' own rule for long recordings has it.

A window whose text repeats itself, or of which the model is not sure, is written again at higher temperatures, so its text is tentative
until one satisfies. In a recording of several windows, or where times are asked for, the model tells times: the last one of a window says
where the next one begins.
"""

from __future__ import annotations

import omni_transformers.stand_ins.first  # noqa: F401

# isort: split

import math
from collections.abc import Generator, Sequence
from typing import Any

import torch
from attrs import define, field

from omni_core.api import (
    InvalidRequestError,
    Scheduler,
    Segment,
    StagePayload,
    TokenLogprob,
    Transcript,
    TranscriptChunk,
    Word,
)
from omni_media.api import Samples
from omni_transformers.calls.choice import Loop, calls_of
from omni_transformers.calls.lines import Compute, in_turns
from omni_transformers.checkpoints import read
from omni_transformers.logprobs import told as logprobs
from omni_transformers.recognise.declaration import GROUP, SECONDS, group
from omni_transformers.recognise.live_windows import LIVE_WINDOW, STEP, Form, LiveInterleaved
from omni_transformers.recognise.speakers import Diarizer, with_speakers
from omni_transformers.recognise.text import UNSPACED, Growing, decoded, in_order, pieces, words
from omni_transformers.recognise.turns import Report, asked_of, own_random, recording
from omni_transformers.recognise.whisper_windows import Part, Windows, Written

TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""Tried one after the other, where a request names none."""

DOUBT = 0.5
"""By this share of the threshold, the text of a live window is taken for one of silence sooner: short windows end in it often."""


def create_whisper(
    model_path: str,
    device: str = "cpu",
    dtype: str = "auto",
    backend: str = "auto",
    max_running: int = 8,
    max_audio_seconds: float | None = None,
    kv_cache_mb: int | None = None,
    live_step: float = STEP,
    diarizer: str | None = None,
) -> Scheduler:
    """Return the stage that writes recordings down.

    Args:
        backend: ``auto``, ``engine``, ``steps`` or ``generate``.
        max_running: requests that are written at one time; further ones wait.
        max_audio_seconds: the longest sound; ``None``: recordings end after :data:`SECONDS`, live ones go on.
        kv_cache_mb: of the engine's cache.
        live_step: seconds of new sound after which that of a live request is written again.
        diarizer: folder or hub id of a diarizer that tells speakers.

    Raises:
        ConfigError: the checkpoint cannot be loaded.
    """
    windows = Windows(model_path, device, dtype)
    parameters = group(read(model_path))

    def transcript(payload: StagePayload, report: Report) -> Transcript:
        asked = asked_of(payload, parameters)
        samples = recording(payload.request, windows.rate, max_audio_seconds or SECONDS)
        request = _Request(windows, asked, own_random(report, asked["seed"], device))
        live = payload.request.metadata.get(LIVE_WINDOW)
        if asked["temperature"] or (live and live["draft"]):
            request.temperatures = (float(asked["temperature"]),)
        if live:
            request.doubt = DOUBT
            request.said = live["said"] if live["draft"] else ""
        return request.transcript(samples)

    def write(payload: StagePayload) -> Generator[Any, None, Transcript]:
        return (yield from in_turns(lambda report: transcript(payload, report)))

    running = 1 if backend == "generate" else max_running
    calls = calls_of(Loop(windows.model), backend, running, kv_cache_mb)
    times = "none" if windows.first_time is None else "segment"
    form = Form(
        windows.rate,
        GROUP,
        max_audio_seconds,
        seconds=windows.frames * windows.hop,
        step=live_step,
        times=times,
        follows=True,
    )
    told: Compute = write
    if diarizer is not None:
        told = with_speakers(write, Diarizer(diarizer, dtype, device), GROUP, max_audio_seconds or SECONDS)
    return LiveInterleaved(told, running, calls, form=form)


@define
class _Request:
    """A request while its recording is written.

    Attributes:
        temperatures: that are tried.
        doubt: the share of the threshold of log probabilities from which on the model is asked if nobody speaks.
        said: the text that it is known to begin with.
        duration: of the recording, in seconds.
        whole: the text of all windows, as it was decoded.
        given: arguments of ``generate()`` for every window.
        prompt: the tokens of the text that it follows.
    """

    windows: Windows
    asked: dict[str, Any]
    report: Report
    temperatures: Sequence[float] = TEMPERATURES
    doubt: float = 1.0
    said: str = ""
    duration: float = 0.0
    whole: str = ""
    text: Growing = field(factory=Growing)
    language: str | None = None
    given: dict[str, Any] = field(factory=dict)
    prompt: list[int] = field(factory=list)
    segments: list[Segment] = field(factory=list)
    words: list[Word] = field(factory=list)
    logprobs: list[TokenLogprob] = field(factory=list)
    notices: list[str] = field(factory=list)
    read: int = 0
    written: int = 0

    @property
    def times(self) -> str:
        """``none``, ``segment`` or ``word``."""
        return str(self.asked.get("timestamps", "none"))

    def transcript(self, samples: Samples) -> Transcript:
        """Write a recording down."""
        windows, duration = self.windows, len(samples) / self.windows.rate
        self.duration = duration
        if duration <= windows.frames * windows.hop and self.times == "none":
            self._short(samples)
        elif windows.first_time is not None:
            self._long(samples)
        else:
            raise InvalidRequestError(
                f"messages: the recording has {duration:.1f} s; this checkpoint takes at most {windows.frames * windows.hop:g} s, because "
                "it tells no times (its generation_config.json has no no_timestamps_token_id)"
            )
        if getattr(windows.config, "is_multilingual", None) is False:
            self.language = "en"
        end = "length" if self.notices else "stop"
        usage = {"prompt_tokens": self.read, "completion_tokens": self.written}
        text, times = self.text.text, (self.segments, self.words)
        return Transcript(text, self.language, *times, duration, end, usage, self.notices, self.logprobs)

    def _short(self, samples: Samples) -> None:
        """Write a recording of one window; its text is tentative until it satisfies."""
        windows = self.windows
        encoded = windows.encoded(windows.features(samples, one_window=True))
        self._ask(encoded)
        written = self._accepted(encoded, windows.frames, times=False)
        text = "" if written is None else written.said + decoded(windows.tokenizer, written.ids)
        tokens = [] if written is None else self._logprobs(written, range(len(written.ids)))
        self.report(TranscriptChunk(self.text.add(text, complete=True), logprobs=tokens))
        if written is not None and not written.ended:
            self.notices.append("the text was cut by the model's limit on tokens")

    def _long(self, samples: Samples) -> None:
        """Write a recording window by window; the text of the last one is tentative."""
        windows = self.windows
        features = windows.features(samples, one_window=False)
        seek, total = 0, features.shape[-1]
        while seek < total:
            frames = min(windows.frames, total - seek)
            encoded = windows.encoded(features[..., seek : seek + frames])
            if not seek:
                self._ask(encoded)
            self.report(None)
            written = self._accepted(encoded, frames, times=True)
            if written is None:
                self.report(TranscriptChunk(""))
                seek += frames
            else:
                seek += self._add(written, frames, seek * windows.hop)

    def _accepted(self, encoded: Any, frames: int, times: bool) -> Written | None:
        """Return what is written of a window at the first temperature that satisfies; ``None``: nobody speaks.

        Args:
            times: the model tells times.
        """
        windows = self.windows
        most, least, silent = windows.thresholds.values()
        silence = windows.no_speech(encoded, self.prompt) if times else None
        word_frames = frames if self.times == "word" else None

        def heard(ids: list[int]) -> None:
            text = decoded(windows.tokenizer, ids).strip()
            self.report(TranscriptChunk("", f" {text}" if self.text.text and text else text))

        for temperature in self.temperatures:
            written = windows.written(
                encoded, temperature, heard, times, word_frames, self.said, bool(self.asked["logprobs"]), **self.given
            )
            self._count(written)
            in_doubt = written.logprob < self.doubt * least
            if silence is None and in_doubt:
                silence = windows.no_speech(encoded, self.prompt)
            written.no_speech = silence or 0.0
            if in_doubt and written.no_speech > silent:
                return None
            if written.logprob >= least and windows.repetition(written) <= most:
                break
        return written

    def _add(self, written: Written, frames: int, offset: float) -> int:
        """Report what is written of a window that begins at ``offset`` seconds; return how many of its frames are said."""
        windows = self.windows
        parts, said, cut = windows.parts(written, frames)
        segments: list[Segment] = []
        told: list[Word] = []
        tokens: list[TokenLogprob] = []
        for part in parts:
            own = [each for each in range(part.begin, part.end) if written.ids[each] < (windows.first_time or 0)]
            text = decoded(windows.tokenizer, [written.ids[each] for each in own])
            if not text.strip():
                continue
            self.whole += text
            tokens += self._logprobs(written, own)
            if self.times != "none":
                segments.append(self._segment(written, part, text, offset))
            if self.times == "word":
                told += self._words(written, part, offset)
        segments = in_order(segments, self.duration, self.segments)
        told = in_order(told, self.duration, self.words)
        self.segments += segments
        self.words += told
        self.report(TranscriptChunk(self.text.add(self.whole, complete=True), "", segments, told, tokens))
        if cut:
            end = offset + frames * windows.hop
            self.notices.append(f"the text from {offset:.1f} to {end:.1f} s was cut by the model's limit on tokens")
        return said

    def _segment(self, written: Written, part: Part, text: str, offset: float) -> Segment:
        return Segment(
            text,
            offset + part.start,
            offset + max(part.start, part.stop),
            confidence=math.exp(written.logprob),
            no_speech=written.no_speech,
            temperature=written.temperature,
            token_ids=written.ids[part.begin : part.end],
        )

    def _words(self, written: Written, part: Part, offset: float) -> list[Word]:
        """Return the words of a part. A token begins where the one before it ends."""
        own = [each for each in range(part.begin, part.end) if written.ids[each] < min(self.windows.ends)]
        starts = [offset + (written.ends[each - 1] if each else 0.0) for each in own]
        ends = [offset + written.ends[each] for each in own]
        found = pieces(self.windows.tokenizer, [written.ids[each] for each in own], starts, ends)
        return words(found, self.language not in UNSPACED)

    def _logprobs(self, written: Written, own: Sequence[int]) -> list[TokenLogprob]:
        """Return the log probabilities of tokens by their places in a window, and keep them; none, if they are not wanted."""
        if not written.levels:
            return []
        ids, levels = [written.ids[each] for each in own], [written.levels[each] for each in own]
        found = logprobs(self.windows.tokenizer, ids, levels)
        self.logprobs += found
        return found

    def _ask(self, encoded: Any) -> None:
        """Decide what every window is asked for. The language is that of the first one."""
        windows, asked = self.windows, self.asked
        if windows.languages:
            self.language = asked["language"] or windows.language(encoded)
            self.given["language"] = f"<|{self.language}|>"
            if "task" in asked:
                self.given["task"] = asked["task"]
        if asked["prompt"]:
            self.prompt = windows.prompt_ids(asked["prompt"])
            self.given["prompt_ids"] = torch.tensor(self.prompt, device=windows.device)

    def _count(self, written: Written) -> None:
        self.read += written.prompt
        self.written += len(written.ids) + written.ended
