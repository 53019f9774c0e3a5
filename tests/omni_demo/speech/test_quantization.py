"""With int8 weights the demo gives the same replies in text and speech."""

from __future__ import annotations

import asyncio

import pytest
from attrs import evolve
from tiers import few
from torch import nn

from demo_training.speech import report
from demo_training.speech.judge import Judge
from omni_core.client import open_async
from omni_core.config.schema import PipelineConfig
from omni_core.stage.assembly import assemble
from omni_demo.speech.phrases import COLOURS, KEYWORDS, REPLIES
from omni_demo.speech.pipeline import CHECKPOINT, demo
from omni_qwen3.layers import Experts
from omni_torch.engine.scheduler import EngineScheduler
from omni_torch.quantization import quantized_linear
from omni_torch.quantization.quantized_linear import QUANTIZATIONS

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.skipif(
        not all(map(quantized_linear._works, QUANTIZATIONS.values())), reason="this CPU lacks an int8 kernel"
    ),
]


def quantized(name: str) -> PipelineConfig:
    config = demo(str(CHECKPOINT), processes="one")
    stages = [
        evolve(stage, factory_args={**stage.factory_args, "quantization": name})
        if stage.name in ("thinker", "talker_ar")
        else stage
        for stage in config.stages
    ]
    return evolve(config, stages=stages)


async def test_the_thinker_is_large_enough_to_have_int8_weights() -> None:
    """Otherwise the tests below would show nothing."""
    parts = "omni_qwen3.thinker:ThinkerRunner.from_checkpoint", "omni_torch.engine.scheduler:EngineScheduler"
    stage = assemble(*parts, model_path=str(CHECKPOINT), quantization="int8_weight_only")
    assert isinstance(stage, EngineScheduler)
    model = stage._runner.model
    assert isinstance(model, nn.Module)
    assert not [name for name, each in model.named_modules() if isinstance(each, nn.Linear)]
    assert all(each._packed for each in model.modules() if isinstance(each, Experts))


@pytest.mark.parametrize("name", few(QUANTIZATIONS, 2))
async def test_text_and_speech_are_the_same(name: str) -> None:
    asked = report.documented()[::3]
    asked += [report.picture(colour, 1) for colour in COLOURS] + [report.sound(word, 1) for word in KEYWORDS]
    async with open_async(quantized(name)) as client:
        written = await asyncio.gather(*(report.answer(client, each, speech=False) for each in asked))
        spoken = await asyncio.gather(*(report.answer(client, each) for each in report.one_of_each()[:8]))
    wrong = [
        f"{said!r} instead of {each.reply!r}"
        for each, (said, _) in zip(asked, written, strict=True)
        if said != each.reply
    ]
    assert not wrong
    judge = Judge(REPLIES)
    assert sum(judge.hear(wave) == said for said, wave in spoken) >= 7
