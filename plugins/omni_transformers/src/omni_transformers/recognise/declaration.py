"""The pipeline of a model that writes recordings down, by the checkpoint's own files. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve

from omni_core.api import (
    TRANSCRIPTION,
    ConfigError,
    Interface,
    Parameter,
    ParameterGroup,
    StageConfig,
    transcription_parameters,
)
from omni_torch.api import sampling_parameters
from omni_transformers.checkpoints import Source
from omni_transformers.defaults import defaults_of
from omni_transformers.options import Given
from omni_transformers.recognise.languages import languages_of

GROUP = "listen"
SECONDS = 3600.0
"""The longest recording, where the option ``max_audio_seconds`` says nothing."""

FACTORIES = {
    "seq2seq": "omni_transformers.recognise.generated:create_generated",
    "transducer": "omni_transformers.recognise.frames:create_transducer",
    "ctc": "omni_transformers.recognise.frames:create_ctc",
    "live": "omni_transformers.recognise.live_networks:create_live",
}
_WHISPER_POSITION = 0.02
"""Seconds of a position of a Whisper's encoder."""

_WHISPER = "omni_transformers.recognise.whisper:create_whisper"
SAMPLED = ("KyutaiSpeechToTextForConditionalGeneration", "VoxtralRealtimeForConditionalGeneration")
"""Networks that hear sound as it comes and write a token for each frame of it."""

_CHOICE = ("temperature", "top_k", "top_p", "min_p", "seed")
_SEED = Parameter("seed", "integer", "of what is sampled at a temperature above 0", 0, 0, 2**63 - 1)


def interface(source: Source) -> Interface:
    """Return what a checkpoint offers."""
    return Interface(
        roles={TRANSCRIPTION: GROUP},
        inputs=["audio"],
        outputs=["text"],
        input_streams=["audio"],
        groups=[group(source)],
        limits={"max_audio_seconds": _longest(source)},
    )


def _longest(source: Source) -> float:
    """Return the seconds of the longest recording: of a Whisper that tells no times, one window."""
    longest = source.given.max_audio_seconds or SECONDS
    is_whisper = source.architecture.name == "WhisperForConditionalGeneration"
    if is_whisper and source.generation.get("no_timestamps_token_id") is None:
        longest = min(longest, source.config.get("max_source_positions", 1500) * _WHISPER_POSITION)
    return longest


def stages(source: Source, given: Given) -> list[StageConfig]:
    """Return the stages.

    Raises:
        ConfigError: the checkpoint is not run here.
    """
    if source.file("tokenizer_config.json").get("lang_codes"):
        raise ConfigError(
            f"{source.folder}: it translates into one of several languages; only checkpoints that write down are run"
        )
    name, form = source.architecture.name, source.architecture.form
    factory = _WHISPER if name == "WhisperForConditionalGeneration" else FACTORIES[form]
    args = dict(given.network)
    if name == "WhisperForConditionalGeneration" or form == "seq2seq":
        args["backend"] = given.backend
    if given.max_audio_seconds is not None:
        args["max_audio_seconds"] = given.max_audio_seconds
    if given.diarizer is not None:
        args["diarizer"] = given.diarizer
    if given.live_step is not None:
        args["live_step"] = given.live_step
    return [given.stage(GROUP, factory=factory, factory_args=args, terminal=True)]


def group(source: Source) -> ParameterGroup:
    """Return the request parameters that a checkpoint honours."""
    if source.architecture.name == "WhisperForConditionalGeneration":
        parameters = _whisper(source)
    elif source.architecture.form == "seq2seq":
        found = languages_of(source)
        names = [*found.parameters, "temperature", "timestamps", "logprobs"]
        parameters = [*_parameters(names, ("none", "segment"), [*found.codes]), _SEED]
    elif source.architecture.name in SAMPLED:
        sampled = sampling_parameters(defaults_of(source.generation))
        parameters = [each for each in sampled if each.name in _CHOICE]
    else:
        found = languages_of(source)
        parameters = _parameters([*found.parameters, "timestamps"], ("none", "segment", "word"), [*found.codes])
    if source.given.diarizer is not None:
        parameters = [*parameters, *transcription_parameters("diarize")]
    return ParameterGroup(GROUP, TRANSCRIPTION, "how it is written down", parameters)


def _whisper(source: Source) -> list[Parameter]:
    generation = source.generation
    names, codes = ["prompt", "temperature", "logprobs"], list[str]()
    if is_multilingual(generation):
        names = ["language", *(["task"] if generation.get("task_to_id") else []), *names]
        codes = [each.strip("<|>") for each in generation["lang_to_id"]]
    times = ["none"]
    if generation.get("no_timestamps_token_id") is not None:
        names.append("timestamps")
        times += ["segment", *(["word"] if generation.get("alignment_heads") else [])]
    return [*_parameters(names, times, codes), _SEED]


def is_multilingual(generation: dict[str, object]) -> bool:
    """Return whether a Whisper hears several languages; an English-only one has no tokens for languages and tasks."""
    return bool(generation.get("lang_to_id")) and generation.get("is_multilingual") is not False


def _parameters(names: Sequence[str], times: Sequence[str], codes: Sequence[str]) -> list[Parameter]:
    made = transcription_parameters(*names, languages=codes)
    return [evolve(each, choices=[*times]) if each.name == "timestamps" else each for each in made]
