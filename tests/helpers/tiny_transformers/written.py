"""Recordings written down by transformers' own code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import soxr
import torch
import transformers
from transformers import AutoProcessor

from omni_transformers.architectures import table
from omni_transformers.checkpoints import read
from omni_transformers.recognise.processors import GraniteProcessor
from omni_transformers.recognise.tekken import Tekken
from tiny_transformers import checkpoint
from tiny_transformers.live import VOXTRAL

LANGUAGE = {
    "CanaryForConditionalGeneration": "de",
    "CohereAsrForConditionalGeneration": "de",
    "SeamlessM4TForSpeechToText": "de",
    "SeamlessM4Tv2ForSpeechToText": "de",
    "Nemotron3_5AsrForRNNT": "de-DE",
}
"""By architecture, of those that must be told."""


def reference(name: str, samples: np.ndarray, folder: Path | None = None) -> tuple[list[int], str]:
    """Return the tokens that transformers' own code writes, and their text."""
    if name == VOXTRAL:
        return _voxtral(folder or checkpoint(name), samples)
    return written(name, *loaded(name, folder or checkpoint(name)), samples)


def _voxtral(folder: Path, samples: np.ndarray) -> tuple[list[int], str]:
    """Return what transformers' own code writes of the inputs of its processor, which needs mistral-common."""
    model = transformers.VoxtralRealtimeForConditionalGeneration.from_pretrained(folder)
    features, tokenizer = transformers.VoxtralRealtimeFeatureExtractor.from_pretrained(folder), Tekken(folder)
    told, prompt = tokenizer.streaming, torch.tensor([tokenizer.prompt])
    padded = np.pad(samples, (1280 * told.before, -len(samples) % 1280 + 1280 * told.behind))
    heard = features(padded, sampling_rate=16_000, return_tensors="pt").input_features
    with torch.inference_mode():
        made = model.generate(input_ids=prompt, input_features=heard, num_delay_tokens=told.delay)
    ids = made[0, prompt.shape[1] :].tolist()
    return ids, tokenizer.decode(ids)


def loaded(name: str, folder: Path) -> tuple[Any, Any]:
    """Return transformers' own model and its processor."""
    model = getattr(transformers, name).from_pretrained(folder)
    if name == "WhisperForConditionalGeneration":  # with one in its config, transformers writes no short recording
        model.generation_config.logprob_threshold = None
    if name == "GraniteSpeech5ForCTC":  # transformers' own needs torchaudio
        return model, GraniteProcessor(read(str(folder)))
    return model, AutoProcessor.from_pretrained(folder)


def written(name: str, model: Any, processor: Any, samples: np.ndarray) -> tuple[list[int], str]:
    """Return the tokens of a recording, and their text."""
    granite, further = name == "GraniteSpeech5ForCTC", dict[str, Any]()
    rate = processor.feature_extractor.sampling_rate
    samples = samples if rate == 16_000 else soxr.resample(samples, 16_000, rate, quality="HQ")
    given: dict[str, Any] = {"sampling_rate": rate, "return_tensors": "pt"}
    if name == "CanaryForConditionalGeneration":
        inputs = processor.apply_transcription_request(samples, source_language="de", sampling_rate=16_000)
    elif name == "CohereAsrForConditionalGeneration":
        inputs = processor(samples, language="de", **given)
        inputs.pop("audio_chunk_index")
    else:
        told = {"language": "de-DE"} if name == "Nemotron3_5AsrForRNNT" else {}
        inputs = processor(audio=[samples] if granite else samples, **told, **given)
    if name.startswith("Seamless"):
        further["tgt_lang"] = "deu"
    if name == "WhisperForConditionalGeneration":
        further["task"] = "transcribe"
    if hasattr(model.config, "max_symbols_per_step"):  # its own limit may leave the last one out
        further["max_new_tokens"] = 1000
    with torch.inference_mode():
        if table()[name].form == "ctc" and not hasattr(model, "generate"):
            ids = model(**inputs).logits.argmax(-1)
            return ids[0].tolist(), processor.batch_decode(ids)[0]
        made = model.generate(**inputs, **further)
    ids = made if isinstance(made, torch.Tensor) else made.sequences
    text: str = (processor.tokenizer if granite else processor).batch_decode(ids, skip_special_tokens=True)[0]
    return ids[0].tolist(), text
