"""Every architecture that writes text: its answers are those of transformers' own ``generate()``, alone and beside others."""

from __future__ import annotations

import pytest
from tiny_transformers import MAKERS, examples, further_seers, late_seers, listeners, omnis, seers, writers

from omni_transformers.words.recognisers import RECOGNISERS

HOMES = {each.__name__ for each in (further_seers, late_seers, listeners, omnis, seers, writers)}
"""The modules with the makers of this kind."""

ALWAYS = (
    "Qwen2AudioForConditionalGeneration",
    "Qwen3ASRForConditionalGeneration",
    "LlavaForConditionalGeneration",
    "Qwen2_5_VLForConditionalGeneration",
    "GptOssForCausalLM",
    "MambaForCausalLM",
    "T5ForConditionalGeneration",
)
"""Those of each run of the tests."""

OURS = [name for name, make in MAKERS.items() if make.__module__ in HOMES]


def cases(names: list[str]) -> list[object]:
    """Return names as parameters of a test."""
    return [pytest.param(name, id=name, marks=[] if name in ALWAYS else [pytest.mark.full]) for name in names]


@pytest.mark.parametrize("name", cases(OURS))
@pytest.mark.parametrize("backend", ["steps", "auto"])
def test_answers_are_those_of_generate(name: str, backend: str) -> None:
    examples.check(name, backend)


@pytest.mark.parametrize("name", cases([name for name in OURS if name in RECOGNISERS]))
def test_transcripts_are_those_of_generate(name: str) -> None:
    examples.check_transcripts(name)
