"""Speakers that generate a continuous latent for each frame, decoded as they come: Pocket TTS, Phonon, VibeVoice."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import torch
from safetensors.torch import load_file

from omni_core.api import ConfigError, InvalidRequestError
from omni_transformers.calls.choice import Loop
from omni_transformers.loading import load_processor
from omni_transformers.speak.decoding import Causal
from omni_transformers.speak.parts import processor_of
from omni_transformers.speak.speaker import CUT, Asked, Loading, Speaker, chosen
from omni_transformers.speak.turns import report_results, reported
from omni_transformers.speak.voices import voice_files


class PocketTTS(Speaker):
    """Pocket TTS and Phonon TTS: their codec is of the kind of Mimi, which is causal and decoded exactly."""

    def __init__(self, loading: Loading) -> None:
        self._model: Any = loading.model()
        self.loop = Loop(self._model, self._model.model)
        self._codec: Any = loading.part("PocketTTSAudioTokenizerModel")
        self._processor = processor_of(loading, "PocketTTSProcessor", self._codec)
        self.rate = self._codec.config.sampling_rate
        takes = (
            getattr(self._model.config, "audio_prompt_dim", self._model.config.latent_dim)
            == self._model.config.latent_dim
        )
        self.reference = takes and self._codec.config.encoder_config is not None
        self._voices = voice_files(loading.source, loading.voices)
        denormalize = self._model.denormalize_latents
        report_results(self._model, "sample_latent", lambda latent: denormalize(latent[:, None]))

    def speak(self, asked: Asked) -> Iterator[torch.Tensor | None]:
        model, codec = self._model, self._codec
        voice = self._voice(asked)
        for part in self._processor.split_text(asked.text):
            said = [{"type": "audio"}] if voice else []
            talk = [{"role": "user", "content": [*said, {"type": "text", "text": part}]}]
            text = self._processor.apply_chat_template(talk, tokenize=False)
            inputs = self._processor(text=text, return_tensors="pt", **voice).to(model.device, model.dtype)
            config = chosen(model, asked.given)
            config.max_length = None
            config.max_new_tokens = asked.given.get(
                "max_new_tokens"
            )  # without one, the model has a bound by the text's length
            call = {"generation_config": config, **inputs}
            sound = Causal(codec)
            fade = torch.linspace(0, 1, int(self._processor.fade_in_duration * self.rate), device=codec.device)
            for latent in reported(lambda call=call: model.generate(**call)):  # type: ignore[misc]  # of this part
                samples = sound.push(latent.to(codec.device, codec.dtype))
                faded = min(len(fade), len(samples))
                samples[:faded] *= fade[:faded]  # a decoder begins with a click
                fade = fade[faded:]
                yield samples

    def _voice(self, asked: Asked) -> dict[str, Any]:
        """Return the voice as inputs of the processor."""
        if asked.reference is not None:
            return {"audio": [asked.reference[0]], "audio_kwargs": {"sampling_rate": self.rate}}
        if asked.voice is None:
            return {}
        path = self._voices[asked.named(self._voices)]
        tensors = load_file(path)
        latents = tensors.get("audio_prompt_latents", next(iter(tensors.values())) if len(tensors) == 1 else None)
        width = getattr(self._model.config, "audio_prompt_dim", self._model.config.latent_dim)
        if latents is None or latents.shape[-1] != width:
            raise InvalidRequestError(f"metadata.speaker: {path.name} holds no latents of a voice, [frames, {width}]")
        return {"audio_prompt_latents": [latents.reshape(-1, width).float()]}


class VibeVoice(Speaker):
    """VibeVoice: its own decoder keeps its state from frame to frame."""

    reference = True

    def __init__(self, loading: Loading) -> None:
        if find_spec("diffusers") is None:
            raise ConfigError(
                f"{loading.model_path}: VibeVoice needs diffusers, for the steps of its noise: pip install diffusers"
            )
        self._model: Any = loading.model()
        self._processor = load_processor(loading.model_path)
        self.rate = self._processor.feature_extractor.sampling_rate
        report_results(self._model.model.audio_tower, "decode", lambda output: output.audio[0])

    def speak(self, asked: Asked) -> Iterator[torch.Tensor | None]:
        model = self._model
        content: list[dict[str, str]] = [{"type": "text", "text": asked.text}]
        sounds: dict[str, Any] = {}
        if asked.reference is not None:
            content.append({"type": "audio"})
            sounds = {"audio": [asked.reference[0]], "audio_kwargs": {"sampling_rate": self.rate}}
        text = self._processor.apply_chat_template([{"role": asked.voice or "0", "content": content}], tokenize=False)
        inputs = self._processor(text=[text], return_tensors="pt", **sounds).to(model.device, model.dtype)
        context = model.config.text_config.max_position_embeddings
        config = chosen(model, asked.given, inputs["input_ids"].shape[1], context)
        call = {"generation_config": config, **inputs}
        if "steps" in asked.given:
            call["num_diffusion_steps"] = asked.given["steps"]
        frames = 0
        for samples in reported(lambda: model.generate(**call)):
            frames += 1
            yield samples
        if frames == config.max_new_tokens:
            asked.notices.append(CUT)
