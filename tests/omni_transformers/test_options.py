"""Options of the pipeline: an unknown one, and one that a model does not read, are errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiny_transformers import checkpoint, frame_recognisers, listeners, seers, speakers, writers
from tiny_transformers.tiny_whisper import WINDOW, whisper

from omni_cli.deploy.budgets import problems
from omni_core.api import ConfigError
from omni_core.config.placement import plan
from omni_transformers.pipeline import transformers

assert frame_recognisers and listeners and seers and speakers and writers  # noqa: PT018


@pytest.mark.parametrize(
    ("architecture", "options", "words"),
    [
        ("LlamaForCausalLM", {"backend": "engin"}, r"backend=engin: there is no such backend; did you mean 'engine'"),
        ("LlamaForCausalLM", {"dtyp": "float32"}, r"dtyp: there is no such option; did you mean 'dtype'"),
        ("LlamaForCausalLM", {"voices": "x"}, "voices=x: has no effect on LlamaForCausalLM"),
        ("LlamaForCausalLM", {"max_audio_seconds": 3.0}, "max_audio_seconds=3.0: has no effect"),
        ("Wav2Vec2ForCTC", {"backend": "engine"}, "backend=engine: has no effect on Wav2Vec2ForCTC"),
        ("VitsModel", {"backend": "steps"}, "backend=steps: has no effect on VitsModel"),
        ("VitsModel", {"aligner": "x"}, "aligner=x: has no effect on VitsModel"),
        ("MusicgenForConditionalGeneration", {"aligner": "x"}, "aligner=x: has no effect on MusicgenForConditional"),
        ("LlamaForCausalLM", {"aligner": "x"}, "aligner=x: has no effect on LlamaForCausalLM"),
        ("VitsModel", {"tp_size": 2}, "tp_size=2: has no effect on VitsModel"),
        (
            "LlamaForCausalLM",
            {"tp_size": 2, "backend": "steps"},
            "tp_size=2: only the engine splits a model; leave out",
        ),
        ("LlamaForCausalLM", {"tp_size": 0}, "tp_size=0: must be a number of processes, at least 1"),
    ],
)
def test_what_has_no_effect_is_an_error(architecture: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        transformers(str(checkpoint(architecture)), **options)
    transformers(str(checkpoint(architecture)))


def test_the_longest_recording_is_declared(tmp_path: Path) -> None:
    """Of longer ones a server sends parts."""

    def longest(folder: Path, **options: Any) -> float:
        found = transformers(str(folder), **options).interface
        assert found is not None
        return found.limits["max_audio_seconds"]

    whisper(tmp_path, no_timestamps_token_id=None, alignment_heads=None)
    assert [longest(tmp_path), longest(tmp_path, max_audio_seconds=0.5)] == [
        WINDOW,
        0.5,
    ]  # one window: it tells no times
    ctc = checkpoint("Wav2Vec2ForCTC")
    assert [longest(ctc), longest(ctc, max_audio_seconds=7.0)] == [3600.0, 7.0]
    glm = checkpoint("GlmAsrForConditionalGeneration")
    assert [longest(glm), longest(glm, max_audio_seconds=7.0)] == [60.0, 7.0]


@pytest.mark.parametrize(
    ("architecture", "sees"), [("LlamaForCausalLM", False), ("Qwen2VLForConditionalGeneration", True)]
)
def test_ranks_have_the_gpus_from_the_first_on(architecture: str, sees: bool) -> None:
    config = transformers(str(checkpoint(architecture)), tp_size=2, gpu=4)
    prepare, answer = config.stages
    assert (answer.tp_size, answer.gpu, prepare.gpu) == (2, [4, 5], 4 if sees else None)
    assert not problems(plan(config)), "what shares a device has a budget"


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Wav2Vec2ForCTC", "VitsModel"])
def test_what_its_stages_import_is_shared_with_other_processes(architecture: str) -> None:
    for stage in transformers(str(checkpoint(architecture))).stages:
        assert stage.preload == [(stage.factory or "").partition(":")[0]]
