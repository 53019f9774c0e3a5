"""Recognisers that write a whole window in one call: CTC by the likeliest token of each frame, transducers by their ``generate()``.

Each step computes the next window of several requests; those of equal length share a forward, so that nothing is padded.
"""

from __future__ import annotations

import omni_transformers.stand_ins.first  # noqa: F401

# isort: split

from abc import abstractmethod
from collections.abc import Generator, Hashable
from itertools import groupby
from typing import Any

import numpy as np
import soxr
import torch
from attrs import evolve, field, frozen

from omni_core.api import Segment, StagePayload, Transcript, TranscriptChunk, Word
from omni_media.api import Samples
from omni_transformers.checkpoints import read
from omni_transformers.loading import load_model
from omni_transformers.recognise.declaration import GROUP, SECONDS, group
from omni_transformers.recognise.languages import languages_of
from omni_transformers.recognise.live_windows import STEP, Form, LiveWindows
from omni_transformers.recognise.processors import processor_of
from omni_transformers.recognise.spans import Span, overlapping_spans, quiet_spans
from omni_transformers.recognise.speakers import Diarizer, Turn, told_apart
from omni_transformers.recognise.text import UNSPACED, Growing, decoded, in_order, pieces, segments, words
from omni_transformers.recognise.turns import asked_of, recording

LEAST = 0.5
"""Seconds of the shortest input; silence is put behind a shorter one."""


@frozen
class State:
    """A request: its spans, those that are written, and the text so far.

    Attributes:
        language: the model's own name of it; ``None``: not told.
        heard: of a CTC model, the tokens so far with their times.
        last: the token of its last frame.
        notices: of windows that a limit has cut.
        chunk: what the last step has added.
        finding: finds the turns of its speakers; ``None``: they are found, or are not asked for.
        turns: of its speakers.
    """

    samples: Samples
    asked: dict[str, Any]
    spans: list[Span]
    language: str | None
    done: int = 0
    heard: list[tuple[int, float, float]] = field(factory=list)
    last: int | None = None
    text: str = ""
    words: list[Word] = field(factory=list)
    tokens: int = 0
    notices: list[str] = field(factory=list)
    chunk: TranscriptChunk | None = None
    finding: Generator[None, None, list[Turn]] | None = None
    turns: list[Turn] = field(factory=list)


class Frames(LiveWindows[State]):
    """Writes a window of each request in a step.

    Args:
        batch_size: requests in a step.
        max_audio_seconds: the longest sound; ``None``: recordings end after :data:`SECONDS`, live ones go on.
        live_step: seconds of new sound after which that of a live request is written again.
        diarizer: folder or hub id of a diarizer that tells speakers.

    Raises:
        ConfigError: the checkpoint cannot be loaded.
    """

    def __init__(
        self,
        model_path: str,
        device: str = "cpu",
        dtype: str = "auto",
        batch_size: int = 8,
        max_audio_seconds: float | None = None,
        live_step: float = STEP,
        diarizer: str | None = None,
    ) -> None:
        source = read(model_path)
        self.model, self.processor = load_model(model_path, dtype, device), processor_of(source)
        self.tokenizer = self.processor.tokenizer
        self.rate: int = self.processor.feature_extractor.sampling_rate
        self._group, self._languages = group(source), languages_of(source)
        self._device, self._seconds = device, max_audio_seconds or SECONDS
        self._diarizer = None if diarizer is None else Diarizer(diarizer, dtype, device)
        form = Form(self.rate, GROUP, max_audio_seconds, step=live_step, times="word", is_timed=True)
        super().__init__(batch_size, form=form)

    @abstractmethod
    def spans(self, samples: Samples) -> list[Span]:
        """Divide a recording."""

    @abstractmethod
    def written(self, states: list[State], samples: list[Samples]) -> list[State]:
        """Return the states with the text of their next windows, ``samples`` of equal lengths, and its words if asked for."""

    def begin(self, payload: StagePayload) -> State:
        asked = asked_of(payload, self._group)
        samples = recording(payload.request, self.rate, self._seconds)
        state = State(samples, asked, self.spans(samples), self._languages.of(asked, self._group))
        if self._diarizer is None or not payload.request.params.get(GROUP, {}).get("diarize"):
            return state
        own = samples if self._diarizer.rate == self.rate else soxr.resample(samples, self.rate, self._diarizer.rate)
        return evolve(state, finding=self._diarizer.turns(own))

    def key(self, state: State) -> Hashable:
        if state.finding is not None:
            return id(state)
        span = state.spans[state.done]
        return span.end - span.begin, state.language

    def work(self, state: State) -> float:
        return float(len(state.spans) - state.done)

    def step(self, states: list[State]) -> list[State]:
        if states[0].finding is not None:
            return [self._found(states[0], states[0].finding)]
        spans = [each.spans[each.done] for each in states]
        with torch.inference_mode():
            made = self.written(
                states, [each.samples[span.begin : span.end] for each, span in zip(states, spans, strict=True)]
            )
        return [self._told(before, after) for before, after in zip(states, made, strict=True)]

    def _found(self, state: State, finding: Generator[None, None, list[Turn]]) -> State:
        """Return the state with a chunk more heard by the diarizer."""
        try:
            next(finding)
        except StopIteration as end:
            return evolve(state, finding=None, turns=end.value)
        return state

    def _told(self, before: State, after: State) -> State:
        done = before.done + 1
        text = Growing(before.text)
        piece = text.add(after.text, complete=done == len(before.spans))
        return evolve(after, done=done, text=text.text, chunk=TranscriptChunk(piece) if piece else None)

    def inputs(self, samples: list[Samples], **given: Any) -> Any:
        """Return the model's inputs of windows of equal lengths."""
        least = round(LEAST * self.rate)
        padded = [np.pad(each, (0, max(0, least - len(each)))) for each in samples]
        made = self.processor(audio=padded, sampling_rate=self.rate, return_tensors="pt", **given)
        return made.to(self._device, self.model.dtype)

    def is_done(self, state: State) -> bool:
        return state.done == len(state.spans)

    def progress(self, state: State) -> TranscriptChunk | None:
        timed, told = self._times(state) if self.is_done(state) else ([], [])
        return evolve(state.chunk or TranscriptChunk(""), segments=timed, words=told) if timed else state.chunk

    def _times(self, state: State) -> tuple[list[Segment], list[Word]]:
        """Return the segments and words of a request that is done, as far as it asks for them."""
        if state.asked["timestamps"] == "none" and not state.turns:
            return [], []
        found = in_order(self.all_words(state), len(state.samples) / self.rate)
        if state.turns and self._diarizer is not None:
            found = told_apart(found, state.turns, self._diarizer.rate)
        return segments(found), found if state.asked["timestamps"] == "word" else []

    def all_words(self, state: State) -> list[Word]:
        """Return the words of a request that is done, with their times."""
        return state.words

    def finish(self, state: State) -> Transcript:
        timed, told = self._times(state)
        usage = {"prompt_tokens": 0, "completion_tokens": state.tokens}
        language, duration = state.asked.get("language"), len(state.samples) / self.rate
        end = "length" if state.notices else "stop"
        return Transcript(state.text, language, timed, told, duration, end, usage, state.notices)


class Ctc(Frames):
    """A CTC model. A long recording is heard in windows of 30 s with 5 s of context; their frames are joined before they are decoded."""

    WINDOW, CONTEXT = 30.0, 5.0

    def spans(self, samples: Samples) -> list[Span]:
        return overlapping_spans(len(samples), self.rate, self.WINDOW, self.CONTEXT)

    def written(self, states: list[State], samples: list[Samples]) -> list[State]:
        inputs = self.inputs(samples)
        own = getattr(self.model, "generate", None)
        ids = own(**inputs) if own is not None else self.model(**inputs).logits.argmax(-1)
        return [self._joined(state, each) for state, each in zip(states, ids.tolist(), strict=True)]

    def _joined(self, state: State, ids: list[int]) -> State:
        """Return the state with the frames of a window: runs of a token are one, also over the bounds of windows."""
        span, blank = state.spans[state.done], self.tokenizer.pad_token_id
        share = len(ids) / max(span.end - span.begin, round(LEAST * self.rate))
        begin, end = span.left, span.end - span.begin - span.right
        kept = ids[round(begin * share) : round(end * share)]
        bounds = ((span.begin + span.left) / self.rate, (span.end - span.right) / self.rate)
        at = np.linspace(*bounds, len(kept) + 1).tolist()
        heard, number = list(state.heard), 0
        for token, run in groupby(kept):
            count = len(list(run))
            if token != blank and number == 0 and token == state.last:
                heard[-1] = (token, heard[-1][1], at[count])
            elif token != blank:
                heard.append((token, at[number], at[number + count]))
            number += count
        text = decoded(self.tokenizer, [token for token, _, _ in heard], group_tokens=False)
        return evolve(state, heard=heard, last=kept[-1] if kept else state.last, text=text, tokens=len(heard))

    def all_words(self, state: State) -> list[Word]:
        starts, ends = [start for _, start, _ in state.heard], [end for _, _, end in state.heard]
        return words(pieces(self.tokenizer, [token for token, _, _ in state.heard], starts, ends))


class Transducer(Frames):
    """A transducer. A long recording is divided at quiet places, about every minute."""

    WINDOW = 60.0

    def spans(self, samples: Samples) -> list[Span]:
        return quiet_spans(samples, self.rate, self.WINDOW)

    def written(self, states: list[State], samples: list[Samples]) -> list[State]:
        told = {"language": [each.language for each in states]} if states[0].language is not None else {}
        inputs, config = self.inputs(samples, **told), self.model.config
        frames = inputs["input_features"].shape[1] // config.encoder_config.subsampling_factor + 2
        most = config.max_symbols_per_step * frames
        made = self.model.generate(**inputs, return_dict_in_generate=True, max_new_tokens=most)
        texts, times = self.processor.decode(made.sequences, durations=made.durations, skip_special_tokens=True)
        rows = [each[1:] for each in made.sequences.tolist()]
        return [self._added(*each, most) for each in zip(states, texts, times, rows, strict=True)]

    def _added(self, state: State, text: str, times: list[dict[str, Any]], ids: list[int], most: int) -> State:
        span = state.spans[state.done]
        offset, end = span.begin / self.rate, span.end / self.rate
        cut = len(ids) == most and ids[-1] != self.tokenizer.pad_token_id
        notices = [f"the text from {offset:.1f} to {end:.1f} s was cut: {most} tokens"] if cut else []
        parts = [(each["token"], offset + each["start"], offset + each["end"]) for each in times]
        unspaced = state.language is not None and state.language.split("-")[0] in UNSPACED
        gap = "" if unspaced or not state.text or not text.strip() else " "
        own = {self.processor.blank_token_id, self.tokenizer.pad_token_id}
        return evolve(
            state,
            text=f"{state.text}{gap}{text.strip()}",
            words=[*state.words, *words(parts, not unspaced)],
            tokens=state.tokens + sum(each not in own for each in ids),
            notices=[*state.notices, *notices],
        )


create_ctc, create_transducer = Ctc, Transducer
