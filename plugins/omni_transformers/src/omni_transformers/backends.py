"""The backend that computes a checkpoint, and why: what ``omni models check`` says of it."""

from __future__ import annotations

from collections.abc import Sequence

from omni_core.api import StageConfig, load
from omni_transformers.checkpoints import Source
from omni_transformers.loading import load_model
from omni_transformers.speak.speaker import BySentence, Together
from omni_transformers.words.engine_fit import backend_of
from omni_transformers.words.recognisers import RECOGNISERS


def backend_of_checkpoint(source: Source, stages: Sequence[StageConfig], dtype: str) -> tuple[str, list[str]]:
    """Return ``engine``, ``steps`` or ``generate``, and the reasons.

    Args:
        stages: of its pipeline.
        dtype: of the weights; a model that may be computed by the engine is loaded for it.
    """
    name, kind, form = source.architecture.name, source.architecture.kind, source.architecture.form
    speaker = next((each.factory_args["speaker"] for each in stages if "speaker" in each.factory_args), None)
    if speaker is not None:
        spoken = load(speaker)
        if issubclass(spoken, Together):
            return "steps", ["it speaks a sentence in one call, which on a GPU several requests share"]
        if issubclass(spoken, BySentence):
            return "generate", ["it speaks a sentence in one call; requests take turns by sentence"]
        return "steps", ["models that speak are not on the engine; requests take turns by frame"]
    if kind == "recognise" and form in ("ctc", "transducer"):
        return "steps", ["it writes a window in one call, which several requests share"]
    if kind == "recognise" or name in RECOGNISERS:
        return "steps", ["models that write recordings down are not on the engine; requests take turns by token"]
    return backend_of(load_model(str(source.folder), dtype)) if kind == "words" else ("steps", [])
