"""Recognisers that write token by token with ``generate()``: any encoder and decoder of transformers."""

from __future__ import annotations

import omni_transformers.stand_ins.first  # noqa: F401

# isort: split

from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import torch
from attrs import frozen
from transformers.generation.stopping_criteria import StoppingCriteriaList

from omni_core.api import Scheduler, Segment, StagePayload, TokenLogprob, Transcript, TranscriptChunk
from omni_media.api import Samples
from omni_transformers.calls.choice import Loop, calls_of
from omni_transformers.calls.lines import Compute, in_turns
from omni_transformers.checkpoints import read
from omni_transformers.loading import generation_config, load_model
from omni_transformers.logprobs import ask, chosen, told
from omni_transformers.recognise.declaration import GROUP, SECONDS, group
from omni_transformers.recognise.languages import languages_of
from omni_transformers.recognise.live_windows import STEP, Form, LiveInterleaved
from omni_transformers.recognise.processors import processor_of
from omni_transformers.recognise.spans import quiet_spans
from omni_transformers.recognise.speakers import Diarizer, with_speakers
from omni_transformers.recognise.text import UNSPACED, Growing, decoded
from omni_transformers.recognise.turns import EachToken, Report, asked_of, own_random, recording

WINDOW = 30.0
"""Seconds that are written in one call; a longer recording is divided at quiet places."""

TOKENS = 448
"""The most tokens of a window, where the generation config says nothing."""

_LIBRARY_DEFAULT = 20
"""``max_length`` of a generation config that says nothing."""


@frozen
class Asked:
    """The request for a window: the model's own codes of the language that is spoken and of that which is written."""

    spoken: str | None
    written: str | None


Inputs = Callable[[Any, Samples, int, Asked], tuple[Any, dict[str, Any]]]
"""The inputs of a window and further arguments of ``generate()``, of a processor, a recording and its rate."""


def _plain(processor: Any, samples: Samples, rate: int, asked: Asked) -> tuple[Any, dict[str, Any]]:
    return processor(audio=samples, sampling_rate=rate, return_tensors="pt"), {}


def _seamless(processor: Any, samples: Samples, rate: int, asked: Asked) -> tuple[Any, dict[str, Any]]:
    return processor(audio=samples, sampling_rate=rate, return_tensors="pt"), {"tgt_lang": asked.written}


def _cohere(processor: Any, samples: Samples, rate: int, asked: Asked) -> tuple[Any, dict[str, Any]]:
    made = processor(audio=samples, language=asked.spoken, sampling_rate=rate, return_tensors="pt")
    made.pop("audio_chunk_index", None)
    return made, {}


def _canary(processor: Any, samples: Samples, rate: int, asked: Asked) -> tuple[Any, dict[str, Any]]:
    made = processor.apply_transcription_request(
        samples, source_language=asked.spoken, target_language=asked.written, sampling_rate=rate
    )
    return made, {}


ADAPTERS: dict[str, Inputs] = {
    "SeamlessM4TForSpeechToText": _seamless,
    "SeamlessM4Tv2ForSpeechToText": _seamless,
    "CohereAsrForConditionalGeneration": _cohere,
    "CanaryForConditionalGeneration": _canary,
}
"""By architecture, of models whose processor needs more than the recording."""


class _Recogniser:
    """A recogniser. Args: as :func:`create_generated`."""

    def __init__(self, model_path: str, device: str, dtype: str, seconds: float) -> None:
        source = read(model_path)
        self.model, self._processor = load_model(model_path, dtype, device), processor_of(source)
        self._tokenizer, self._device, self._seconds = self._processor.tokenizer, device, seconds
        self.rate: int = self._processor.feature_extractor.sampling_rate
        self._group, self._languages = group(source), languages_of(source)
        self._inputs = ADAPTERS.get(source.architecture.name, _plain)
        ends = self.model.generation_config.eos_token_id
        self._ends = set() if ends is None else {ends} if isinstance(ends, int) else set(ends)

    def write(self, payload: StagePayload) -> Generator[Any, None, Transcript]:
        """Write a recording down."""
        return (yield from in_turns(lambda report: self._transcript(payload, report)))

    def _transcript(self, payload: StagePayload, report: Report) -> Transcript:
        given = asked_of(payload, self._group)
        report = own_random(report, given["seed"], self._device)
        spoken = self._languages.of(given, self._group)
        translates = given.get("task") == "translate"
        asked = Asked(spoken, self._languages.codes.get("en") if translates else spoken)
        samples = recording(payload.request, self.rate, self._seconds)
        language = "en" if translates else given.get("language")
        text, segments, notices, count = Growing(), list[Segment](), list[str](), 0
        logprobs: list[TokenLogprob] = []
        gap = "" if language in UNSPACED else " "
        timed = given["timestamps"] != "none"
        for span in quiet_spans(samples, self.rate, WINDOW):
            start, end = span.begin / self.rate, span.end / self.rate
            before = f"{text.text}{gap}" if text.text else ""

            def heard(ids: list[int] | None, before: str = before) -> None:
                piece = (
                    ""
                    if ids is None or given["logprobs"]
                    else text.add(before + decoded(self._tokenizer, ids).lstrip())
                )
                report(TranscriptChunk(piece) if piece else None)

            ids, levels = self._written(
                samples[span.begin : span.end], asked, float(given["temperature"]), heard, bool(given["logprobs"])
            )
            own = decoded(self._tokenizer, ids).strip()
            found = [Segment(own, start, end, token_ids=ids)] if timed and own else []
            segments += found
            tokens = told(self._tokenizer, ids, levels) if levels else []
            logprobs += tokens
            report(TranscriptChunk(text.add(before + own, complete=True), "", found, [], tokens))
            count += len(ids)
            if not ids or ids[-1] not in self._ends:
                notices.append(f"the text from {start:.1f} to {end:.1f} s was cut by the model's limit on tokens")
        usage = {"prompt_tokens": 0, "completion_tokens": count}
        reason = "length" if notices else "stop"
        seconds = len(samples) / self.rate
        return Transcript(text.text, given.get("language"), segments, [], seconds, reason, usage, notices, logprobs)

    def _written(
        self,
        samples: Samples,
        asked: Asked,
        temperature: float,
        heard: Callable[[list[int] | None], None],
        logprobs: bool,
    ) -> tuple[list[int], list[float]]:
        """Return the tokens that ``generate()`` writes of a window, and their log probabilities, if they are wanted.

        Args:
            heard: gets the tokens so far; ``None``: they may still change.
        """
        least = np.pad(samples, (0, max(0, self.rate // 10 - len(samples))))
        inputs, further = self._inputs(self._processor, least, self.rate, asked)
        config = generation_config(self.model)
        if config.max_new_tokens is None and config.max_length in (None, _LIBRARY_DEFAULT):
            config.max_new_tokens, config.max_length = TOKENS, None
        if temperature:
            config.do_sample, config.num_beams, config.temperature = True, 1, temperature
        if logprobs:
            ask(config)
        begin: list[int] = []

        def each_token(so_far: torch.Tensor) -> None:
            begin.append(so_far.shape[1] - 1)
            heard(None if (config.num_beams or 1) > 1 else so_far[0, begin[0] :].tolist())

        made = self.model.generate(
            **inputs.to(self._device, self.model.dtype),
            generation_config=config,
            stopping_criteria=StoppingCriteriaList([EachToken(each_token)]),
            **further,
        )
        ids: list[int] = (made["sequences"] if logprobs else made)[0, begin[0] :].tolist()
        return ids, chosen(made, len(ids)) if logprobs else []


def create_generated(
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
    made = _Recogniser(model_path, device, dtype, max_audio_seconds or SECONDS)
    running = 1 if backend == "generate" else max_running
    calls = calls_of(Loop(made.model), backend, running, kv_cache_mb)
    write: Compute = made.write
    if diarizer is not None:
        write = with_speakers(write, Diarizer(diarizer, dtype, device), GROUP, max_audio_seconds or SECONDS)
    return LiveInterleaved(write, running, calls, form=Form(made.rate, GROUP, max_audio_seconds, WINDOW, live_step))
