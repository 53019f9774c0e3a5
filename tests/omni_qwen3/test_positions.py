"""Rotary positions of multimodal prompts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import Qwen3OmniMoeForConditionalGeneration

from omni_core.errors import InvalidRequestError
from omni_core.model_runner.types import ARRequest, RandomStream, SamplingParams
from omni_core.protocol.messages import OmniRequest
from omni_qwen3.config import QwenConfig, read_config
from omni_qwen3.layers import MOST_LOOKED_UP, Rotary
from omni_qwen3.positions import RopeIndex
from omni_qwen3.rope_index import MediaGrids
from omni_qwen3.turns import assistant_start, user_rows
from omni_torch.loop.packing import packed_rotary, rotary


@pytest.fixture(scope="module")
def config(tiny: dict[str, Path]) -> QwenConfig:
    return read_config(tiny["a"])


def prompt(config: QwenConfig, *media: list[int]) -> torch.Tensor:
    """One user turn with media between words."""
    inner = [token for each in media for token in (*each, 5, 6)]
    return torch.tensor([config.im_start, config.user, 20, *inner, config.im_start, config.assistant, 40])


def test_a_prompt_without_an_assistant_turn_is_refused(config: QwenConfig) -> None:
    ids = prompt(config)
    assert assistant_start(ids, config) == len(ids) - 3
    for without in (ids[:-2], ids[:1], ids[:0]):
        with pytest.raises(InvalidRequestError, match="open no assistant turn"):
            assistant_start(without, config)


def video(config: QwenConfig, steps: int, sound: int = 0) -> list[int]:
    """The tokens of a video with 4 positions per time step, and of its sound."""
    thinker = config.raw["thinker_config"]
    start, audio = thinker["vision_start_token_id"], thinker["audio_start_token_id"]
    pictures = [config.video_token] * (4 * steps)
    if sound:
        return [start, audio, *pictures, *[config.audio_token] * sound, audio + 1, start + 1]
    return [start, *pictures, start + 1]


def grids(*steps: int, seconds: float = 1.0, sounds: int = 0) -> MediaGrids:
    return MediaGrids(
        videos=torch.tensor([[each, 4, 4] for each in steps]),
        audio_frames=torch.tensor([100] * sounds) if sounds else None,
        seconds_per_grid=torch.tensor([seconds] * len(steps)),
    )


@pytest.mark.parametrize("seconds", [2 / 3, 0.5, 2 / 0.7, 1.0])
def test_fractional_time_steps_are_those_of_the_reference(
    tiny: dict[str, Path], config: QwenConfig, seconds: float
) -> None:
    model = Qwen3OmniMoeForConditionalGeneration.from_pretrained(tiny["a"])
    ids, media = prompt(config, video(config, 4)), grids(4, seconds=seconds)
    expected, delta = model.thinker.get_rope_index(
        ids[None], video_grid_thw=media.videos, attention_mask=torch.ones_like(ids)[None],
        second_per_grids=media.seconds_per_grid,
    )  # fmt: skip
    positions, own = RopeIndex(config).thinker(ids, media, use_audio_in_video=False)
    assert torch.equal(positions.float(), expected[:, 0])
    assert own == float(delta)
    assert positions.dtype == (torch.int64 if seconds == 1.0 else torch.float32)


def test_generated_positions_follow_a_fractional_delta() -> None:
    request = ARRequest("r", OmniRequest(), [1] * 4, SamplingParams(), prompt_positions=torch.rand(3, 4) * 9)
    request.position_delta, request.output_ids = 2.3, [1, 2, 3]
    tail = torch.tensor([6.3, 7.3, 8.3]).expand(3, -1)
    assert torch.equal(rotary(request, 0, 7), torch.cat([request.prompt_positions, tail], dim=1))
    assert torch.equal(packed_rotary([request], [5], [1]), tail[:, 1:2])
    # 16 positions that end in a fraction are 16, however the ends are rounded.
    request.output_ids, request.position_delta = [1] * 16, 1 / 3
    assert rotary(request, 4, 16).shape == (3, 16)


def test_a_silent_video_behind_one_with_sound_has_positions_of_its_own(config: QwenConfig) -> None:
    """The reference's rule raises IndexError for the talker here."""
    rope = RopeIndex(config)
    loud, silent = video(config, 2, sound=13), video(config, 3)
    ids = prompt(config, loud, silent)
    positions, delta = rope.talker(ids, user_rows(ids, config), grids(2, 3, sounds=1)) or (None, None)
    assert positions is not None
    rows = int(user_rows(ids, config).sum()) + 9
    assert positions.shape == (3, rows)
    assert delta == int(positions.max()) + 1 - rows
    begin = 3 + len(loud) + 2
    alone, _ = rope.thinker(torch.tensor(silent), grids(3), use_audio_in_video=False)
    assert torch.equal(positions[:, begin : begin + len(silent)] - positions[:, begin : begin + 1], alone)
    # Before and after it, the rule is the plain one.
    before, _ = rope.talker(prompt(config, loud), user_rows(prompt(config, loud), config), grids(2, sounds=1)) or (0, 0)
    assert torch.equal(positions[:, :begin], before[:, :begin])
    following = positions[:, begin + len(silent) :]
    assert torch.equal(following[0], torch.arange(len(following[0])) + positions[:, : begin + len(silent)].max() + 1)


def test_streams_of_one_seed_are_independent() -> None:
    one, other = RandomStream(7), RandomStream(7, stream=1)
    pairs = torch.tensor([[one.uniform(n), other.uniform(n)] for n in range(4000)])
    assert abs(float(torch.corrcoef(pairs.T)[0, 1])) < 0.06
    assert [other.uniform(n, 2) for n in range(9)] == [RandomStream(7, 1).uniform(n, 2) for n in range(9)]
    assert one.uniform(1, 1) != other.uniform(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cosines_that_are_looked_up_are_those_that_are_computed(config: QwenConfig, dtype: torch.dtype) -> None:
    """Bit by bit, as tables grow, for any order of positions and beyond what is kept."""
    looking, computing = Rotary(config.thinker), Rotary(config.thinker)
    for positions in ([0], [3, 1, 1], [1500], range(1025), [MOST_LOOKED_UP - 1, 5], [MOST_LOOKED_UP, 2], [-1, 4], []):
        given = torch.tensor(list(positions), dtype=torch.int64)
        for axes in (given, given.expand(3, -1)):
            made, expected = looking(axes, dtype), computing.compute(axes, dtype)
            assert all(torch.equal(*pair) for pair in zip(made, expected, strict=True)), positions
    assert all(len(table) <= MOST_LOOKED_UP for table in looking._tables[dtype])
