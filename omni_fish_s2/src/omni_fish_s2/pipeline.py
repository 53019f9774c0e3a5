"""Fish S2 as a pipeline config. Light: nothing here imports torch."""

from __future__ import annotations

from typing import Any, Unpack

from attrs import evolve

from omni_core.api import AUTO, PipelineConfig, StageConfig, expanded
from omni_fish_s2.interface import INTERFACE, OPTIONS
from omni_fish_s2.options import Options
from omni_torch.api import DTYPES, check_options, config_folder, device_of, random_checkpoint

_TEXT = ("segment_bytes", "max_characters", "max_reference_seconds", "voices_kept", "max_context")


def default_model() -> tuple[str, str]:
    """Return a tiny checkpoint with random weights, and a notice about it."""
    return random_checkpoint("fish-s2", "fishaudio/s2-pro")


def fish_s2(model_path: str, **options: Unpack[Options]) -> PipelineConfig:
    """Text and reference voices in, speech out. ``options``: see :data:`omni_fish_s2.interface.OPTIONS`."""
    given: dict[str, Any] = {**options}
    limits: dict[str, float] = {
        name: given[name] for name in ("max_characters", "max_reference_seconds", "max_context") if name in given
    }
    return PipelineConfig(
        model_path=config_folder(model_path) if expanded(model_path).is_dir() else model_path,
        name="fish-s2",
        stages=speech_stages(**{"gpu": AUTO, **given}),
        placement_fn="omni_fish_s2.memory:place",
        fetch_fn="omni_fish_s2.memory:fetch",
        interface=evolve(INTERFACE, limits={**INTERFACE.limits, **limits}),
    )


def speech_stages(
    *,
    model_path: str | None = None,
    text_stream: bool = False,
    reference: str | None = None,
    reference_text: str | None = None,
    **options: Any,
) -> list[StageConfig]:
    """Return the stages, to append to others: a stage that writes text names ``preprocessing`` in ``next`` and
    ``stream_to``.

    Args:
        model_path: the checkpoint's folder, if the pipeline's own model is another.
        text_stream: true if the text arrives from such a stage, in chunks, and is spoken while it arrives.
        reference, reference_text: with a text stream, the voice of every request: a recording and its transcript.
        options: see :data:`omni_fish_s2.interface.OPTIONS`.
    """
    check_options(options, OPTIONS, dtype=(AUTO, *DTYPES), processes=("separate", "one"))
    processes = options.get("processes", "separate")
    voice = {"text_stream": text_stream or None, "reference": reference, "reference_text": reference_text}

    gpu = device_of(options.get("gpu"))

    def arguments(*names: str, **own: Any) -> dict[str, Any]:
        given = {name: options[name] for name in ("dtype", *names) if name in options and options[name] != AUTO}
        return given | {name: value for name, value in {"model_path": model_path, **own}.items() if value is not None}

    def place(stage: str) -> dict[str, Any]:
        return {"process": "pipeline" if processes == "one" else stage, "gpu": gpu}

    return [
        StageConfig(
            name="preprocessing",
            factory="omni_fish_s2.preprocessing:create_preprocessing",
            factory_args=arguments(*_TEXT, **voice),
            next="semantic_ar",
            stream_to=["semantic_ar"],
            stream_done_to_fn="omni_fish_s2.text_stream:ends_stream_to",
            **place("preprocessing"),
        ),
        StageConfig(
            name="semantic_ar",
            model_runner="omni_fish_s2.semantic:SpeechRunner.from_checkpoint",
            feedback="omni_fish_s2.frame_feedback:FrameFeedback",
            factory_args=arguments("max_context"),
            next="vocoder",
            stream_to=["vocoder"],
            **place("semantic_ar"),
        ),
        StageConfig(
            name="vocoder",
            factory="omni_fish_s2.vocoder:create_vocoder",
            factory_args=arguments("initial_chunk", "chunk"),
            terminal=True,
            **place("vocoder"),
        ),
    ]
