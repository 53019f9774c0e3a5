"""Public names for adapters: models that other distributions add. Each is imported when it is first asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from omni_core.api import exports

if TYPE_CHECKING:
    from omni_transformers.align.declaration import aligner_stage
    from omni_transformers.calls.choice import Loop
    from omni_transformers.calls.lines import in_turns
    from omni_transformers.checkpoints import Source
    from omni_transformers.hooks import AdapterComponent
    from omni_transformers.interleaved import Interleaved
    from omni_transformers.loading import generation_config, load_model, load_processor
    from omni_transformers.options import Given
    from omni_transformers.speak.decoding import Causal, Windows, reach_of
    from omni_transformers.speak.speaker import Asked, BySentence, Loading, Speaker, chosen
    from omni_transformers.speak.speaks import Offer, Speaks
    from omni_transformers.speak.turns import Frames, report, report_results, reported, turn_after

__all__ = [
    # Light: the component, what a checkpoint offers, and the stage behind a voice that finds when words are heard
    "AdapterComponent", "Given", "Offer", "Source", "Speaks", "aligner_stage",
    # Models, loaded from a folder
    "generation_config", "load_model", "load_processor",
    # Requests in turns
    "Frames", "Interleaved", "Loop", "in_turns", "report", "report_results", "reported", "turn_after",
    # Speakers, and sound from the frames of a codec
    "Asked", "BySentence", "Causal", "Loading", "Speaker", "Windows", "chosen", "reach_of",
]  # fmt: skip

_HOMES = {
    "omni_transformers.align.declaration": "aligner_stage",
    "omni_transformers.calls.choice": "Loop",
    "omni_transformers.calls.lines": "in_turns",
    "omni_transformers.checkpoints": "Source",
    "omni_transformers.hooks": "AdapterComponent",
    "omni_transformers.interleaved": "Interleaved",
    "omni_transformers.loading": "generation_config load_model load_processor",
    "omni_transformers.options": "Given",
    "omni_transformers.speak.decoding": "Causal Windows reach_of",
    "omni_transformers.speak.speaker": "Asked BySentence Loading Speaker chosen",
    "omni_transformers.speak.speaks": "Offer Speaks",
    "omni_transformers.speak.turns": "Frames report report_results reported turn_after",
}
"""By module, the names that come from it."""

if not TYPE_CHECKING:  # or checkers would take any name for one of this module
    __getattr__ = exports(__name__, _HOMES)
