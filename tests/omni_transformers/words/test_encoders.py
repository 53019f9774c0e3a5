"""Outputs of encoders: kept by the piece, whatever the model is, and with the answers as they are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attrs import evolve
from tiny_transformers import MAKERS, checkpoint, examples, further_seers, late_seers, listeners, omnis, seers
from tiny_transformers.driving import replies, running

from omni_core import open_async
from omni_core.api import ConfigError, OmniRequest, StagePayload
from omni_media.api import Limits
from omni_transformers.architectures import table
from omni_transformers.loading import load_model, load_processor
from omni_transformers.pipeline import transformers
from omni_transformers.words.encoders import Encoders
from omni_transformers.words.engine import create_answer, engine_model
from omni_transformers.words.engine_fit import fitted
from omni_transformers.words.engine_layers import Unfit
from omni_transformers.words.engine_prompts import Prompt, captured
from omni_transformers.words.messages import rate_of
from omni_transformers.words.prepare import create_prepare
from omni_transformers.words.prompts import Prompts
from omni_transformers.words.steps import placed

HOMES = {each.__name__ for each in (further_seers, late_seers, listeners, omnis, seers)}
FIRST = {
    "InternVLForConditionalGeneration",  # tiles
    "Qwen3VLForConditionalGeneration",  # patches in a row, and a grid
    "Qwen2AudioForConditionalGeneration",  # no method of its features
}
MODELS = [
    pytest.param(name, marks=[] if name in FIRST else [pytest.mark.full])
    for name, make in MAKERS.items()
    if make.__module__ in HOMES
]
WHOLE = {
    "LlavaOnevisionForConditionalGeneration",
    "Molmo2ForConditionalGeneration",
    "VipLlavaForConditionalGeneration",
}
"""Those whose several pictures are kept together."""


def equal(one: Prompt, other: Prompt) -> bool:
    assert one.embeds is not None
    assert other.embeds is not None
    pairs = zip([one.embeds, *one.deep], [other.embeds, *other.deep], strict=True)
    return one.ids == other.ids and all(float((a - b).norm()) <= 1e-5 * float(b.norm()) for a, b in pairs)


@pytest.mark.parametrize("name", MODELS)
def test_prompts_are_equal_and_no_piece_is_encoded_again(name: str) -> None:
    folder = str(checkpoint(name))
    load_model.cache_clear()
    try:
        model = fitted(load_model(folder))
    except Unfit:
        pytest.skip("it does not fit the engine")
    processor = load_processor(folder)
    prompts = Prompts(processor, table()[name].inputs, name, Limits())
    for kind in [each for each in table()[name].inputs if each != "text"]:
        one_by_one, together = Encoders(model.model, 2**24), Encoders(model.model, 2**24, together=True)

        def check(*numbers: int, kind: str = kind, encoders: Encoders = one_by_one) -> float:
            """Compare a prompt of some pieces; return how many were encoded."""
            parts = [examples.part(kind, number, rate_of(processor)) for number in numbers]
            text = {"type": "text", "text": examples.TEXTS.get(name, "What?")}
            inputs = placed(prompts.inputs(examples.asked([*parts, text])), model.model)
            before = encoders.cache.statistics()["encoder_cache.misses"]
            assert equal(
                captured(model.decoder, inputs, encoders, model.sees_blocks),
                captured(model.decoder, inputs, None, model.sees_blocks),
            )
            return encoders.cache.statistics()["encoder_cache.misses"] - before

        assert check(0) > 0
        assert check(0) == 0
        check(1)
        if kind == "image" and name not in WHOLE:
            check(0, 1)  # how pieces are joined is learned; some processors fill them up to one size
            assert check(0, 1) == 0
            assert check(1, 0) == 0
            check(0, 1, encoders=together)
            assert check(1, 0, encoders=together) == 0


@pytest.mark.parametrize(("together", "calls"), [(False, [1, 1, 1, 1]), (True, [1, 1, 2])])
def test_missing_pieces_are_encoded_one_by_one_or_in_one_call(together: bool, calls: list[int]) -> None:
    folder = str(checkpoint("Qwen3VLForConditionalGeneration"))
    load_model.cache_clear()
    model = fitted(load_model(folder))
    prompts = Prompts(load_processor(folder), ["text", "image"], "Qwen3VLForConditionalGeneration", Limits())
    seen: list[int] = []
    model.model.model.visual.register_forward_pre_hook(
        lambda module, given, named: seen.append(len(named["grid_thw"])), with_kwargs=True
    )
    encoders = Encoders(model.model, 2**24, together)
    for numbers in ([0, 1], [0, 2, 3]):
        parts = [examples.part("image", number) for number in numbers]
        inputs = placed(prompts.inputs(examples.asked([*parts, {"type": "text", "text": "What?"}])), model.model)
        found = captured(model.decoder, inputs, encoders, model.sees_blocks)
        if numbers == [0, 1]:
            assert seen == [1, 1, 2], "the first call with several pieces tells how they make the whole"
            del seen[2:]
    assert seen == calls
    assert equal(found, captured(model.decoder, inputs, None, model.sees_blocks))


def answers(folder: str, requests: list[OmniRequest], cache_mb: int = 1) -> tuple[list[list[int]], dict[str, float]]:
    """Return the ids of requests one after the other, and the counters of the stage that prepares them."""
    payloads = [StagePayload(str(number), each) for number, each in enumerate(requests)]
    prepare: Any = create_prepare(folder, backend="engine", cache_mb=cache_mb)
    answer = create_answer(folder, backend="engine")
    with running(prepare):
        prompts = [result for _, result in replies(prepare, payloads)]
        counters = prepare.statistics()
    with running(answer) as scheduler:
        found = replies(scheduler, [evolve(each, data=data) for each, data in zip(payloads, prompts, strict=True)])
    return [result.token_ids for _, result in found], counters


def test_a_picture_of_an_earlier_turn_is_not_encoded_again() -> None:
    folder = str(checkpoint("LlavaForConditionalGeneration"))
    model = engine_model(folder, "cpu", "auto", "engine")
    assert model is not None
    seen: list[int] = []

    def count(module: Any, given: Any, named: dict[str, torch.Tensor]) -> None:
        seen.append(len(given[0] if given else named["pixel_values"]))

    tower = model.model.model.vision_tower.register_forward_pre_hook(count, with_kwargs=True)
    first = examples.asked([examples.part("image"), {"type": "text", "text": "What?"}])
    [said, question] = ({"role": role, "content": text} for role, text in [("assistant", "It is."), ("user", "And?")])
    second = OmniRequest({"messages": [*first.inputs["messages"], said, question]}, first.params)
    other = examples.asked([examples.part("image", 1), {"type": "text", "text": "What?"}])
    try:
        plain, none = answers(folder, [first, second, other], cache_mb=0)
        assert seen == [1, 1, 1]
        kept, counters = answers(folder, [first, second, other])
    finally:
        tower.remove()
    assert seen == [1, 1, 1, 1, 1]
    assert kept == plain
    assert len({*map(tuple, kept)}) == 3
    assert (counters["encoder_cache.hits"], counters["encoder_cache.misses"]) == (1, 2)
    assert 0 < counters["encoder_cache.bytes"] <= counters["encoder_cache.max_bytes"] == 2**20
    assert none["encoder_cache.bytes"] == 0


def test_what_is_kept_can_be_forgotten_and_has_a_size() -> None:
    folder = str(checkpoint("LlavaForConditionalGeneration"))
    prepare: Any = create_prepare(folder, cache_mb=1)
    with running(prepare):
        asked = examples.asked([examples.part("image"), {"type": "text", "text": "What?"}])
        replies(prepare, [asked])
        prepare.flush_caches()
        assert prepare.statistics()["encoder_cache.bytes"] == 0
        replies(prepare, [asked])
    assert prepare.statistics()["encoder_cache.misses"] == 2
    with pytest.raises(ConfigError, match="an encoder cache cannot hold -"):
        create_prepare(folder, cache_mb=-1)


@pytest.mark.parametrize("name", ["LlavaForConditionalGeneration", "Qwen3VLForConditionalGeneration"])
def test_each_process_keeps_its_part_of_the_model(name: str) -> None:
    folder = str(checkpoint(name))
    load_model.cache_clear()
    prompts = Prompts(load_processor(folder), table()[name].inputs, name, Limits())
    [content, *_] = examples.conversations(["image"], 16_000)
    sees, whole = fitted(load_model(folder)), set(load_model(folder).state_dict())
    inputs = placed(prompts.inputs(examples.asked(content)), sees.model)
    before = captured(sees.decoder, inputs)
    sees.drop_decoder()
    assert equal(captured(sees.decoder, inputs), before)
    load_model.cache_clear()
    answers = fitted(load_model(folder))
    answers.drop_encoders()
    embeddings = {each for each in whole if "embed_tokens" in each}
    seen, answered = (set(each.model.state_dict()) for each in (sees, answers))
    assert seen & answered == embeddings
    assert seen | answered == whole


@pytest.mark.full  # two processes that import transformers
@pytest.mark.parametrize("name", ["Qwen3VLForConditionalGeneration", "Qwen2AudioForConditionalGeneration"])
@pytest.mark.asyncio
async def test_the_encoders_run_in_a_process_of_their_own(name: str) -> None:
    folder = str(checkpoint(name))
    config = transformers(folder, backend="engine")
    apart = [evolve(each, process="encoders" if each.name == "prepare" else each.process) for each in config.stages]
    kind = "audio" if "audio" in table()[name].inputs else "image"
    contents = examples.conversations([kind, "text"], rate_of(load_processor(folder)))
    async with open_async(evolve(config, stages=apart)) as pipe:
        for content in contents:
            found = (await pipe.submit(examples.asked(content)))["answer"]
            assert found.token_ids == examples.reference(name, content)
        counters = await pipe.statistics()
    assert counters["encoders"]["prepare"]["encoder_cache.misses"] == len(contents) - 1
