"""The backend that computes a checkpoint, and why: what ``omni models check`` says of it."""

from __future__ import annotations

from collections.abc import Sequence

from omni_core.api import StageConfig, load
from omni_transformers.calls.choice import Loop, backend_of
from omni_transformers.checkpoints import Source
from omni_transformers.loading import load_model
from omni_transformers.recognise.declaration import SAMPLED
from omni_transformers.speak.speaker import BySentence, Loading, Speaker, Together


def backend_of_checkpoint(source: Source, stages: Sequence[StageConfig], dtype: str) -> tuple[str, list[str]]:
    """Return ``engine``, ``steps`` or ``generate``, and the reasons.

    Args:
        stages: of its pipeline.
        dtype: of the weights; a model that may be computed by the engine is loaded for it.
    """
    speaker = next((each.factory_args["speaker"] for each in stages if "speaker" in each.factory_args), None)
    if speaker is not None:
        spoken = load(speaker)
        if issubclass(spoken, Together):
            return "steps", ["it speaks a sentence in one call, which on a GPU several requests share"]
        if issubclass(spoken, BySentence):
            return "generate", ["it speaks a sentence in one call; requests take turns by sentence"]
        made: Speaker = spoken(Loading(str(source.folder), dtype=dtype))
        if made.loop is not None:
            return backend_of(made.loop)
        return "steps", ["its decoder is called by code of its own; requests take turns by frame"]
    if source.architecture.name in SAMPLED:
        return "engine", []
    if source.architecture.form == "live":
        return "steps", ["it hears a piece of sound in one call, which several streams share"]
    if source.architecture.form in ("ctc", "transducer"):
        return "steps", ["it writes a window in one call, which several requests share"]
    return backend_of(Loop(load_model(str(source.folder), dtype)))
