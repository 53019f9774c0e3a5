"""Sharing of prefixes and encoded media between requests changes their duration and nothing else."""

from __future__ import annotations

import asyncio
import copy
from pathlib import Path
from typing import Any

import numpy as np
from attrs import evolve
from harness import pipeline, request_of

from omni_core.client import open_async
from omni_core.config.schema import PipelineConfig

WAVE_TOLERANCE = 1e-4


def unshared(config: PipelineConfig) -> PipelineConfig:
    """The same pipeline with every cache off."""
    prefixes, media = {"prefix_cache": False}, {"cache_mb": 0}
    off = {"thinker": prefixes, "talker_ar": prefixes, "image_encoder": media, "audio_encoder": media}
    stages = [evolve(s, factory_args={**s.factory_args, **off.get(s.name, {})}) for s in config.stages]
    return evolve(config, stages=stages)


def difference(one: Any, other: Any) -> str | None:
    if list(one["decode"].token_ids) != list(other["decode"].token_ids):
        return "ids"
    if not np.array_equal(np.asarray(one["code2wav"].codes), np.asarray(other["code2wav"].codes)):
        return "codes"
    waves = [np.asarray(each["code2wav"].samples) for each in (one, other)]
    return None if np.allclose(*waves, atol=WAVE_TOLERANCE) else "waveform"


def follow_up(case: dict[str, Any]) -> dict[str, Any]:
    """The same conversation, one turn later."""
    longer = copy.deepcopy(case)
    longer["messages"] += [
        {"role": "assistant", "content": [{"type": "text", "text": "I see."}]},
        {"role": "user", "content": [{"type": "text", "text": "Say more."}]},
    ]
    return longer


async def test_answers_with_every_cache_equal_answers_without(
    checkpoints: dict[str, Path], cases: dict[str, Any], files: dict[str, str]
) -> None:
    names = ["image_audio_video", "multi_turn", "video_with_audio", "text"]
    asked = [cases[name] for name in names] + [follow_up(cases["image"]), follow_up(cases["image_audio_video"])]
    config = pipeline(checkpoints["a"], processes="one")
    async with open_async(unshared(config)) as client:
        expected = [await client.submit(request_of(case)) for case in asked]
        counters = (await client.statistics())["pipeline"]
        assert counters["thinker"]["reused_positions"] == counters["talker_ar"]["reused_positions"] == 0
        assert counters["image_encoder"]["encoder_cache.bytes"] == 0
    async with open_async(config) as client:
        first = [await client.submit(request_of(case)) for case in asked]
        fresh = (await client.statistics())["pipeline"]
        again = await asyncio.gather(*(client.submit(request_of(case)) for case in asked))
        counters = (await client.statistics())["pipeline"]
        for answers in (first, again):
            wrong = [difference(one, two) for one, two in zip(expected, answers, strict=True)]
            assert wrong == [None] * len(asked)
        for stage in ("thinker", "talker_ar"):
            assert counters[stage]["reused_positions"] > fresh[stage]["reused_positions"] > 0, stage
        for stage in ("image_encoder", "audio_encoder"):
            assert counters[stage]["encoder_cache.misses"] == fresh[stage]["encoder_cache.misses"], stage
            assert counters[stage]["encoder_cache.hits"] > fresh[stage]["encoder_cache.hits"], stage


async def test_another_picture_behind_the_same_words_is_another_prompt(
    checkpoints: dict[str, Path], cases: dict[str, Any], files: dict[str, str], tmp_path: Path
) -> None:
    import media

    picture = str(media.write_image(tmp_path / "other.png", 77))  # as large as the first, so the placeholders are equal
    case, other = cases["image"], copy.deepcopy(cases["image"])
    (part,) = [part for part in other["messages"][0]["content"] if part["type"] == "image"]
    part["path"] = picture
    config = pipeline(checkpoints["a"], processes="one")
    async with open_async(unshared(config)) as client:
        expected = [await client.submit(request_of(each)) for each in (case, other)]
    assert difference(*expected) is not None, "the picture has no effect"
    async with open_async(config) as client:
        for _ in range(2):
            for each, answer in zip((case, other), expected, strict=True):
                assert difference(await client.submit(request_of(each)), answer) is None
        counters = (await client.statistics())["pipeline"]["image_encoder"]
        assert (counters["encoder_cache.misses"], counters["encoder_cache.hits"]) == (2, 2)
