"""Speakers by a diarizer beside a recogniser: it finds who speaks when, and each turn is written down by itself."""

from __future__ import annotations

import omni_transformers.stand_ins.first  # noqa: F401

# isort: split

from bisect import bisect_right
from collections.abc import Generator, Sequence
from contextlib import closing
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from attrs import define, evolve, field, frozen
from transformers.models.nemotron3_diarization.modeling_nemotron3_diarization import (
    Nemotron3DiarizationSpeakerCache as SpeakerCache,
)

from omni_core.api import OmniRequest, Segment, StagePayload, TokenLogprob, Transcript, TranscriptChunk, Word
from omni_media.api import Samples
from omni_torch.api import download
from omni_transformers.calls.lines import Compute
from omni_transformers.loading import load_model, load_processor
from omni_transformers.recognise.spans import Span, quiet_spans
from omni_transformers.recognise.text import UNSPACED
from omni_transformers.recognise.turns import recording

ARCHITECTURE = "Nemotron3DiarizationForAudioFrameClassification"
THRESHOLD = 0.5
LEAST = 0.3
"""Seconds of the shortest turn; a shorter one belongs to its neighbour."""

MOST = 30.0
"""Seconds of the longest part of a turn."""


@frozen
class Turn:
    """A part of a recording in which one speaker is heard more than the others, by number."""

    span: Span
    speaker: int


class Diarizer:
    """A streaming Sortformer.

    Args:
        path: folder or hub id of its checkpoint.

    Attributes:
        rate: of the recordings, in Hz.

    Raises:
        ConfigError: it cannot be loaded, or is none.
    """

    def __init__(self, path: str, dtype: str, device: str) -> None:
        folder = download(path)
        self._model = load_model(folder, dtype, device, part=ARCHITECTURE)
        self._processor = load_processor(folder)
        self._device = device
        features = self._processor.feature_extractor
        self.rate: int = features.sampling_rate
        self._hop: int = features.hop_length

    def levels(self, samples: Samples) -> Generator[None, None, npt.NDArray[np.float32]]:
        """Yield between the chunks of a recording; return how likely each speaker is heard, ``[frames, speakers]``.

        The model would go over all chunks in one call. Other requests go on between those here, which are the same.
        """
        config, found = self._model.config, list[torch.Tensor]()
        inputs = self._processor(samples, sampling_rate=self.rate, return_tensors="pt")
        inputs = inputs.to(self._device, self._model.dtype)
        step, total = config.audio_config.subsampling_factor, inputs["input_features"].shape[1]
        cache = SpeakerCache(
            config.streaming_config,
            fifo_length=config.fifo_length,
            speaker_cache_update_period=config.speaker_cache_update_period,
        )
        for begin in range(0, total, config.chunk_length * step):
            left = min(begin, config.chunk_left_context * step)
            end = min(begin + config.chunk_length * step, total)
            ahead = min(-(-(total - end) // step), config.chunk_right_context)
            part = slice(begin - left, min(end + ahead * step, total))
            with torch.inference_mode():
                made = self._model(
                    input_features=inputs["input_features"][:, part],
                    attention_mask=inputs["attention_mask"][:, part],
                    speaker_cache=cache,
                    num_lookahead_frames=ahead,
                    num_lookback_frames=left // step,
                )
            found.append(made.logits[0, : end - begin].float().cpu())
            yield
        return torch.cat(found).sigmoid().numpy()

    def turns(self, samples: Samples) -> Generator[None, None, list[Turn]]:
        """Yield between the chunks of a recording; return its turns, which cover it."""
        levels = yield from self.levels(samples)
        return turns_of(levels, self._hop, samples, self.rate)


def turns_of(levels: npt.NDArray[np.float32], hop: int, samples: Samples, rate: int) -> list[Turn]:
    """Return the turns of a recording, which cover it: silence belongs to the turn before it.

    Args:
        levels: how likely each speaker is heard, ``[frames, speakers]``.
        hop: samples of a frame.
    """
    loudest = np.where(levels.max(-1) > THRESHOLD, levels.argmax(-1), -1)
    borders = [0, *(np.flatnonzero(np.diff(loudest)) + 1).tolist(), len(loudest)]
    runs = [(begin, end, int(loudest[begin])) for begin, end in pairwise(borders) if end > begin]
    spoken = [each for each in runs if each[2] >= 0 and (each[1] - each[0]) * hop >= LEAST * rate]
    starts: list[tuple[int, int]] = []
    for begin, _, speaker in spoken or [(0, 0, 0)]:
        if not starts or starts[-1][1] != speaker:
            starts.append((begin * hop if starts else 0, speaker))
    ends = [*(begin for begin, _ in starts[1:]), len(samples)]
    found = []
    for (begin, speaker), end in zip(starts, ends, strict=True):
        for span in quiet_spans(samples[begin:end], rate, MOST):
            found.append(Turn(Span(begin + span.begin, begin + span.end), speaker))
    return found


def told_apart(words: Sequence[Word], turns: Sequence[Turn], rate: int) -> list[Word]:
    """Return words with their speakers: those of the turns in which their middles are."""
    ends = [each.span.end / rate for each in turns]
    places = [min(bisect_right(ends, (each.start + each.end) / 2), len(turns) - 1) for each in words]
    return [evolve(each, speaker=str(turns[at].speaker)) for each, at in zip(words, places, strict=True)]


def with_speakers(write: Compute, diarizer: Diarizer, group: str, seconds: float) -> Compute:
    """Return a generator function of a recogniser that also tells speakers, where a request asks for them (``diarize``).

    Args:
        write: that of the recogniser.
        group: of its request parameters, by name.
        seconds: the longest recording.
    """

    def written(payload: StagePayload) -> Generator[Any, None, Transcript]:
        asked = dict(payload.request.params.get(group) or {})
        if not asked.pop("diarize", False):
            return (yield from write(payload))
        samples = recording(payload.request, diarizer.rate, seconds)
        whole = _Whole(len(samples) / diarizer.rate)
        for turn in (yield from diarizer.turns(samples)):
            part = samples[turn.span.begin : turn.span.end]
            told = whole.add(
                (yield from _silently(write(_part(payload, part, diarizer.rate, group, asked)))), turn, diarizer.rate
            )
            yield told
        return whole.transcript(asked)

    return written


def _part(payload: StagePayload, samples: Samples, rate: int, group: str, asked: dict[str, Any]) -> StagePayload:
    content = [{"type": "audio", "samples": samples, "sample_rate": rate}]
    inputs = {"messages": [{"role": "user", "content": content}]}
    request: OmniRequest = evolve(payload.request, inputs=inputs, params={**payload.request.params, group: asked})
    return evolve(payload, request=request)


def _silently(values: Generator[Any, None, Transcript]) -> Generator[None, None, Transcript]:
    """Run a generator whose values nobody is told of."""
    with closing(values):
        while True:
            try:
                next(values)
            except StopIteration as end:
                found: Transcript = end.value
                return found
            yield


@define
class _Whole:
    """The transcript of a recording, of its turns so far."""

    seconds: float
    text: str = ""
    language: str | None = None
    segments: list[Segment] = field(factory=list)
    words: list[Word] = field(factory=list)
    logprobs: list[TokenLogprob] = field(factory=list)
    usage: dict[str, int] = field(factory=dict)
    notices: list[str] = field(factory=list)
    reason: str = "stop"

    def add(self, written: Transcript, turn: Turn, rate: int) -> TranscriptChunk:
        """Add what is written of a turn; return what that adds."""
        start, end, speaker = turn.span.begin / rate, turn.span.end / rate, str(turn.speaker)
        self.language = self.language or (written.language if written.text else None)
        gap = " " if self.text and written.text and self.language not in UNSPACED else ""
        words = [
            evolve(each, start=start + each.start, end=start + each.end, speaker=speaker) for each in written.words
        ]
        segments = [Segment(written.text, start, end, speaker)] if written.text else []
        self.text += gap + written.text
        self.segments += segments
        self.words += words
        self.logprobs += written.logprobs
        for name, count in written.usage.items():
            self.usage[name] = self.usage.get(name, 0) + count
        self.notices += written.notices
        if written.finish_reason == "length":
            self.reason = "length"
        return TranscriptChunk(gap + written.text, "", segments, words, written.logprobs)

    def transcript(self, asked: dict[str, Any]) -> Transcript:
        """Return the whole of it."""
        return Transcript(
            self.text,
            self.language or asked.get("language"),
            self.segments,
            self.words,
            self.seconds,
            self.reason,
            self.usage,
            self.notices,
            self.logprobs,
        )
