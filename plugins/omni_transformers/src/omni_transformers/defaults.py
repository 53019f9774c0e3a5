"""Defaults of request parameters, read from a checkpoint. Imports no torch."""

from __future__ import annotations

from typing import Any


def defaults_of(generation: dict[str, Any], **ours: Any) -> dict[str, Any]:
    """Return the defaults of sampling parameters by a checkpoint's ``generation_config.json``. ``ours``: where it says nothing."""
    found = {
        name: generation[name]
        for name in ("top_k", "top_p", "min_p", "repetition_penalty")
        if generation.get(name) is not None
    }
    temperature = generation.get("temperature")
    found["temperature"] = (1.0 if temperature is None else temperature) if generation.get("do_sample") else 0.0
    if generation.get("max_new_tokens"):
        found["max_new_tokens"] = generation["max_new_tokens"]
    return ours | found
