"""The findings of `omni models check`, by kind of checkpoint."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_transformers import checkpoint, recognisers, speakers, writers
from tiny_transformers.tiny_whisper import whisper

from omni_transformers import checking
from omni_transformers.checking import report

assert recognisers
assert speakers
assert writers


@pytest.mark.parametrize(
    ("name", "backend", "compared"),
    [
        ("LlamaForCausalLM", "backend: engine", "ids: those of generate()"),
        (
            "WhisperForConditionalGeneration",
            "backend: engine",
            "text: that of transformers' own call",
        ),
        ("MoonshineForConditionalGeneration", "backend: engine", "text: that of"),
        ("Wav2Vec2ForCTC", "backend: steps, because it writes a window", "text: that of transformers' own call"),
        ("ParakeetForTDT", "backend: steps, because it writes a window", "text: that of transformers' own call"),
        (
            "NemotronAsrStreamingForRNNT",
            "backend: steps, because it hears a piece",
            "text: that of transformers' own call",
        ),
        ("VoxtralRealtimeForConditionalGeneration", "backend: engine", "text: that of transformers' own call"),
        ("VitsModel", "backend: steps, because it speaks a sentence", "sound: that of transformers' own call"),
        ("BarkModel", "backend: generate, because it speaks a sentence", "not compared"),
    ],
)
def test_the_backend_and_one_request_beside_the_own_call(
    name: str, backend: str, compared: str, tmp_path: Path
) -> None:
    folder = checkpoint(name)
    if name.startswith("Whisper"):  # at higher temperatures, random weights write times where none are asked for
        whisper(folder := tmp_path, logprob_threshold=-9.0)
    lines, is_equal = report(str(folder), "float32")
    assert is_equal, lines
    assert lines[1].startswith(backend)
    assert lines[2].startswith("one request: ")
    assert lines[3].startswith(compared)


def test_what_differs_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "own_text", lambda *given: "another text")
    monkeypatch.setattr(checking, "own_sound", lambda *given: np.zeros(3, np.float32))
    for name, said in (
        ("Wav2Vec2ForCTC", "text of transformers' own call: 'another text'"),
        ("VitsModel", "sound: not that of"),
    ):
        lines, is_equal = report(str(checkpoint(name)), "float32")
        assert not is_equal
        assert lines[-1].startswith(said)
