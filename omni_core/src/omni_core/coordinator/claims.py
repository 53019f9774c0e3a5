"""The check of results against what the pipeline declares: a declared sample rate is a claim, and a client would play sound by it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from omni_core.errors import ConfigError
from omni_core.interface import Interface
from omni_core.protocol.outputs import AudioChunk, AudioResult


def claims_check(interface: Interface | None) -> Callable[[str, Any], ConfigError | None]:
    """Return the function of a stage's name and its result, or partial result, that returns what is wrong with it.

    That is an error, which names the stage, for a sound of another sample rate than the interface declares.
    """
    rate = None if interface is None else interface.sample_rate

    def check(stage: str, data: Any) -> ConfigError | None:
        if rate is None or not isinstance(data, AudioChunk | AudioResult) or data.sample_rate == rate:
            return None
        return ConfigError(
            f"stage {stage!r} made sound of {data.sample_rate} Hz, and the pipeline declares interface.sample_rate={rate}; "
            "correct one of them"
        )

    return check
