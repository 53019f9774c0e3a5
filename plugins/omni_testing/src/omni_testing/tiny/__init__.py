"""Complete checkpoints of our models in their released layouts, tiny, with random weights: for tests and first tries."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from omni_core.api import load

MODELS = {
    "fish-s2": "omni-fish-s2",
    "qwen-image": "omni-diffusion",
    "qwen25": "omni-qwen25",
    "qwen3": "omni-qwen3",
    "qwen3-tts": "omni-qwen3-tts",
}
"""The models, and the distribution that each needs."""

_VERSION = 3
"""Of what the writers write: another one makes the checkpoints in users' caches anew."""


def writer(name: str) -> Callable[..., Path]:
    """Return ``write_tiny_checkpoint(directory, *, seed, shape, dtype) -> directory`` of one of :data:`MODELS`.

    Raises:
        ModuleNotFoundError: the model's distribution is not installed.
    """
    found: Callable[..., Path] = load(f"{__name__}.{name.replace('-', '_')}:write_tiny_checkpoint")
    return found


def made_once(name: str) -> str:
    """Return the folder of a checkpoint of one of :data:`MODELS`, made in the user's cache folder at the first call."""
    from omni_torch.checkpoints.folders import written_once

    index = "model_index.json" if name == "qwen-image" else "config.json"
    return written_once(f"{name}-tiny-{_VERSION}", writer(name), index)
