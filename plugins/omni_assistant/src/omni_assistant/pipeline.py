"""The pipeline: three others and a door before them, composed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from attrs import evolve

from omni_core.api import (
    SPEECH,
    TEXT,
    TRANSCRIPTION,
    ConfigError,
    Edge,
    Interface,
    OmniError,
    PipelineConfig,
    StageConfig,
    compose,
    did_you_mean,
    pipeline_of,
)

PARTS = {"asr": "recogniser", "llm": "language model", "tts": "voice"}
"""The options that name a part, and what they name."""

NO_MODEL = "none"

_EACH = "omni_assistant.hearing:each"


def no_model() -> tuple[str, str]:
    """Return what stands for a model."""
    return NO_MODEL, "The models are those of the parts."


def assistant(
    model_path: str,
    asr: str | PipelineConfig | None = None,
    llm: str | PipelineConfig | None = None,
    tts: str | PipelineConfig | None = None,
    **options: Any,
) -> PipelineConfig:
    """Return the pipeline.

    Args:
        model_path: :data:`NO_MODEL`.
        asr, llm, tts: the parts: what ``omni run`` takes, or a config.
        options: those of a part begin with its name, ``llm_dtype="float32"``; ``llm_model`` is the checkpoint of a registered pipeline.

    Raises:
        ConfigError: a part is missing, does not exist, or cannot do what is asked of it here; the message names the option.
    """
    if model_path != NO_MODEL:
        raise ConfigError(f"--model {model_path}: the models are those of the parts: --option {', '.join(PARTS)}")
    for name in options:
        if name.partition("_")[0] not in PARTS or not name.partition("_")[2]:
            nearest = did_you_mean(name, PARTS)
            raise ConfigError(
                f"--option {name}: must be a part ({', '.join(PARTS)}), or begin with one: llm_{name}{nearest}"
            )
    recogniser, written, voice = (
        _part(name, source, options) for name, source in {"asr": asr, "llm": llm, "tts": tts}.items()
    )
    heard, spoken = _recogniser(recogniser), evolve(voice, interface=evolve(_offer(voice), outputs=["audio", SPEECH]))
    entries = {
        name: f"{name}-{part.resolved_entry_stage}" for name, part in zip(PARTS, (heard, written, spoken), strict=True)
    }
    door = _door(heard, written, spoken, entries)
    live = [Edge("door.live", "asr", stream=True)] if len(door.stages) > 1 else []
    whole = compose(
        {"door": door, "asr": heard, "llm": written, "tts": spoken},
        [
            Edge("door.door", "asr", "omni_assistant.door:recordings"),
            Edge("door.door", "llm", "omni_assistant.door:messages"),
            Edge("door.door", "tts", "omni_assistant.door:speech"),
            *live,
            Edge("asr", "llm", "omni_assistant.hearing:texts", keep=True),
            Edge("llm", "tts", stream=True, keep=True),
        ],
        name="assistant",
    )
    joined = {entries["llm"]: ("waits", "merged"), entries["tts"]: ("opens", "opening")}
    return evolve(whole, stages=[_waiting(whole, each, *joined.get(each.name, ())) for each in whole.stages])


def _waiting(whole: PipelineConfig, stage: StageConfig, *functions: str) -> StageConfig:
    """Return a stage that waits for the results of other parts as two functions of the door say, or the stage itself."""
    if not functions:
        return stage
    sources = [each.name for each in whole.stages if stage.name in each.next_stages]
    waits, merge = (f"omni_assistant.door:{each}" for each in functions)
    return evolve(stage, wait_for=sources, wait_for_fn=waits, merge_fn=merge)


def _part(name: str, source: str | PipelineConfig | None, options: Mapping[str, Any]) -> PipelineConfig:
    """Return the pipeline that an option names, with the options that begin with its name."""
    if not source or not isinstance(source, str | PipelineConfig):
        what = "a hub id, a folder, a GGUF file, or the name of an installed pipeline"
        raise ConfigError(f"--option {name}: name a {PARTS[name]}: {what}")
    own = {key.removeprefix(f"{name}_"): value for key, value in options.items() if key.startswith(f"{name}_")}
    model = own.pop("model", None)
    given = f"--option {name}={source if isinstance(source, str) else source.resolved_name}"
    try:
        part = pipeline_of(source, None if model is None else str(model), own)
    except OmniError as error:
        raise ConfigError(f"{given}: {_of_part(name, str(error))}") from error
    if why := _unfit(name, part):
        fits = [each for each in PARTS if not _unfit(each, part)]
        raise ConfigError(f"{given}: {why}" + "".join(f"; did you mean --option {each}?" for each in fits))
    return part


def _of_part(name: str, message: str) -> str:
    """Return what is wrong with a part alone, with options and commands as they are given here."""
    here = re.sub(r"omni run (\S+) --model (\S+)", rf"--option {name}=\1 --option {name}_model=\2", message)
    here = re.sub(rf"--option (?!{name}[=_])(?=\w)", f"--option {name}_", here)
    return re.sub(r"(?<=did you mean ')(?=\w+'\?$)", f"{name}_", here) if here.startswith("--option") else here


def _unfit(name: str, config: PipelineConfig) -> str:
    """Return why a pipeline cannot be a part; empty: it can."""
    offer = config.interface
    if offer is None:
        return "it declares no interface"
    roles, ends = offer.roles, config.terminal_stages
    if name == "asr" and (TRANSCRIPTION not in roles or TEXT in roles or ends != [roles[TRANSCRIPTION]]):
        return "must be a pipeline that writes recordings down, and does nothing else"
    if name == "llm" and (TEXT not in roles or "audio" in offer.outputs or len(ends) != 1):
        return "must be a pipeline that answers in text alone"
    if name == "tts" and (SPEECH not in roles or TEXT in roles or offer.outputs != ["audio"]):
        return "must be a pipeline that speaks given texts"
    if name == "tts" and "text" not in offer.input_streams:
        return "it speaks whole texts only; choose a voice that speaks a text while it is written"
    return ""


def _offer(part: PipelineConfig) -> Interface:
    assert part.interface is not None, "_part has seen it"
    return part.interface


def _recogniser(config: PipelineConfig) -> PipelineConfig:
    """Return the recogniser as the part that answers with the transcript, where that is asked for."""
    stages = config.stages
    if len(stages) == 1 and stages[0].expand_fn is None:
        stages = [evolve(stages[0], expand_fn=_EACH)]
    return evolve(
        config,
        stages=stages,
        interface=evolve(_offer(config), outputs=["transcript"]),
        terminal_stages_fn="omni_assistant.hearing:if_wanted",
    )


def _door(
    heard: PipelineConfig, written: PipelineConfig, spoken: PipelineConfig, entries: Mapping[str, str]
) -> PipelineConfig:
    """Return the part that gets the requests, which may bring what the others take. ``entries``: their entry stages."""
    takes, voice = _offer(written).inputs, _offer(spoken)
    streams = [each for each in _offer(heard).input_streams if each == "audio"]
    arguments = {
        **entries,
        "waits": ["door-door", f"asr-{heard.terminal_stages[0]}"],
        "several": heard.stages[0].expand_fn == _EACH,
    }
    door = StageConfig(
        name="door",
        process="door",
        factory="omni_assistant.door:Door" if streams else "omni_assistant.door:create_door",
        factory_args=arguments,
        route_fn="omni_assistant.door:route",
        terminal=True,
    )
    stages = [door]
    if streams:
        live = StageConfig(name="live", process="door", factory="omni_assistant.door:Live", terminal=True)
        ends = "omni_assistant.door:streams"
        stages = [evolve(door, next=["live"], stream_to=["live"], stream_done_to_fn=ends), live]
    inputs = list(dict.fromkeys(["text", *takes, "audio", *(each for each in voice.inputs if each == "reference")]))
    offer = Interface(inputs=inputs, input_streams=streams, reads_transcripts=True, reference_text=voice.reference_text)
    return PipelineConfig(model_path=NO_MODEL, name="door", stages=stages, interface=offer)
