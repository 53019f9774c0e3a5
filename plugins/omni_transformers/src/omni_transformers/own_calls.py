"""Transformers' own call for one request, of kinds where that is one short call."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from omni_core.api import StagePayload, text_of
from omni_media.api import Samples
from omni_transformers.checkpoints import Source
from omni_transformers.loading import load_model, load_processor
from omni_transformers.recognise.declaration import SECONDS, group
from omni_transformers.recognise.generated import ADAPTERS, Asked
from omni_transformers.recognise.languages import languages_of
from omni_transformers.recognise.processors import feature_extractor_of, processor_of
from omni_transformers.recognise.tekken import Tekken
from omni_transformers.recognise.turns import asked_of, recording
from omni_transformers.recognise.whisper import TEMPERATURES
from omni_transformers.recognise.whisper_windows import THRESHOLDS


@torch.inference_mode()
def own_text(source: Source, dtype: str, payload: StagePayload) -> str:
    """Return the text that a recogniser writes of the recording of a request."""
    model = load_model(str(source.folder), dtype)
    if source.architecture.name == "VoxtralRealtimeForConditionalGeneration":
        return _voxtral(source, model, payload)
    processor = processor_of(source)
    rate = processor.feature_extractor.sampling_rate
    samples = recording(payload.request, rate, SECONDS)
    languages, name = languages_of(source), source.architecture.name
    asked = asked_of(payload, group(source))
    spoken = languages.of(asked, group(source))
    further: dict[str, Any] = {}
    if name == "WhisperForConditionalGeneration":
        further |= {"return_timestamps": False, "temperature": TEMPERATURES, "top_k": 0}
        further |= {"task": asked["task"]} if "task" in asked else {}
        for each, usual in THRESHOLDS.items():
            further[each] = source.generation.get(each, usual)
            setattr(model.generation_config, each, None)
        torch.manual_seed(asked["seed"])
    if name in ADAPTERS:
        inputs, more = ADAPTERS[name](processor, samples, rate, Asked(spoken, spoken))
        further |= more
    else:
        told = {"language": spoken} if spoken is not None else {}
        audio = samples if source.architecture.form == "seq2seq" else [samples]
        inputs = processor(audio=audio, sampling_rate=rate, return_tensors="pt", **told)
    inputs = inputs.to(model.device, model.dtype)
    if hasattr(model.config, "max_symbols_per_step"):
        frames = inputs["input_features"].shape[1] // model.config.encoder_config.subsampling_factor + 2
        further["max_new_tokens"] = model.config.max_symbols_per_step * frames
    decode = getattr(processor, "batch_decode", processor.tokenizer.batch_decode)
    if source.architecture.form == "ctc" and not hasattr(model, "generate"):
        text: str = decode(model(**inputs).logits.argmax(-1))[0]
        return text.strip()
    made = model.generate(**inputs, **further)
    ids = made if isinstance(made, torch.Tensor) else made.sequences
    prompt = inputs["decoder_input_ids"].shape[1] if "decoder_input_ids" in inputs else 0
    text = decode(ids[:, prompt:], skip_special_tokens=True)[0]
    return text.strip()


def _voxtral(source: Source, model: Any, payload: StagePayload) -> str:
    """Return the text that Voxtral Realtime writes, with the inputs of its processor, which needs mistral-common."""
    tokenizer, features = Tekken(source.folder), feature_extractor_of(source)
    samples, told = recording(payload.request, features.sampling_rate, SECONDS), tokenizer.streaming
    behind = -len(samples) % told.samples + told.behind * told.samples
    padded = np.pad(samples, (told.before * told.samples, behind))
    inputs = features(padded, sampling_rate=features.sampling_rate, return_tensors="pt").to(model.device, model.dtype)
    prompt = torch.tensor([tokenizer.prompt], device=model.device)
    ids = model.generate(input_ids=prompt, input_features=inputs.input_features, num_delay_tokens=told.delay)
    return tokenizer.decode(ids[0, prompt.shape[1] :].tolist()).strip()


@torch.inference_mode()
def own_sound(source: Source, dtype: str, payload: StagePayload, seed: int) -> Samples | None:
    """Return the sound that a model makes of a sentence, float32 ``[n]``; ``None``: its own call is not one."""
    if source.architecture.name != "VitsModel":
        return None
    model, tokenizer = load_model(str(source.folder), dtype), load_processor(str(source.folder), "AutoTokenizer")
    text = text_of(payload.request.inputs["messages"][-1])
    voice = {"speaker_id": 0} if model.config.num_speakers > 1 else {}
    torch.manual_seed(seed)
    wave: torch.Tensor = model(**tokenizer(text, return_tensors="pt"), **voice).waveform[0]
    samples: Samples = wave.float().clamp(-1.0, 1.0).numpy(force=True)
    return samples
