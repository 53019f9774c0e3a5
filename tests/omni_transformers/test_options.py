"""Options of the pipeline: an unknown one, and one that a model does not read, are errors."""

from __future__ import annotations

from typing import Any

import pytest
from tiny_transformers import checkpoint, frame_recognisers, seers, speakers, writers

from omni_cli.deploy.budgets import problems
from omni_core.api import ConfigError
from omni_core.config.placement import plan
from omni_transformers.pipeline import transformers

assert frame_recognisers and seers and speakers and writers  # noqa: PT018


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
