"""A checkpoint's config: whatever stands in place of a value, reading and planning go on or name it."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from omni_core.errors import ConfigError
from omni_qwen25.config import parse_config
from omni_qwen25.memory import networks_of
from omni_qwen25.works import works_of

STAGES = {"image_encoder", "audio_encoder", "thinker", "talker", "code2mel", "mel2wav"}
VALUES: list[Any] = [2**63, -1, 0, 1.5, "x", True, None, [], {}, [[1]], [None], float("inf")]


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if place:
        yield place
    items = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, each in items:
        yield from places(each, (*place, key))


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_every_value_is_checked_before_use(tiny: dict[str, Path], value: Any) -> None:
    whole = json.loads((tiny["a"] / "config.json").read_text())
    for place in places(whole):
        changed = section = copy.deepcopy(whole)
        for key in place[:-1]:
            section = section[key]
        section[place[-1]] = value
        try:
            config = parse_config(changed)
        except ConfigError:
            continue
        networks_of(config)
        works_of(config, STAGES)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("thinker_config.text_config.layer_types", 2**63, r"text_config\.layer_types: must be a list of strings"),
        ("thinker_config.eos_token_id", "x", r"thinker_config\.eos_token_id: must be a whole number"),
        ("thinker_config.text_config.num_key_value_heads", [1], r"num_key_value_heads: must be a whole number"),
        ("thinker_config.vision_config.patch_size", [14], r"vision_config\.patch_size: must be a whole number"),
        ("token2wav_config.bigvgan_config.upsample_rates", [5], r"upsample_kernel_sizes: must be 1 numbers, as upsample_rates"),
        ("token2wav_config.bigvgan_config.resblock_dilation_sizes", [[1, "3"]], r"resblock_dilation_sizes: must be . lists"),
    ],
)  # fmt: skip
def test_a_value_of_another_type_is_named(tiny: dict[str, Path], place: str, value: Any, message: str) -> None:
    raw = json.loads((tiny["a"] / "config.json").read_text())
    *parents, name = place.split(".")
    section = raw
    for parent in parents:
        section = section[parent]
    section[name] = value
    with pytest.raises(ConfigError, match=message):
        parse_config(raw)
