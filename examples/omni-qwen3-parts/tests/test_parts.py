"""The parts replace those of an installed model by name, and change only what they should."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from qwen3_parts.feedback import ArgmaxCodes
from qwen3_parts.runner import BiasedThinkerRunner, logit_bias

from omni_cli.deploy.source import LayeredSource
from omni_core.api import InvalidRequestError, OmniRequest, RequestFailedError, open_async
from omni_testing import PluginConformance
from omni_testing.ours.qwen3 import TalkerConformance, TalkerFeedbackConformance, ThinkerConformance
from omni_testing.tiny.qwen3 import write_tiny_checkpoint

FEEDBACK = "talker_ar.feedback=argmax-codes"
RUNNER = "thinker.model_runner=biased-thinker"
CHOSEN = 77
"""A token id that the tiny model does not choose by itself."""


class TestPlugin(PluginConformance):
    entry_point = "qwen3-parts"
    targets_need = ("torch", "transformers")


class TestBiasedThinker(ThinkerConformance):
    runner = BiasedThinkerRunner


class TestArgmaxCodes(TalkerFeedbackConformance):
    feedback = ArgmaxCodes


class TestTalkerWithArgmaxCodes(TalkerConformance):
    feedback = ArgmaxCodes


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("model") / "tiny")


def asking(text: str, metadata: dict[str, Any] | None = None, temperature: float = 0.0) -> OmniRequest:
    params = {
        "thinker": {"max_new_tokens": 6},
        "talker": {"temperature": temperature, "seed": 3, "max_new_tokens": 8},
    }
    message = {"role": "user", "content": [{"type": "text", "text": text}]}
    return OmniRequest({"messages": [message]}, params, metadata=metadata or {})


async def answers(model: Path, requests: list[OmniRequest], *settings: str) -> list[tuple[list[int], np.ndarray]]:
    """Return text ids and sound of requests that run together in a pipeline with these ``--set`` flags."""
    source = LayeredSource("qwen3-omni", str(model), {"processes": "one"}, settings)
    async with open_async(source.resolve().config) as client:
        given = await asyncio.gather(*(client.submit(each) for each in requests))
    return [(list(each["decode"].token_ids), np.asarray(each["code2wav"].samples)) for each in given]


async def test_argmax_codes_change_sampled_speech_and_nothing_else(model: Path) -> None:
    asked = [asking("Hello.", temperature=0.9), asking("What is a fox?")]
    plain, swapped = await answers(model, asked), await answers(model, asked, FEEDBACK)
    for (ids, _), (others, _) in zip(plain, swapped, strict=True):
        assert ids == others, "the text changed"
    sampled, greedy = [(one[1], other[1]) for one, other in zip(plain, swapped, strict=True)]
    np.testing.assert_allclose(*greedy, atol=1e-4, err_msg="greedy speech chooses its codes by argmax anyway")
    assert sampled[0].shape != sampled[1].shape or np.abs(sampled[0] - sampled[1]).max() > 1e-3
    (again,) = await answers(model, asked[:1], FEEDBACK)
    np.testing.assert_allclose(again[1], sampled[1], atol=1e-4)


async def test_a_bias_changes_its_request_and_no_other(model: Path) -> None:
    biased = asking("Hello.", {"logit_bias": {str(CHOSEN): 1000.0}})
    asked = [asking("Hello."), biased, asking("What is a fox?")]
    unbiased = await answers(model, [asked[0], asked[2]])
    first, changed, last = await answers(model, asked, RUNNER)
    assert changed[0] == [CHOSEN] * 6
    for (ids, sound), (expected, wave) in zip((first, last), unbiased, strict=True):
        assert ids == expected
        assert CHOSEN not in ids
        np.testing.assert_allclose(sound, wave, atol=1e-4)


async def test_both_parts_at_once_in_processes_of_their_own(model: Path) -> None:
    config = LayeredSource("qwen3-omni", str(model), {}, (FEEDBACK, RUNNER)).resolve().config
    async with open_async(config) as client:
        answer = await client.submit(asking("Hello.", {"logit_bias": {str(CHOSEN): 1000.0}}))
        with pytest.raises(RequestFailedError, match=r"metadata\.logit_bias: the model has ids 0 to"):
            await client.submit(asking("Hello.", {"logit_bias": {"-1": 1.0}}))
    assert list(answer["decode"].token_ids) == [CHOSEN] * 6


@pytest.mark.parametrize("given", [7, {"x": 1.0}, {"1": None}, [1], {"99999999": 1.0}], ids=str)
def test_an_invalid_bias_is_refused(given: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"metadata\.logit_bias"):
        logit_bias(given, 100)


def test_the_config_names_the_parts(model: Path) -> None:
    config = LayeredSource("qwen3-omni", str(model), {}, (FEEDBACK, RUNNER)).resolve().config
    stages = {stage.name: stage for stage in config.stages}
    assert stages["talker_ar"].feedback == "argmax-codes"
    assert stages["thinker"].model_runner == "biased-thinker"
