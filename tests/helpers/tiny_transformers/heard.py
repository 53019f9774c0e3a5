"""What transformers itself says: the sound of a text by a model's own call, with a seed, sentence by sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import AutoTokenizer

from omni_transformers.speak.higgs import codec_class

Samples = np.ndarray[Any, Any]
Sound = Callable[[Path, list[str], int], list[Samples]]

HEARD: dict[str, Sound] = {}
"""By architecture: the folder, sentences and a seed to the sound of each sentence."""


def heard(*architectures: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register ``(model, tokenizer, folder) -> (sentence -> sound)`` as the reference of architectures."""

    def register(say: Callable[..., Any]) -> Callable[..., Any]:
        for architecture in architectures:
            HEARD[architecture] = _seeded(architecture, say)
        return say

    return register


def _seeded(architecture: str, say: Callable[..., Any]) -> Sound:
    def sound(folder: Path, sentences: list[str], seed: int) -> list[Samples]:
        model = getattr(transformers, architecture).from_pretrained(folder).eval()
        speak = say(model, AutoTokenizer.from_pretrained(folder), folder)
        torch.manual_seed(seed)
        with torch.inference_mode():
            return [speak(sentence).float().reshape(-1).numpy() for sentence in sentences]

    return sound


@heard("VitsModel")
def _vits(model: Any, tokenizer: Any, folder: Path) -> Any:
    return lambda text: model(**tokenizer(text, return_tensors="pt"), speaker_id=0).waveform


@heard("SpeechT5ForTextToSpeech")
def _speecht5(model: Any, tokenizer: Any, folder: Path) -> Any:
    vocoder = transformers.SpeechT5HifiGan.from_pretrained(folder / "vocoder")
    vector = torch.from_numpy(np.load(folder / "voices" / "anna.npy"))[None]
    return lambda text: model.generate_speech(tokenizer(text, return_tensors="pt").input_ids, vector, vocoder=vocoder)


@heard("FastSpeech2ConformerWithHifiGan")
def _fastspeech2(model: Any, tokenizer: Any, folder: Path) -> Any:
    return lambda text: model(**tokenizer(text, return_tensors="pt"), return_dict=True).waveform


@heard("BarkModel")
def _bark(model: Any, tokenizer: Any, folder: Path) -> Any:
    processor = transformers.BarkProcessor(tokenizer)
    return lambda text: model.generate(**processor(text))


@heard("SeamlessM4TForTextToSpeech", "SeamlessM4Tv2ForTextToSpeech")
def _seamless(model: Any, tokenizer: Any, folder: Path) -> Any:
    tokenizer.src_lang = "eng"
    return lambda text: model.generate(**tokenizer(text, return_tensors="pt"), tgt_lang="eng")[0]


@heard("MusicgenForConditionalGeneration", "MusicgenMelodyForConditionalGeneration")
def _musicgen(model: Any, tokenizer: Any, folder: Path) -> Any:
    return lambda text: model.generate(**tokenizer(text, return_tensors="pt"))


@heard("CsmForConditionalGeneration")
def _csm(model: Any, tokenizer: Any, folder: Path) -> Any:
    processor = transformers.AutoProcessor.from_pretrained(folder)

    def say(text: str) -> torch.Tensor:
        talk = [{"role": "0", "content": [{"type": "text", "text": text}]}]
        inputs = processor.apply_chat_template(talk, tokenize=True, return_dict=True, add_special_tokens=False)
        return model.generate(**inputs, output_audio=True)[0]

    return say


@heard("DiaForConditionalGeneration")
def _dia(model: Any, tokenizer: Any, folder: Path) -> Any:
    codec = transformers.DacModel.from_pretrained(folder / "audio_tokenizer")
    processor = transformers.DiaProcessor(transformers.AutoFeatureExtractor.from_pretrained(folder), tokenizer, codec)
    delays = model.config.delay_pattern
    marks = {"eos_token_id": 32, "pad_token_id": 33, "bos_token_id": 34, "delay_pattern": delays}

    def say(text: str) -> torch.Tensor:
        codes = model.generate(**processor(text=[text], audio_kwargs=marks))
        return processor.decode(codes, audio_kwargs=marks)

    return say


@heard("PocketTTSForConditionalGeneration", "GradiumPhononTTSForConditionalGeneration")
def _pocket(model: Any, tokenizer: Any, folder: Path) -> Any:
    processor = transformers.PocketTTSProcessor.from_pretrained(folder)

    def say(text: str) -> torch.Tensor:
        talk = [{"role": "user", "content": [{"type": "text", "text": text}]}]
        inputs = processor(text=processor.apply_chat_template(talk, tokenize=False), return_tensors="pt")
        latents = model.generate(**inputs)
        return processor.decode(latents[0])

    return say


@heard("VibeVoiceForConditionalGeneration")
def _vibevoice(model: Any, tokenizer: Any, folder: Path) -> Any:
    processor = transformers.AutoProcessor.from_pretrained(folder)

    def say(text: str) -> torch.Tensor:
        talk = [{"role": "0", "content": [{"type": "text", "text": text}]}]
        inputs = processor(text=[processor.apply_chat_template(talk, tokenize=False)], return_tensors="pt")
        return model.generate(**inputs)[0]

    return say


@heard("HiggsAudioV2ForConditionalGeneration")
def _higgs(model: Any, tokenizer: Any, folder: Path) -> Any:
    codec = codec_class().from_pretrained(folder / "audio_tokenizer").eval()
    features = transformers.AutoFeatureExtractor.from_pretrained(folder)
    marks = {"audio_stream_bos_id": 32, "audio_stream_eos_id": 33}
    processor = transformers.HiggsAudioV2Processor(features, tokenizer, None, **marks)
    processor.audio_tokenizer = codec

    def say(text: str) -> torch.Tensor:
        told = [("system", "Generate audio following instruction."), ("user", text)]
        talk = [{"role": role, "content": [{"type": "text", "text": said}]} for role, said in told]
        prompt = tokenizer.apply_chat_template(talk, tokenize=False, add_generation_prompt=True)
        return processor.decode(model.generate(**processor(text=prompt, return_tensors="pt")))

    return say
