"""A checkpoint as a pipeline, by what its architecture does. Light: nothing here imports torch."""

from __future__ import annotations

import logging
from importlib import import_module
from pathlib import Path
from typing import Any, Unpack

from attrs import evolve

from omni_core.api import ConfigError, Interface, PipelineConfig
from omni_torch.api import config_folder
from omni_transformers.adapters import adapter_of
from omni_transformers.checkpoints import Source, read
from omni_transformers.gguf_files import is_gguf
from omni_transformers.licences import forbids_commerce, licence_of
from omni_transformers.options import Given, Options, checked
from omni_transformers.speak.declaration import SPEAKERS, may_align
from omni_transformers.words.recognisers import RECOGNISERS, reads_windows, tells_speakers_by_another

logger = logging.getLogger(__name__)


def transformers(model_path: str, **options: Unpack[Options]) -> PipelineConfig:
    """Return the pipeline of a checkpoint. ``options``: see :data:`omni_transformers.options.OPTIONS`.

    Raises:
        ConfigError: an option is wrong, or the checkpoint cannot be run here.
    """
    given = checked(options)
    source = evolve(read(model_path if is_gguf(model_path) else config_folder(model_path)), given=given)
    licence = licence_of(model_path, source.folder)
    if licence is not None and forbids_commerce(licence):
        logger.warning("%s: its licence is %s, which allows no commercial use", model_path, licence)
    kind = _kind(source)
    _check_use(source, given)
    return PipelineConfig(
        model_path=model_path,
        name=Path(model_path).stem if is_gguf(model_path) else None,
        stages=kind.stages(source, given),
        interface=kind.interface(source),
        relay_backend="shm",
        fetch_fn="omni_transformers.checkpoints:fetch",
    )


_USED = {
    "backend": lambda source: (
        source.architecture.form not in ("ctc", "transducer", "live")
        if source.architecture.kind != "speak"
        else SPEAKERS[source.architecture.name].shares
    ),
    "tp_size": lambda source: source.architecture.kind == "words" and source.architecture.name not in RECOGNISERS,
    "max_audio_seconds": lambda source: "audio" in source.architecture.inputs and source.architecture.kind != "speak",
    "diarizer": lambda source: tells_speakers_by_another(source.architecture),
    "live_step": lambda source: reads_windows(source.architecture),
    "vocoder": lambda source: source.architecture.kind == "speak",
    "voices": lambda source: source.architecture.kind == "speak",
    "aligner": lambda source: source.architecture.kind == "speak" and may_align(source),
}
"""Options that not every kind of model reads, and whether the one of a checkpoint does."""


def _check_use(source: Source, given: Given) -> None:
    """Raise ConfigError if an option would have no effect. Those of an adapter are its own."""
    if adapter_of(source.config) is not None:
        return
    for name, is_used in _USED.items():
        if getattr(given, name) not in (None, "auto") and not is_used(source):
            raise ConfigError(
                f"--option {name}={getattr(given, name)}: has no effect on {source.architecture.name}; leave it out"
            )


def interface(folder: str) -> Interface:
    """Return what a checkpoint offers, by its config."""
    source = read(folder)
    found: Interface = _kind(source).interface(source)
    return found


def _kind(source: Source) -> Any:
    """Return what has ``stages(source, given)`` and ``interface(source)``: an adapter, or the module of what the checkpoint does."""
    return adapter_of(source.config) or import_module(f"omni_transformers.{source.architecture.kind}.declaration")
