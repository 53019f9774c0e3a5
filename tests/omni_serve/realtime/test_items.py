"""The part of an answer that the user has heard when playback stops."""

from __future__ import annotations

import pytest

from omni_serve.realtime.items import Part


@pytest.mark.parametrize(
    ("heard_ms", "heard"),
    [(None, "one two"), (0, ""), (400, "one"), (900, "one"), (1000, "one two"), (2000, "one two")],
)
def test_heard_ends_at_the_last_whole_word(heard_ms: float | None, heard: str) -> None:
    part = Part("output_audio", text="one two", audio_ms=1000, whole=True, heard_ms=heard_ms)
    assert part.heard == heard
