"""Results are checked against what the pipeline declares, before a client gets them."""

from __future__ import annotations

from typing import Any

import pytest

from omni_core.coordinator.claims import claims_check
from omni_core.errors import ConfigError
from omni_core.interface import Interface
from omni_core.protocol.outputs import AudioChunk, AudioResult, TextResult


@pytest.mark.parametrize("sound", [AudioChunk([0.0], 16_000), AudioResult([0.0], 16_000)])
def test_a_declared_rate_is_a_claim(sound: Any) -> None:
    check = claims_check(Interface(sample_rate=24_000))
    problem = check("say", sound)
    assert isinstance(problem, ConfigError)
    assert "stage 'say' made sound of 16000 Hz, and the pipeline declares interface.sample_rate=24000" in str(problem)
    assert check("say", TextResult("x")) is None
    assert check("say", AudioChunk([], 24_000)) is None
    for nothing_declared in (Interface(), None):
        assert claims_check(nothing_declared)("say", sound) is None
