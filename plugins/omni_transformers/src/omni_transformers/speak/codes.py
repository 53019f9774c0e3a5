"""Speakers that generate the codes of a codec frame by frame, decoded as they come: CSM, Dia, Higgs Audio."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from omni_core.api import RequestTooLargeError
from omni_transformers.calls.choice import Loop
from omni_transformers.loading import load_processor
from omni_transformers.speak.decoding import Causal, Windows, reach_of
from omni_transformers.speak.parts import processor_of
from omni_transformers.speak.speaker import CUT, Asked, Loading, Speaker, chosen
from omni_transformers.speak.turns import Frames, reported


class Csm(Speaker):
    """CSM: its codes are those of Mimi, which is causal and decoded exactly."""

    reference = True

    def __init__(self, loading: Loading) -> None:
        self._model: Any = loading.model()
        self.loop = Loop(self._model, self._model.backbone_model, [self._model.depth_decoder])
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
        inputs = self._processor(text=text, audio=sounds, add_special_tokens=False, return_tensors="pt").to(
            model.device
        )
        config = chosen(model, asked.given, inputs["input_ids"].shape[1], model.config.max_position_embeddings)
        call = {"generation_config": config, "streamer": Frames(), **inputs}
        sound = Causal(codec)
        for number, codes in enumerate(reported(lambda: model.generate(**call))):  # [1, codebooks]
            if not number:
                continue  # the prompt
            if bool((codes == model.config.codebook_eos_token_id).all()):
                return
            known = codes.clamp(max=codec.config.codebook_size - 1)  # the model has a few codes more, for marks
            yield sound.push(known[..., None].to(model.device))
            if number == config.max_new_tokens:
                asked.notices.append(CUT)


class Dia(Speaker):
    """Dia: its codes are those of DAC, each codebook some frames behind the first."""

    reference = True

    def __init__(self, loading: Loading) -> None:
        self._model: Any = loading.model()
        self._codec: Any = loading.part("DacModel")
        self._processor = processor_of(loading, "DiaProcessor", self._codec)
        self.rate = self._codec.config.sampling_rate
        self._reach = reach_of(self._codec.decoder)
        names, decoder = ("bos_token_id", "eos_token_id", "pad_token_id"), self._model.config.decoder_config
        self._marks = {name: getattr(decoder, name) for name in names}
        self._marks["delay_pattern"] = self._model.config.delay_pattern

    def speak(self, asked: Asked) -> Iterator[torch.Tensor | None]:
        model, codec = self._model, self._codec
        text, recording = asked.text, None
        if asked.reference is not None:
            recording, said = asked.reference
            text = f"{said or ''} {text}"
        sounds = None if recording is None else [recording]
        inputs = self._processor(text=[text], audio=sounds, audio_kwargs=self._marks).to(model.device)
        most = model.config.encoder_config.max_position_embeddings
        if inputs["input_ids"].shape[1] > most:
            raise RequestTooLargeError(
                f"the text has {inputs['input_ids'].shape[1]} bytes, with that of the voice; at most {most}"
            )
        delays, end = model.config.delay_pattern, model.config.decoder_config.eos_token_id
        mask = inputs["decoder_input_ids"][0]  # what is given of the first frames; elsewhere the padding
        begin = len(mask) - max(delays)
        config = chosen(model, asked.given)
        if not config.max_new_tokens and not config.max_length:
            config.max_length = model.config.decoder_config.max_position_embeddings - max(delays)
        call = {"generation_config": config, "streamer": Frames(), **inputs}
        sound = Windows(
            lambda codes: codec.decode(audio_codes=codes[None]).audio_values[0], codec.config.hop_length, self._reach
        )
        rows: list[torch.Tensor] = []
        for new in reported(lambda: model.generate(**call)):
            rows += [new] if rows else new[0].T  # the first are the prompt's
            if len(rows) <= len(mask):
                given = mask[len(rows) - 1].to(new.device)
                rows[-1] = torch.where(given == model.config.decoder_config.pad_token_id, rows[-1], given)
            first = len(rows) - 1 - max(delays)
            if first < begin:
                yield None
                continue
            if rows[first][0] == end:
                room = (config.max_length or begin + config.max_new_tokens - max(delays)) - 1
                if first == room:
                    asked.notices.append(CUT)
                break
            frame = torch.stack([rows[first + delay][channel] for channel, delay in enumerate(delays)])
            yield sound.push(frame.to(codec.device))
        yield sound.finish()
