"""Speakers that make the spectrogram of a sentence, and its sound by a vocoder: SpeechT5, FastSpeech2."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from omni_core.api import ConfigError
from omni_transformers.loading import load_processor
from omni_transformers.speak.speaker import Asked, BySentence, Loading
from omni_transformers.speak.speaks import FASTSPEECH2_RATE
from omni_transformers.speak.turns import reported, turn_after
from omni_transformers.speak.voices import voice_files


class SpeechT5(BySentence):
    """SpeechT5 with its vocoder and the x-vectors of its voices. A sentence that is longer than its text may be is cut between words."""

    def __init__(self, loading: Loading) -> None:
        self._voices = {name: _vector(path) for name, path in voice_files(loading.source, loading.voices).items()}
        if not self._voices:
            raise ConfigError(
                f"{loading.model_path}: needs the vector of a voice (an x-vector): put NAME.npy into its folder voices/, or give a "
                "folder: --option voices=..."
            )
        self._model, self._tokenizer = loading.model(), load_processor(loading.model_path, "AutoTokenizer")
        self._vocoder = loading.part("SpeechT5HifiGan")
        self.rate = self._vocoder.config.sampling_rate
        turn_after(self._model.speecht5.decoder.wrapped_decoder)

    def say(self, sentence: str, asked: Asked) -> Iterator[torch.Tensor | None]:
        ids = self._tokenizer(sentence, return_tensors="pt")["input_ids"].to(self._model.device)
        if ids.shape[1] > self._model.config.max_text_positions:
            middle = sentence.rfind(" ", 0, len(sentence) // 2) + 1 or len(sentence) // 2
            yield from self.say(sentence[:middle], asked)
            yield from self.say(sentence[middle:], asked)
            return
        vector = self._voices[asked.named(self._voices)].to(self._model.device, self._model.dtype)
        yield (yield from reported(lambda: self._model.generate_speech(ids, vector, vocoder=self._vocoder)))


def _vector(path: Path) -> torch.Tensor:
    """Return a voice's vector, ``[1, n]``."""
    try:
        if path.suffix == ".npy":
            return torch.from_numpy(np.load(path, allow_pickle=False)).float().reshape(1, -1)
        [vector] = load_file(path).values()
    except Exception as error:
        raise ConfigError(f"{path}: holds no vector of a voice: {error}") from error
    return vector.float().reshape(1, -1)


class FastSpeech2(BySentence):
    """FastSpeech2Conformer, with the vocoder of its checkpoint or one of its own."""

    rate = FASTSPEECH2_RATE

    def __init__(self, loading: Loading) -> None:
        model, self._tokenizer = loading.model(), load_processor(loading.model_path, "AutoTokenizer")
        self._model, vocoder = getattr(model, "model", model), getattr(model, "vocoder", None)
        self._vocoder = vocoder or loading.part("FastSpeech2ConformerHifiGan")
        self._speaking = self._model.config
        self._speed = self._speaking.speaking_speed

    def say(self, sentence: str, asked: Asked) -> Iterator[torch.Tensor | None]:
        ids = self._tokenizer(sentence, return_tensors="pt")["input_ids"].to(self._model.device)
        self._speaking.speaking_speed = self._speed / asked.given.get("speed", 1.0)  # it multiplies durations
        try:
            yield self._vocoder(self._model(ids, return_dict=True).spectrogram)
        finally:
            self._speaking.speaking_speed = self._speed
