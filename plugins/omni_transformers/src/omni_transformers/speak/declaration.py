"""The models that speak: what each offers, read from its checkpoint. Imports neither torch nor transformers."""

from __future__ import annotations

from typing import Any

from omni_core.api import ConfigError, Interface, Parameter, StageConfig
from omni_transformers.checkpoints import Source
from omni_transformers.options import Given
from omni_transformers.speak.speaks import FASTSPEECH2_RATE, Offer, Speaks
from omni_transformers.speak.voices import bark_presets, voice_files

SPEED = Parameter("speed", "number", "of speech; 1 is the model's own", 1.0, minimum=0.25, maximum=4.0)


def interface(source: Source) -> Interface:
    """Return what a checkpoint offers."""
    return _speaks(source).interface(source)


def stages(source: Source, given: Given) -> list[StageConfig]:
    """Return the stage."""
    return _speaks(source).stages(source, given)


def may_align(source: Source) -> bool:
    """Return if a model says words whose times it does not know."""
    name = source.architecture.name
    return name in SPEAKERS and not (name.startswith("Musicgen") or SPEAKERS[name].offer(source).word_times)


def _speaks(source: Source) -> Speaks:
    name = source.architecture.name
    if name not in SPEAKERS:
        raise ConfigError(f"{source.folder}: no speech of {name} yet; models that speak here: {', '.join(SPEAKERS)}")
    return SPEAKERS[name]


def _sampling(defaults: dict[str, Any], *names: str) -> list[Parameter]:
    """Return sampling parameters by name, with the defaults of a checkpoint's generation config."""
    temperature = defaults.get("temperature") or 1.0
    found = [
        Parameter(
            "temperature",
            "number",
            "0 is greedy",
            temperature if defaults.get("do_sample") else 0.0,
            minimum=0,
            maximum=10,
        ),
        Parameter(
            "top_k", "integer", "keep the k most likely; 0 is off", defaults.get("top_k"), minimum=0, maximum=2**31 - 1
        ),
        Parameter(
            "top_p", "number", "keep this probability mass; 1 is off", defaults.get("top_p"), minimum=1e-6, maximum=1
        ),
        Parameter(
            "max_new_tokens",
            "integer",
            "longest speech, in frames of the codec",
            defaults.get("max_new_tokens"),
            1,
            2**31 - 1,
            aliases=["max_tokens"],
        ),
        Parameter(
            "guidance_scale", "number", "weight of the text", defaults.get("guidance_scale"), minimum=1, maximum=100
        ),
    ]
    return [each for each in found if each.name in names]


def _vits(source: Source) -> Offer:
    speakers = int(source.config.get("num_speakers", 1))
    voices = [str(number) for number in range(speakers)] if speakers > 1 else []
    return Offer(source.config.get("sampling_rate", 16_000), [SPEED], voices, word_times=True)


def _speecht5(source: Source) -> Offer:
    rate = source.file("vocoder/config.json").get("sampling_rate", 16_000)
    return Offer(rate, voices=[*voice_files(source, source.given.voices)], voices_from="files in voices/")


def _fastspeech2(source: Source) -> Offer:
    return Offer(FASTSPEECH2_RATE, [SPEED])


def _bark(source: Source) -> Offer:
    rate = source.generation.get("sample_rate", 24_000)
    return Offer(rate, voices=[*bark_presets(source)], voices_from="speaker_embeddings_path.json", default=False)


def _seamless(source: Source) -> Offer:
    languages = source.generation
    spoken = [*languages.get("vocoder_lang_code_to_id", {})]
    written = [*languages.get("text_decoder_lang_to_code_id", {})]
    parameters = [
        Parameter("language", "string", "of the speech", "eng", choices=spoken),
        Parameter("text_language", "string", "of the text; by default that of the speech", choices=written),
    ]
    speakers = [str(number) for number in range(source.config.get("vocoder_num_spkrs", 200))]
    return Offer(source.config.get("sampling_rate", 16_000), parameters, speakers)


def _musicgen(source: Source) -> Offer:
    rate = source.config.get("audio_encoder", {}).get("sampling_rate", 32_000)
    names = ("temperature", "top_k", "top_p", "max_new_tokens", "guidance_scale")
    return Offer(rate, _sampling(source.generation, *names))


def _csm(source: Source) -> Offer:
    rate = source.config.get("codec_config", {}).get("sampling_rate", 24_000)
    parameters = _sampling(source.generation, "temperature", "top_k", "top_p", "max_new_tokens")
    return Offer(
        rate,
        parameters,
        [str(number) for number in range(10)],
        reference=True,
        reference_text=True,
        most_characters=2000,
    )


def _dia(source: Source) -> Offer:
    rate = source.file("audio_tokenizer/config.json").get("sampling_rate", 44_100)
    parameters = _sampling(source.generation, "temperature", "top_k", "top_p", "max_new_tokens")
    return Offer(rate, parameters, reference=True, reference_text=True, most_characters=1000)


def _higgs(source: Source) -> Offer:
    rate = source.file("audio_tokenizer/config.json").get("sample_rate", 24_000)
    parameters = _sampling(source.generation, "temperature", "top_k", "top_p", "max_new_tokens")
    return Offer(rate, parameters, reference=True, reference_text=True, most_characters=4000)


def _pocket(source: Source) -> Offer:
    codec = source.file("audio_tokenizer/config.json")
    own = "audio_prompt_dim" not in source.config and codec.get("encoder_config", {}) is not None
    voices = [name for name, file in voice_files(source, source.given.voices).items() if file.suffix == ".safetensors"]
    parameters = _sampling(source.generation, "temperature", "max_new_tokens")
    rate = codec.get("sampling_rate", 24_000)
    return Offer(rate, parameters, voices, voices_from="files in voices/", default=False, reference=own)


def _vibevoice(source: Source) -> Offer:
    steps = Parameter(
        "steps", "integer", "of the noise, for each frame", source.generation.get("num_diffusion_steps", 10), 1, 1000
    )
    parameters = [*_sampling(source.generation, "max_new_tokens", "guidance_scale"), steps]
    rate = source.file("processor_config.json").get("feature_extractor", {}).get("sampling_rate", 24_000)
    return Offer(rate, parameters, reference=True)


SPEAKERS = {
    "VitsModel": Speaks("omni_transformers.speak.vits:Vits", _vits),
    "SpeechT5ForTextToSpeech": Speaks("omni_transformers.speak.one_shot:SpeechT5", _speecht5),
    "FastSpeech2ConformerWithHifiGan": Speaks("omni_transformers.speak.one_shot:FastSpeech2", _fastspeech2),
    "FastSpeech2ConformerModel": Speaks("omni_transformers.speak.one_shot:FastSpeech2", _fastspeech2),
    "BarkModel": Speaks("omni_transformers.speak.whole:Bark", _bark),
    "SeamlessM4TForTextToSpeech": Speaks("omni_transformers.speak.whole:Seamless", _seamless),
    "SeamlessM4Tv2ForTextToSpeech": Speaks("omni_transformers.speak.whole:SeamlessV2", _seamless),
    "CsmForConditionalGeneration": Speaks("omni_transformers.speak.codes:Csm", _csm, shares=True),
    "DiaForConditionalGeneration": Speaks("omni_transformers.speak.codes:Dia", _dia),
    "HiggsAudioV2ForConditionalGeneration": Speaks("omni_transformers.speak.higgs:Higgs", _higgs, shares=True),
    "PocketTTSForConditionalGeneration": Speaks("omni_transformers.speak.latents:PocketTTS", _pocket, shares=True),
    "GradiumPhononTTSForConditionalGeneration": Speaks(
        "omni_transformers.speak.latents:PocketTTS", _pocket, shares=True
    ),
    "VibeVoiceForConditionalGeneration": Speaks("omni_transformers.speak.latents:VibeVoice", _vibevoice),
    "MusicgenForConditionalGeneration": Speaks("omni_transformers.speak.whole:MusicGen", _musicgen),
    "MusicgenMelodyForConditionalGeneration": Speaks("omni_transformers.speak.whole:MusicGen", _musicgen),
}
"""By architecture."""
