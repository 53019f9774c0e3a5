"""Speakers that generate tokens, by token in turns, and make the sound of a sentence at its end: Bark, SeamlessM4T, MusicGen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from omni_core.api import InvalidRequestError
from omni_transformers.loading import load_processor
from omni_transformers.speak.speaker import Asked, BySentence, Loading, Speaker, chosen
from omni_transformers.speak.turns import reported, turn_after
from omni_transformers.speak.voices import bark_presets

_PROMPTS = ("semantic_prompt", "coarse_prompt", "fine_prompt")

_MOST = 256
"""Tokens of a sentence; Bark's own code drops what is more."""

_MUSIC = 1500
"""Frames that MusicGen makes where nothing says how many: 30 seconds, for which it was trained."""


class Bark(BySentence):
    """Bark, with the voice presets of its folder."""

    def __init__(self, loading: Loading) -> None:
        self._model, self._tokenizer = loading.model(), load_processor(loading.model_path, "AutoTokenizer")
        self.rate = self._model.generation_config.sample_rate
        self._presets = {name: _preset(files) for name, files in bark_presets(loading.source).items()}
        turn_after(self._model.semantic, self._model.coarse_acoustics, self._model.fine_acoustics)

    def say(self, sentence: str, asked: Asked) -> Iterator[torch.Tensor | None]:
        given = {
            "padding": "max_length",
            "max_length": _MOST,
            "add_special_tokens": False,
            "return_token_type_ids": False,
        }
        inputs = self._tokenizer(sentence, return_tensors="pt", **given)
        if inputs["input_ids"].shape[1] > _MOST:
            raise InvalidRequestError(
                f"{sentence[:40]!r}...: a sentence has {_MOST} tokens at most; make several of it"
            )
        device = self._model.device
        voice = None
        if asked.voice is not None:
            voice = {name: each.to(device) for name, each in self._presets[asked.named(self._presets)].items()}
        call = {"history_prompt": voice, **inputs.to(device)}
        yield (yield from reported(lambda: self._model.generate(**call)))[0]


def _preset(files: dict[str, Path]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(np.load(files[name], allow_pickle=False)) for name in _PROMPTS}


class Seamless(BySentence):
    """SeamlessM4T, versions 1 and 2: says a text in a language, translated where it is another one than the text's."""

    _speaker = "spkr_id"

    def __init__(self, loading: Loading) -> None:
        self._model, self._tokenizer = loading.model(), load_processor(loading.model_path, "AutoTokenizer")
        self.rate = self._model.config.sampling_rate
        self._speakers = [str(number) for number in range(self._model.config.vocoder_num_spkrs)]
        languages = self._model.generation_config
        self._spoken = [*languages.vocoder_lang_code_to_id]
        self._written = [*languages.text_decoder_lang_to_code_id]
        turn_after(self._model.text_decoder, self._model.t2u_model)

    def say(self, sentence: str, asked: Asked) -> Iterator[torch.Tensor | None]:
        language = asked.given.get("language") or ("eng" if "eng" in self._spoken else self._spoken[0])
        written = asked.given.get("text_language") or language
        for name, value, known in (("language", language, self._spoken), ("text_language", written, self._written)):
            if value not in known:
                raise InvalidRequestError(f"params.{name}: must be one of {', '.join(known)}, is {value!r}")
        self._tokenizer.src_lang = written
        inputs = self._tokenizer(sentence, return_tensors="pt").to(self._model.device)
        call = {"tgt_lang": language, self._speaker: int(asked.named(self._speakers))}
        waveform, lengths = yield from reported(lambda: self._model.generate(**inputs, **call))
        yield waveform.reshape(-1)[: int(lengths)]


class SeamlessV2(Seamless):
    """SeamlessM4T v2."""

    _speaker = "speaker_id"


class MusicGen(Speaker):
    """MusicGen and MusicGen Melody: the sound that a text describes, as one piece."""

    cuts = False

    def __init__(self, loading: Loading) -> None:
        self._model: Any = loading.model()
        self._tokenizer = load_processor(loading.model_path, "AutoTokenizer")
        self.rate = self._model.config.audio_encoder.sampling_rate
        turn_after(self._model.decoder)

    def speak(self, asked: Asked) -> Iterator[torch.Tensor | None]:
        inputs = self._tokenizer(asked.text, return_tensors="pt").to(self._model.device)
        config = chosen(self._model, asked.given)
        if not config.max_new_tokens and not config.max_length:
            config.max_new_tokens = _MUSIC
        call = {"generation_config": config, **inputs}
        sound = yield from reported(lambda: self._model.generate(**call))
        yield sound[0].mean(0)  # of a stereo model, both channels
