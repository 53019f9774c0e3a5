"""Higgs Audio v2: a language model whose codes are those of a codec of its own, each codebook a frame behind the one before."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch

from omni_transformers.calls.choice import Loop
from omni_transformers.loading import CLASSES
from omni_transformers.speak.decoding import Windows, reach_of
from omni_transformers.speak.parts import processor_of
from omni_transformers.speak.speaker import CUT, Asked, Loading, Speaker, chosen
from omni_transformers.speak.turns import report, reported, watch

CODEC = "HiggsAudioV2TokenizerModel"


class Higgs(Speaker):
    """Higgs Audio v2."""

    reference = True

    def __init__(self, loading: Loading) -> None:
        CLASSES.setdefault(CODEC, codec_class())
        self._model: Any = loading.model()
        self.loop = Loop(self._model, self._model.model)
        self._codec: Any = loading.part(CODEC)
        self._processor = processor_of(loading, "HiggsAudioV2Processor", self._codec)
        self.rate = self._codec.config.sample_rate
        self._reach = reach_of(self._codec.acoustic_decoder)
        if watch(self._model):
            self._model.register_forward_pre_hook(_report_frame, with_kwargs=True)

    def speak(self, asked: Asked) -> Iterator[torch.Tensor | None]:
        model, codec = self._model, self._codec
        talk = [("system", "text", "Generate audio following instruction."), ("user", "text", asked.text)]
        sounds = None
        if asked.reference is not None:
            recording, said = asked.reference
            talk[1:1] = [("user", "text", said or ""), ("assistant", "audio", "")]
            sounds = [recording]
        messages = [{"role": role, "content": [{"type": kind, kind: value}]} for role, kind, value in talk]
        text = self._processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        inputs = self._processor(text=text, audio=sounds, return_tensors="pt").to(model.device)
        config = chosen(model, asked.given, inputs["input_ids"].shape[1], model.config.max_position_embeddings)
        most, books = model.config.audio_stream_bos_id - 1, model.config.num_codebooks
        hop = codec.config.hop_length
        sound = Windows(lambda codes: codec.decode(codes[None]).audio_values.reshape(-1), hop, self._reach)
        rows: list[torch.Tensor] = []
        ended = False
        for row in self._rows(inputs, config):
            ended = ended or bool((row == model.config.audio_stream_eos_id).all())
            rows.append(row)
            if ended or len(rows) <= books:  # the first row is a mark
                yield None
                continue
            frame = torch.stack([rows[book - books][book] for book in range(books)])
            yield sound.push(frame.clamp(0, most).to(codec.device))
        if not ended:
            asked.notices.append(CUT)
        yield sound.finish()

    def _rows(self, inputs: Any, config: Any) -> Iterator[torch.Tensor]:
        """Yield the codes ``[codebooks]`` of each step: those that the next step reads, and at the end the last ones."""
        prompt = inputs["audio_input_ids"].shape[1] if "audio_input_ids" in inputs else 0
        count = 0
        steps = reported(lambda: self._model.generate(**inputs, generation_config=config))
        while True:
            try:
                row = next(steps)
            except StopIteration as end:
                found = getattr(end.value, "audio_sequences", end.value)
                yield from found[0, prompt + count :]
                return
            count += 1
            yield row


def _report_frame(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
    codes = kwargs.get("audio_input_ids")
    if codes is not None and kwargs.get("input_ids") is None and codes.shape[1] == 1:
        report(codes[0, 0])


def codec_class() -> Any:
    """Return the class of the codec. It needs torchaudio for one function alone, for which :func:`resample` stands in."""
    module = "transformers.models.higgs_audio_v2_tokenizer.modeling_higgs_audio_v2_tokenizer"
    if find_spec("torchaudio") is not None or module in sys.modules:
        return getattr(import_module(module), CODEC)
    stand_in, functional = ModuleType("torchaudio"), ModuleType("torchaudio.functional")
    vars(stand_in)["functional"], vars(functional)["resample"] = functional, resample
    sys.modules["torchaudio"] = stand_in
    try:
        return getattr(import_module(module), CODEC)
    finally:
        del sys.modules["torchaudio"]


def resample(waveform: torch.Tensor, orig_freq: int, new_freq: int) -> torch.Tensor:
    """Resample as ``torchaudio.functional.resample`` does by default: a sinc of six zero crossings in a Hann window.

    Args:
        waveform: ``[..., n]``.
    """
    common = math.gcd(orig_freq, new_freq)
    old, new = orig_freq // common, new_freq // common
    base = min(old, new) * 0.99
    width = math.ceil(6 * old / base)
    places = torch.arange(-width, width + old, dtype=torch.float64)[None] / old
    times = ((torch.arange(0, -new, -1, dtype=torch.float64)[:, None] / new + places) * base).clamp(-6, 6)
    kernel = torch.sinc(times) * torch.cos(times * math.pi / 12) ** 2 * (base / old)
    padded = torch.nn.functional.pad(waveform.reshape(-1, 1, waveform.shape[-1]), (width, width + old))
    found = torch.nn.functional.conv1d(padded, kernel[:, None].to(waveform), stride=old)
    length = math.ceil(new * waveform.shape[-1] / old)
    return found.transpose(1, 2).reshape(*waveform.shape[:-1], -1)[..., :length]
