"""Qwen3-TTS as a pipeline config. Light: nothing here imports torch."""

from __future__ import annotations

from typing import Any, Unpack

from attrs import evolve

from omni_core.api import AUTO, WORD_TIMES, PipelineConfig, StageConfig, expanded
from omni_qwen3_tts.interface import OPTIONS, interface_of
from omni_qwen3_tts.options import Options
from omni_torch.api import DTYPES, check_options, config_folder, device_of, random_checkpoint

LIMITS = ("max_characters", "max_reference_seconds")
"""The options that are limits of requests."""


ALIGNER = "align"
"""The stage that finds when words are heard, with the option ``aligner``. It computes on the CPU."""

_VOICES = ("max_reference_seconds", "voices_kept", "reference", "reference_text")


def default_model() -> tuple[str, str]:
    """Return a tiny checkpoint with random weights, and a notice about it."""
    return random_checkpoint("qwen3-tts", "Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice")


def qwen3_tts(model_path: str, **options: Unpack[Options]) -> PipelineConfig:
    """Text in, whole or as it is written, and speech out. ``options``: see :data:`omni_qwen3_tts.interface.OPTIONS`."""
    given: dict[str, Any] = {**options}
    check_options(given, OPTIONS, dtype=(AUTO, *DTYPES), processes=("separate", "one"))
    folder, gpu = config_folder(model_path), device_of(given.get("gpu", AUTO))
    interface = interface_of(folder, {name: given[name] for name in (*LIMITS, "max_context") if name in given})
    encodes = "reference" in interface.inputs
    after = [] if given.get("aligner") is None else [ALIGNER]
    if after:
        interface = evolve(interface, word_times=True, params=[*interface.params, WORD_TIMES])

    def arguments(*names: str) -> dict[str, Any]:
        return {name: given[name] for name in ("dtype", *names) if name in given and given[name] != AUTO}

    def place(stage: str, *, network: bool = True) -> dict[str, Any]:
        process = "pipeline" if given.get("processes") == "one" else stage
        return {"process": process, "gpu": gpu} if network else {"process": process}

    align = StageConfig(
        name=ALIGNER,
        factory="omni_transformers.align.stage:create_aligner",
        factory_args={"aligner": given.get("aligner"), "sources": ["preprocessing", "code2wav"]},
        terminal=True,
        **place(ALIGNER, network=False),
    )
    return PipelineConfig(
        model_path=folder if expanded(model_path).is_dir() else model_path,
        name="qwen3-tts",
        stages=[
            StageConfig(
                name="preprocessing",
                factory="omni_qwen3_tts.preprocessing:create_preprocessing",
                factory_args=arguments("max_characters", *(_VOICES if encodes else ("reference",)))
                | ({"aligner": ALIGNER} if after else {}),
                next="talker",
                stream_to=["talker", *after],
                **place("preprocessing", network=encodes),
            ),
            StageConfig(
                name="talker",
                model_runner="omni_qwen3_tts.talker:TalkerRunner.from_checkpoint",
                feedback="omni_qwen3_tts.feedback:TalkerFeedback",
                factory_args=arguments("max_context"),
                next="code2wav",
                stream_to=["code2wav"],
                **place("talker"),
            ),
            StageConfig(
                name="code2wav",
                factory="omni_qwen3_tts.code2wav:create_code2wav",
                factory_args=arguments("initial_chunk", "chunk"),
                next=after,
                stream_to=after,
                terminal=not after,
                **place("code2wav"),
            ),
            *([align] if after else []),
        ],
        placement_fn="omni_qwen3_tts.memory:place",
        fetch_fn="omni_qwen3_tts.memory:fetch",
        interface=interface,
    )
