"""Speakers that generate the codes of a codec frame by frame, decoded as they come: CSM, Dia, Higgs Audio."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from omni_transformers.loading import load_processor
from omni_transformers.speak.decoding import Causal
from omni_transformers.speak.speaker import Asked, Loading, Speaker, chosen
from omni_transformers.speak.turns import Frames, reported

CUT = "the speech was cut at max_new_tokens"


class Csm(Speaker):
    """CSM: its codes are those of Mimi, which is causal and decoded exactly."""

    reference = True

    def __init__(self, loading: Loading) -> None:
        self._model: Any = loading.model()
        self._processor = load_processor(loading.model_path)
        self.rate = self._model.config.codec_config.sampling_rate

    def speak(self, asked: Asked) -> Iterator[torch.Tensor | None]:
        model, codec = self._model, self._model.codec_model
        role = asked.voice or "0"
        talk = [{"role": role, "content": [{"type": "text", "text": asked.text}]}]
        sounds = None
        if asked.reference is not None:
            recording, said = asked.reference
            talk.insert(0, {"role": role, "content": [{"type": "text", "text": said or ""}, {"type": "audio"}]})
            sounds = [recording]
        text = self._processor.apply_chat_template(talk, tokenize=False)
        inputs = self._processor(text=text, audio=sounds, add_special_tokens=False, return_tensors="pt").to(model.device)
        config = chosen(model, asked.given)
        call = {"generation_config": config, "streamer": Frames(), **inputs}
        sound = Causal(codec.decoder, lambda codes, past: codec.decode(codes, decoder_past_key_values=past, use_cache=True))
        for number, codes in enumerate(reported(lambda: model.generate(**call))):  # [1, codebooks]
            if not number:
                continue  # the prompt
            if bool((codes == model.config.codebook_eos_token_id).all()):
                return
            known = codes.clamp(max=codec.config.codebook_size - 1)  # the model has a few codes more, for marks
            yield sound.push(known[..., None].to(model.device))
            if number == config.max_new_tokens:
                asked.notices.append(CUT)
