"""Kokoro as a pipeline config: text to phonemes, phonemes to sound. Light: nothing here imports torch."""

from __future__ import annotations

from typing import Any, Unpack

from attrs import evolve

from omni_core.api import PipelineConfig, StageConfig
from omni_kokoro.checkpoint import interface
from omni_kokoro.interface import OPTIONS, Options
from omni_torch.api import check_options, config_folder, device_of, written_once

_TINY = 1


def default_model() -> tuple[str, str]:
    """Return a tiny checkpoint with random weights, and a notice about it."""
    from omni_kokoro.tiny import write_tiny_checkpoint

    folder = written_once(f"kokoro-tiny-{_TINY}", write_tiny_checkpoint)
    notice = "No --model given: using a tiny checkpoint with RANDOM weights, which is noise. The real one: --model hexgrad/Kokoro-82M"
    return folder, notice


def kokoro(model_path: str, **options: Unpack[Options]) -> PipelineConfig:
    """Text in, speech out. ``options``: see :data:`omni_kokoro.interface.OPTIONS`."""
    given: dict[str, Any] = {**options}
    check_options(given, OPTIONS, spelling=("espeak", "misaki"), processes=("one", "separate"))
    offered = interface(config_folder(model_path), given.get("voices"), given.get("weights"))
    if "max_characters" in given:
        offered = evolve(offered, limits={**offered.limits, "max_characters": given["max_characters"]})
    separate = given.get("processes") == "separate"

    def arguments(*names: str) -> dict[str, Any]:
        return {name: given[name] for name in names if given.get(name) is not None}

    stages = [
        StageConfig(
            name="phonemes",
            process="phonemes" if separate else "pipeline",
            factory="omni_kokoro.reader:create_reader",
            factory_args=arguments("voices", "spelling", "max_characters"),
            next="speak",
            stream_to=["speak"],
        ),
        StageConfig(
            name="speak",
            process="speak" if separate else "pipeline",
            factory="omni_kokoro.speaker:create_speaker",
            factory_args=arguments("weights", "max_batch_size"),
            gpu=device_of(given.get("gpu")),
            terminal=True,
        ),
    ]
    return PipelineConfig(
        model_path=model_path,
        name="kokoro",
        stages=stages,
        interface=offered,
        relay_backend="shm",
        fetch_fn="omni_kokoro.checkpoint:fetch",
    )
