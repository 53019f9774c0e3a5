"""A Whisper on one window of a recording: its language, whether somebody speaks, and what ``generate()`` writes of it."""

from __future__ import annotations

import copy
import math
import zlib
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cached_property
from typing import Any

import numpy as np
import torch
from attrs import define, evolve, field, frozen
from torch.nn import functional
from transformers import LogitsProcessor
from transformers.generation.logits_process import LogitsProcessorList
from transformers.generation.stopping_criteria import StoppingCriteriaList

from omni_core.api import InvalidRequestError
from omni_media.api import Samples
from omni_transformers.checkpoints import read
from omni_transformers.loading import generation_config, load_model
from omni_transformers.logprobs import last_logits, logprob
from omni_transformers.recognise.declaration import GROUP, is_multilingual
from omni_transformers.recognise.processors import processor_of
from omni_transformers.recognise.turns import EachToken

THRESHOLDS = {"compression_ratio_threshold": 1.35, "logprob_threshold": -1.0, "no_speech_threshold": 0.6}
"""Defaults, where the generation config says nothing: those that transformers recommends."""


@define
class Written:
    """The text that was written of one window.

    Attributes:
        ids: its tokens, without the one that ends it.
        ended: by that token, not by the model's limit on tokens.
        logprob: the mean of its tokens.
        prompt: the number of tokens that they follow.
        ends: of each token, in seconds of the window; empty unless words were asked for.
        no_speech: the probability that nobody speaks.
        temperature: that it was sampled at.
        said: the text before the tokens.
        levels: log probabilities of the tokens by the model's own logits, if they were wanted.
    """

    ids: list[int]
    ended: bool
    logprob: float
    prompt: int
    ends: list[float] = field(factory=list)
    no_speech: float = 0.0
    temperature: float = 0.0
    said: str = ""
    levels: list[float] = field(factory=list)


@frozen
class Part:
    """A part of a window: which of its tokens, and its seconds in the window."""

    begin: int
    end: int
    start: float
    stop: float


class _Scores(LogitsProcessor):
    """Keeps the scores of the next token, after all rules and before the temperature."""

    last: torch.Tensor

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.last = scores
        return scores


class Windows:
    """The network and the processor of a Whisper.

    Attributes:
        rate: of the recordings, in Hz.
        hop: seconds of a frame.
        frames: of a window.
        first_time: the first token that tells a time; ``None``: it tells none.
        languages: it hears several, and is told which.
        ends: the tokens that end a text; those of the text are below them.
        thresholds: that say whether a window is written again.
    """

    def __init__(self, model_path: str, device: str, dtype: str) -> None:
        source = read(model_path)
        self.model, self.processor = load_model(model_path, dtype, device), processor_of(source)
        self.device, self.tokenizer = device, self.processor.tokenizer
        self.config = self.model.generation_config
        given = source.generation
        self.thresholds = {name: given.get(name, usual) for name, usual in THRESHOLDS.items()}
        for name in THRESHOLDS:  # applied by the caller; the model would need the sound for it
            setattr(self.config, name, None)
        self.languages = is_multilingual(self.config.to_dict())
        ends = self.config.eos_token_id
        self.ends = {ends} if isinstance(ends, int) else set(ends)
        features, encoder = self.processor.feature_extractor, self.model.get_encoder()
        self.rate, self.hop = features.sampling_rate, features.hop_length / features.sampling_rate
        self._stride = encoder.conv1.stride[0] * encoder.conv2.stride[0]
        self.frames = self._stride * self.model.config.max_source_positions
        without = getattr(self.config, "no_timestamps_token_id", None)
        self.first_time = None if without is None else without + 1
        self._begins: dict[tuple[str | None, str | None], list[int]] = {}

    @cached_property
    def _eager(self) -> Any:
        """The model with the attention that shows its weights; its parameters are those of the other one."""
        own = [value for module in self.model.modules() for value in vars(module).values()]
        packed = [each for each in own if isinstance(each, torch.Tensor)]  # opaque ones cannot be copied
        shared = {id(each): each for each in (*self.model.parameters(), *self.model.buffers(), *packed)}
        model = copy.deepcopy(self.model, shared)
        for each in model.modules():
            vars(each).pop("forward", None)  # a door in front of the other model's
        model.set_attn_implementation("eager")
        return model

    def features(self, samples: Samples, one_window: bool) -> torch.Tensor:
        """Return log-mel features ``[1, bins, frames]``, of silence to the end of a window if ``one_window``."""
        least = np.pad(samples, (0, max(0, self.rate // 10 - len(samples))))
        given = {} if one_window else {"truncation": False, "padding": "longest"}
        made = self.processor.feature_extractor(least, sampling_rate=self.rate, return_tensors="pt", **given)
        features: torch.Tensor = made.input_features.to(self.device, self.model.dtype)
        return features

    def encoded(self, features: torch.Tensor) -> Any:
        """Return the encoder's output of a window; one of fewer frames is filled with zeros, as transformers does."""
        return self.model.get_encoder()(functional.pad(features, (0, self.frames - features.shape[-1])))

    def language(self, encoded: Any) -> str:
        """Return the language that is spoken."""
        [number] = self.model.detect_language(encoder_outputs=encoded).tolist()
        return next(name for name, each in self.config.lang_to_id.items() if each == number).strip("<|>")

    def no_speech(self, encoded: Any, prompt: Sequence[int]) -> float:
        """Return the probability that nobody speaks in a window; 0 of a checkpoint that tells no times, which has no token for it."""
        if self.first_time is None:
            return 0.0
        ids = torch.tensor([[*prompt, self.config.decoder_start_token_id]], device=self.device)
        logits = self.model(encoder_outputs=encoded, decoder_input_ids=ids, use_cache=False).logits[0, -1]
        return float(logits.float().softmax(-1)[self.first_time - 2])

    def prompt_ids(self, text: str) -> list[int]:
        """Return the tokens of a prompt; of a long one, the last that the model reads.

        Raises:
            InvalidRequestError: it holds a special token.
        """
        try:
            ids: list[int] = self.processor.get_prompt_ids(text).tolist()
        except ValueError as error:
            raise InvalidRequestError(f"params.{GROUP}.prompt: {error}") from None
        most = self.model.config.max_target_positions // 2 - 1
        return [ids[0], *ids[1:][1 - most :]]

    def written(
        self,
        encoded: Any,
        temperature: float,
        told: Callable[[list[int]], None],
        times: bool,
        word_frames: int | None,
        said: str = "",
        levels: bool = False,
        **given: Any,
    ) -> Written:
        """Return what ``generate()`` writes of a window.

        Args:
            told: is called after each token, with those so far.
            times: the model tells times.
            word_frames: frames of the window that are no padding, if the times of words are wanted.
            said: the text that the window is known to begin with, which is not written again; nothing, where times are told.
            levels: log probabilities are wanted.
            given: further arguments of ``generate()``.
        """
        scores, logprobs, ids, found, raw = _Scores(), list[float](), list[int](), list[float](), list[torch.Tensor]()

        def each_token(so_far: torch.Tensor) -> None:
            level = torch.log_softmax(scores.last[0].float(), -1)
            logprobs.append(float(level[so_far[0, -1]]))
            ids[:] = so_far[0].tolist()
            found.extend(logprob(each, ids[-1]) for each in raw)
            told(ids[-len(logprobs) :])

        model = self.model
        if word_frames is not None:
            mask = torch.ones(1, word_frames, dtype=torch.long, device=self.device)
            model, given = self._eager, {**given, "return_token_timestamps": True, "attention_mask": mask}
        config = generation_config(model)
        config.num_beams, config.top_k = 1, 0
        asked, prompt = (given.get("language"), given.get("task")), [*map(int, given.get("prompt_ids", ()))]
        row = [*prompt, *self._begins.get(asked, []), *self.tokenizer.encode(said, add_special_tokens=False)]
        if times or asked not in self._begins or 2 * len(row) > self.model.config.max_target_positions:
            said = ""
        if said:
            given["decoder_input_ids"] = torch.tensor([row], device=self.device)
            config.begin_suppress_tokens = []  # it may end at once
        with last_logits(model) if levels else nullcontext(raw) as raw:
            made = model.generate(
                encoder_outputs=encoded,
                generation_config=config,
                temperature=temperature,
                return_timestamps=times,
                force_unique_generate_call=True,
                logits_processor=LogitsProcessorList([scores]),
                stopping_criteria=StoppingCriteriaList([EachToken(each_token)]),
                **given,
            )
        count, ended = len(logprobs), ids[-1] in self.ends
        ends = [] if word_frames is None else made["token_timestamps"][0, -count:].tolist()
        if not said and not times:
            self._begins[asked] = ids[len(prompt) : -count]
        own = ids[-count:-1] if ended else ids[-count:]
        return Written(
            own, ended, sum(logprobs) / count, len(ids) - count, ends, 0.0, temperature, said, found[: len(own)]
        )

    def repetition(self, written: Written) -> float:
        """Return the ratio by which the tokens are compressed, as bytes."""
        size = int(math.log2(self.model.config.vocab_size) / 8) + 1
        ids = [*written.ids, *([min(self.ends)] if written.ended else [])]
        data = b"".join(each.to_bytes(size, "little") for each in ids)
        return len(data) / len(zlib.compress(data))

    def parts(self, written: Written, frames: int) -> tuple[list[Part], int, bool]:
        """Return the parts of a window, how many of its ``frames`` they say, and whether the model's limit has cut what is said there.

        Two times in a row end a part and begin the next one. What follows the last of them is left for the next window.
        """
        ids, first = written.ids, self.first_time or 0
        step = self._stride * self.hop
        stamps = [each >= first for each in ids]
        cuts = [number + 1 for number in range(len(ids) - 1) if stamps[number] and stamps[number + 1]]
        if not cuts:
            last = next((each - first for each in reversed(ids) if each >= first), 0) or frames // self._stride
            return [Part(0, len(ids), 0.0, last * step)], frames, not written.ended
        silent = stamps[-2:] == [False, True]
        if silent:  # nobody speaks behind the last time
            cuts.append(len(ids))
        spans = zip([0, *cuts[:-1]], cuts, strict=True)
        found = [Part(begin, end, (ids[begin] - first) * step, (ids[end - 1] - first) * step) for begin, end in spans]
        if silent:
            return found, frames, not written.ended
        found[-1] = evolve(found[-1], end=cuts[-1] + 1)  # both times, which say that the part has an end
        said = (ids[cuts[-1] - 1] - first) * self._stride
        return found, said if said > 0 else frames, False
