"""The rule of rotary positions equals the reference's, on random prompts with every kind of media."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiers import few
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoePreTrainedModelForConditionalGeneration as Reference,
)

from omni_qwen3.config import QwenConfig, read_config
from omni_qwen3.positions import RopeIndex
from omni_qwen3.rope_index import MediaGrids, Rule, rope_index

KINDS = ("text", "clip", "image", "silent", "loud")


@pytest.fixture(scope="module")
def config(tiny: dict[str, Path]) -> QwenConfig:
    return read_config(tiny["a"])


def reference(config: QwenConfig) -> Any:
    """An object with what the reference's rule reads of its model."""
    thinker = config.raw["thinker_config"]
    audio = SimpleNamespace(n_window=thinker["audio_config"]["n_window"])
    names = ("image_token_id", "video_token_id", "audio_token_id", "vision_start_token_id", "audio_start_token_id")
    values = {name: thinker[name] for name in (*names, "position_id_per_seconds")}
    model = SimpleNamespace(config=SimpleNamespace(**values, audio_config=audio), spatial_merge_size=2)
    model.get_llm_pos_ids_for_vision = lambda *values: Reference.get_llm_pos_ids_for_vision(model, *values)
    return model


class Prompt:
    """A prompt of these kinds of pieces, of random sizes."""

    def __init__(self, kinds: list[str], config: QwenConfig, seed: int) -> None:
        self._draw, self._config = random.Random(seed), config
        thinker = config.raw["thinker_config"]
        self._vision, self._audio = thinker["vision_start_token_id"], thinker["audio_start_token_id"]
        self.images: list[list[int]] = []
        self.videos: list[list[int]] = []
        self.frames: list[int] = []
        self.seconds: list[float] = []
        self.ids: list[int] = [5, 6]
        for kind in kinds:
            self.ids += getattr(self, f"_{kind}")()
        self.ids += [7] * self._draw.randint(0, 3)

    @property
    def grids(self) -> MediaGrids:
        lists = (self.images, self.videos, self.frames, self.seconds)
        return MediaGrids(*(torch.tensor(each) if each else None for each in lists))

    def _text(self) -> list[int]:
        return [8] * self._draw.randint(1, 4)

    def _grid(self, most: int) -> tuple[list[int], int]:
        grid = [self._draw.randint(1, most), 2 * self._draw.randint(1, 4), 2 * self._draw.randint(1, 4)]
        return grid, grid[0] * grid[1] * grid[2] // 4

    def _sound(self) -> list[int]:
        self.frames.append(self._draw.choice([3, 40, 100, 177, 200, 431]))
        return [self._config.audio_token] * self._config.audio.tokens(self.frames[-1])

    def _clip(self) -> list[int]:
        return [self._audio, *self._sound(), self._audio + 1]

    def _image(self) -> list[int]:
        grid, tokens = self._grid(1)
        self.images.append(grid)
        return [self._vision, *[self._config.image_token] * tokens, self._vision + 1]

    def _pictures(self) -> list[int]:
        grid, tokens = self._grid(5)
        self.videos.append(grid)
        self.seconds.append(self._draw.choice([0.5, 1.0, 2 / 3, 2 / 0.7]))
        return [self._config.video_token] * tokens

    def _silent(self) -> list[int]:
        return [self._vision, *self._pictures(), self._vision + 1]

    def _loud(self) -> list[int]:
        return [self._vision, self._audio, *self._pictures(), *self._sound(), self._audio + 1, self._vision + 1]


def own_rule(config: QwenConfig) -> Rule:
    rule: Rule = RopeIndex(config)._rule
    return rule


@pytest.mark.parametrize("use_audio_in_video", [False, True])
@pytest.mark.parametrize("seed", few(range(6), 4))
def test_random_prompts_have_the_positions_of_the_reference(
    config: QwenConfig, seed: int, use_audio_in_video: bool
) -> None:
    """Also where the rule leaves media out, and where it fails: with sound in some videos and not in others."""
    draw, model, rule = random.Random(seed), reference(config), own_rule(config)
    equal = failed = 0
    for number in range(40):
        kinds = [draw.choice(KINDS) for _ in range(draw.randint(1, 6))]
        if {"image", "silent", "loud"}.isdisjoint(kinds):
            kinds.append("image")
        prompt = Prompt(kinds, config, 1000 * seed + number)
        ids, grids = torch.tensor([prompt.ids]), prompt.grids
        arguments = (grids.images, grids.videos, torch.ones_like(ids), use_audio_in_video, grids.audio_frames)
        try:
            expected, delta = Reference.get_rope_index(model, ids, *arguments, grids.seconds_per_grid)
        except (IndexError, RuntimeError, ValueError):
            failed += 1
            with pytest.raises(LookupError):
                rope_index(rule, prompt.ids, grids, use_audio_in_video=use_audio_in_video)
            continue
        positions, own = rope_index(rule, prompt.ids, grids, use_audio_in_video=use_audio_in_video)
        assert torch.equal(positions, expected[:, 0]), kinds
        assert own == float(delta), kinds
        equal += 1
    assert equal >= 20, f"the reference has failed {failed} times: hardly anything was compared"
