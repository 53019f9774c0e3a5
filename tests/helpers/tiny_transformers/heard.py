"""The sound of a text by transformers itself: by a model's own call, with a seed, sentence by sentence."""

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
Sound = Callable[..., list[Samples]]

SAY: dict[str, Callable[..., Any]] = {}
"""By architecture: a model, its tokenizer and its folder, to a function of a sentence, a recording and its words."""

HEARD: dict[str, Sound] = {}
"""By architecture: the folder, sentences, a seed, and a recording of a voice with its words, to the sound of each sentence."""


def heard(*architectures: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register ``(model, tokenizer, folder) -> (sentence, recording, its words -> sound)`` as the reference of architectures."""

    def register(say: Callable[..., Any]) -> Callable[..., Any]:
        for architecture in architectures:
            SAY[architecture] = say
            HEARD[architecture] = _seeded(architecture, say)
        return say

    return register


def _seeded(architecture: str, say: Callable[..., Any]) -> Sound:
    def sound(folder: Path, sentences: list[str], seed: int, *like: Any) -> list[Samples]:
        model = getattr(transformers, architecture).from_pretrained(folder).eval()
        speak = say(model, AutoTokenizer.from_pretrained(folder), folder)
        torch.manual_seed(seed)
        with torch.inference_mode():
            return [speak(sentence, *like).float().reshape(-1).numpy() for sentence in sentences]

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


@heard("FastSpeech2ConformerModel")
def _fastspeech2_alone(model: Any, tokenizer: Any, folder: Path) -> Any:
    vocoder = transformers.FastSpeech2ConformerHifiGan.from_pretrained(folder / "vocoder")
    return lambda text: vocoder(model(**tokenizer(text, return_tensors="pt"), return_dict=True).spectrogram)


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

    def say(text: str, recording: Samples | None = None, words: str = "") -> torch.Tensor:
        talk = [{"role": "0", "content": [{"type": "text", "text": text}]}]
        if recording is not None:
            talk.insert(0, {"role": "0", "content": [{"type": "text", "text": words}, {"type": "audio"}]})
        prompt = processor.apply_chat_template(talk, tokenize=False)
        inputs = processor(text=prompt, audio=None if recording is None else [recording], add_special_tokens=False)
        return model.generate(**inputs, output_audio=True)[0]

    return say


@heard("DiaForConditionalGeneration")
def _dia(model: Any, tokenizer: Any, folder: Path) -> Any:
    codec = transformers.DacModel.from_pretrained(folder / "audio_tokenizer")
    processor = transformers.DiaProcessor(transformers.AutoFeatureExtractor.from_pretrained(folder), tokenizer, codec)
    delays = model.config.delay_pattern
    marks = {"eos_token_id": 32, "pad_token_id": 33, "bos_token_id": 34, "delay_pattern": delays}

    def say(text: str, recording: Samples | None = None, words: str = "") -> torch.Tensor:
        if recording is None:
            codes = model.generate(**processor(text=[text], audio_kwargs=marks))
            return processor.decode(codes, audio_kwargs=marks)
        inputs = processor(text=[f"{words} {text}"], audio=[recording], audio_kwargs=marks)
        length = processor.get_audio_prompt_len(inputs["decoder_attention_mask"], audio_kwargs=marks)
        return processor.decode(model.generate(**inputs), audio_prompt_len=length, audio_kwargs=marks)

    return say


@heard("PocketTTSForConditionalGeneration", "GradiumPhononTTSForConditionalGeneration")
def _pocket(model: Any, tokenizer: Any, folder: Path) -> Any:
    processor = transformers.PocketTTSProcessor.from_pretrained(folder)

    def say(text: str, recording: Samples | None = None, words: str = "") -> torch.Tensor:
        voice = [] if recording is None else [{"type": "audio"}]
        sounds = None if recording is None else [recording]
        talk = [{"role": "user", "content": [*voice, {"type": "text", "text": text}]}]
        inputs = processor(text=processor.apply_chat_template(talk, tokenize=False), audio=sounds, return_tensors="pt")
        latents = model.generate(**inputs)
        return processor.decode(latents[0])

    return say


@heard("VibeVoiceForConditionalGeneration")
def _vibevoice(model: Any, tokenizer: Any, folder: Path) -> Any:
    processor = transformers.AutoProcessor.from_pretrained(folder)

    def say(text: str, recording: Samples | None = None, words: str = "") -> torch.Tensor:
        voice = [] if recording is None else [{"type": "audio"}]
        sounds = None if recording is None else [recording]
        talk = [{"role": "0", "content": [{"type": "text", "text": text}, *voice]}]
        inputs = processor(
            text=[processor.apply_chat_template(talk, tokenize=False)], audio=sounds, return_tensors="pt"
        )
        return model.generate(**inputs)[0]

    return say


@heard("HiggsAudioV2ForConditionalGeneration")
def _higgs(model: Any, tokenizer: Any, folder: Path) -> Any:
    codec = codec_class().from_pretrained(folder / "audio_tokenizer").eval()
    features = transformers.AutoFeatureExtractor.from_pretrained(folder)
    marks = {"audio_stream_bos_id": 32, "audio_stream_eos_id": 33}
    processor = transformers.HiggsAudioV2Processor(features, tokenizer, None, **marks)
    processor.audio_tokenizer = codec

    def say(text: str, recording: Samples | None = None, words: str = "") -> torch.Tensor:
        told = [("system", "Generate audio following instruction."), ("user", words), ("user", text)]
        talk = [{"role": role, "content": [{"type": "text", "text": said}]} for role, said in told if said]
        if recording is not None:
            talk.insert(2, {"role": "assistant", "content": [{"type": "audio"}]})  # type: ignore[list-item]
        prompt = tokenizer.apply_chat_template(talk, tokenize=False, add_generation_prompt=True)
        sounds = None if recording is None else [recording]
        return processor.decode(model.generate(**processor(text=prompt, audio=sounds, return_tensors="pt")))

    return say
