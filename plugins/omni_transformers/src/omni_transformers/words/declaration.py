"""The pipeline of a model that writes text. Imports no torch."""

from __future__ import annotations

from typing import Any

from attrs import asdict, evolve

from omni_core.api import (
    TEXT,
    TRANSCRIPTION,
    Interface,
    Parameter,
    ParameterGroup,
    StageConfig,
    transcription_parameters,
)
from omni_media.api import Limits
from omni_torch.api import as_installed, sampling_parameters, text_parameters
from omni_transformers.checkpoints import Source
from omni_transformers.defaults import defaults_of
from omni_transformers.options import Given
from omni_transformers.words.forms import form_of
from omni_transformers.words.recognisers import (
    RECOGNISERS,
    TRANSCRIBE,
    TRANSCRIBE_BY,
    TRANSLATE,
    Recogniser,
    reads_windows,
)

GROUP = "answer"


def interface(source: Source) -> Interface:
    """Return what a checkpoint offers."""
    name, inputs = source.architecture.name, list(source.architecture.inputs)
    media = asdict(Limits()) if inputs != ["text"] else {}
    if "audio" in inputs:
        media["max_audio_seconds"] = _longest(source)
    if name in RECOGNISERS:
        parameters = _recogniser_parameters(source, RECOGNISERS[name])
        group = ParameterGroup(GROUP, TRANSCRIPTION, "how it is written down", parameters)
        return Interface(
            roles={TRANSCRIPTION: GROUP},
            inputs=["audio"],
            outputs=["text"],
            input_streams=["audio"] if reads_windows(source.architecture) else [],
            groups=[group],
            limits=media,
        )
    parameters = [
        *sampling_parameters(defaults_of(source.generation, max_new_tokens=1024)),
        Parameter("stop", "strings", "end the text before this string; may be repeated", maximum=16),
    ]
    form = form_of(source.folder)
    parameters += text_parameters() if form.is_text else []
    declared = Interface(
        roles={TEXT: GROUP},
        inputs=inputs,
        outputs=["text"],
        groups=[ParameterGroup(GROUP, TEXT, "how the text is chosen", parameters)],
        params=list(form.variables),
        limits=media,
        tool_format=form.tools,
        completes=inputs == ["text"] and not source.config.get("is_encoder_decoder"),
        reasoning=form.templated or form.thoughts is not None,
        prompts={"transcription": TRANSCRIBE_BY.get(name, TRANSCRIBE), "translation": TRANSLATE}
        if "audio" in inputs
        else {},
    )
    return as_installed(declared)


def _longest(source: Source) -> float:
    """Return the seconds of the longest recording: those of the option, and of what its processor takes."""
    longest = source.given.max_audio_seconds or Limits().max_audio_seconds
    return min(longest, float(source.file("processor_config.json").get("max_audio_len") or longest))


def _recogniser_parameters(source: Source, recogniser: Recogniser) -> list[Parameter]:
    names = [*recogniser.parameters, "temperature"]
    names += ["timestamps", "diarize"] if recogniser.segments else ["logprobs"]
    names += ["diarize"] if source.given.diarizer is not None else []
    asked = transcription_parameters(*names, languages=recogniser.languages)
    asked = [evolve(each, choices=["none", "segment"]) if each.name == "timestamps" else each for each in asked]
    sampled = sampling_parameters(defaults_of(source.generation))
    return [*asked, *(each for each in sampled if each.name not in names)]


def stages(source: Source, given: Given) -> list[StageConfig]:
    """Return the stages. Unless the engine is asked for, which backend computes is known when the model is loaded only."""
    args: dict[str, Any] = {**given.network, "backend": given.backend}
    if given.max_audio_seconds is not None:
        args |= {"limits": {"max_audio_seconds": given.max_audio_seconds}}
    if source.architecture.name in RECOGNISERS:
        factory = "omni_transformers.words.transcripts:create_recogniser"
        if given.live_step is not None:
            args["live_step"] = given.live_step
        if given.diarizer is not None:
            args["diarizer"] = given.diarizer
        return [given.stage(GROUP, factory=factory, factory_args=args, terminal=True)]
    home = "omni_transformers.words.engine"
    prepare = given.stage(
        "prepare", factory="omni_transformers.words.prepare:create_prepare", factory_args=args, next=GROUP
    )
    ranks = given.tp_size or 1
    if ranks == 1 and (given.backend != "engine" or source.config.get("is_encoder_decoder")):
        return [prepare, given.stage(GROUP, factory=f"{home}:create_answer", factory_args=args, terminal=True)]
    answer = given.stage(
        GROUP, model_runner=f"{home}:Answers.from_checkpoint", factory_args=given.network, terminal=True
    )
    if ranks == 1:
        return [prepare, answer]
    prepare = evolve(prepare, process="prepare", factory_args={**args, "encodes_only": True})
    answer = evolve(answer, process=GROUP, tp_size=ranks)
    if given.gpu is not None:
        answer = evolve(answer, gpu=[*range(given.gpu, given.gpu + ranks)])
        if source.architecture.inputs == ["text"]:
            prepare = evolve(prepare, gpu=None)
        else:  # its encoders are beside rank 0
            prepare, answer = evolve(prepare, gpu_memory=0.2), evolve(answer, gpu_memory=0.7)
    return [prepare, answer]
