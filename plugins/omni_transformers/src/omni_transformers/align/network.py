"""A CTC recogniser that is told the text: its scores of a sound, and the tokens of words."""

from __future__ import annotations

import omni_transformers.stand_ins.first  # noqa: F401

# isort: split

import re
import unicodedata
from typing import Any

import numpy as np
import soxr
import torch

from omni_core.api import Word
from omni_media.api import Samples
from omni_transformers.align.viterbi import Scores, aligned
from omni_transformers.checkpoints import read
from omni_transformers.loading import load_model
from omni_transformers.recognise.frames import LEAST
from omni_transformers.recognise.processors import processor_of
from omni_transformers.recognise.spans import overlapping_spans

WINDOW, CONTEXT = 30.0, 5.0
"""Seconds of a window of a long sound, and of what is heard beside it."""

_ALONE = r"[\u3040-\u30ff\u3400-\u9fff]"
"""Characters of scripts without spaces, each of which is told as a word."""

_WORD = re.compile(rf"{_ALONE}|(?:(?!{_ALONE})\S)+")


class Network:
    """A CTC recogniser.

    Raises:
        ConfigError: the checkpoint cannot be loaded.
    """

    def __init__(self, model_path: str, device: str = "cpu", dtype: str = "auto") -> None:
        self._model, self._processor = load_model(model_path, dtype, device), processor_of(read(model_path))
        self._rate: int = self._processor.feature_extractor.sampling_rate
        self._tokenizer, self._device = self._processor.tokenizer, device
        self._vocabulary: dict[str, int] = self._tokenizer.get_vocab()
        self._spells = type(self._tokenizer).__name__ == "Wav2Vec2CTCTokenizer"

    def words(self, text: str, samples: Samples, rate: int) -> list[Word] | None:
        """Return the words of a text with their times in its sound.

        A word that the model cannot spell, such as a number, has the time that its neighbours leave. Marks alone are no words.

        Args:
            samples: float32 ``[n]``.
            rate: of the samples, in Hz.

        Returns:
            ``None``: the sound is too short for the text, or too long to be aligned.
        """
        spoken = [each for each in _WORD.findall(text) if any(map(str.isalnum, each))]
        if not spoken:
            return []
        if not len(samples):
            return None
        scores = self.scores(samples if rate == self._rate else soxr.resample(samples, rate, self._rate))
        tokens, spans = list[int](), list[tuple[int, int]]()
        gap = (
            self._vocabulary.get(getattr(self._tokenizer, "word_delimiter_token", None) or "") if self._spells else None
        )
        for word in spoken:
            if tokens and gap is not None:
                tokens.append(gap)
            own = self.spelt(word) or [scores.shape[1]]
            spans.append((len(tokens), len(tokens) + len(own)))
            tokens += own
        anything = np.concatenate(
            [scores, scores.max(1, keepdims=True)], 1
        )  # what cannot be spelt is in the last column
        found = aligned(anything, tokens, self._tokenizer.pad_token_id)
        if found is None:
            return None
        seconds = len(samples) / rate / len(scores)
        return [
            Word(word, found[begin][0] * seconds, found[end - 1][1] * seconds)
            for word, (begin, end) in zip(spoken, spans, strict=True)
        ]

    def scores(self, samples: Samples) -> Scores:
        """Return the logarithms of the probabilities of tokens, ``[frames, vocabulary]``, of a sound at the model's rate."""
        parts, least = [], round(LEAST * self._rate)
        for span in overlapping_spans(len(samples), self._rate, WINDOW, CONTEXT):
            heard = samples[span.begin : span.end]
            padded = np.pad(heard, (0, max(0, least - len(heard)))).astype(np.float32)
            inputs = self._processor(audio=[padded], sampling_rate=self._rate, return_tensors="pt")
            with torch.inference_mode():
                logits = self._model(**inputs.to(self._device, self._model.dtype)).logits[0]
            made = logits.float().log_softmax(-1).numpy(force=True)
            share = len(made) / len(padded)
            parts.append(made[round(span.left * share) : round((len(heard) - span.right) * share)])
        whole: Scores = np.concatenate(parts)
        return whole

    def spelt(self, word: str) -> list[int]:
        """Return the tokens of a word, without what the model does not know."""
        if not self._spells:
            ids: Any = self._tokenizer(word, add_special_tokens=False)["input_ids"]
            return [each for each in ids if each not in (self._tokenizer.unk_token_id, self._tokenizer.pad_token_id)]
        letters = unicodedata.normalize("NFC", word)
        return [token for each in letters if (token := self._letter(each)) is not None]

    def _letter(self, letter: str) -> int | None:
        plain = unicodedata.normalize("NFD", letter)[0]
        forms = (letter, letter.upper(), letter.lower(), plain.upper(), plain.lower())
        return next((self._vocabulary[each] for each in forms if each in self._vocabulary), None)
