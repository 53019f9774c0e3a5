"""The encoders and the vocoder compute what transformers' networks compute, on batches of mixed sizes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from networks import one_shot, own, reference
from tiers import few

from omni_qwen3.config import read_config
from omni_torch.quantization.packed_linear import PackedLinear, pack_linears

TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 0.02}
"""Largest differences, beside outputs whose largest values are from 0.4 to 4; a step of bfloat16 is 0.016 there."""

GRIDS = [
    [[1, 4, 6]],
    [[1, 10, 2], [1, 4, 6], [1, 4, 6], [1, 2, 2], [1, 30, 18]],  # images, two of one size; some larger than the table
    [[3, 2, 2], [1, 8, 8], [5, 8, 4], [2, 4, 4]],  # with videos
]
FRAMES = [[37], [100], [1234], [200, 100], [37, 801, 5, 100, 2000, 431], [7, 9]]


def drawn(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def check(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.dtype == expected.dtype
    assert expected.float().std() > 0.05, "equal outputs of almost nothing would say nothing"
    # Processors round the last bit of bfloat16 differently.
    rounding = 0 if found.dtype == torch.float32 else 2**-7
    torch.testing.assert_close(found, expected, atol=TOLERANCES[found.dtype], rtol=rounding)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("shape", few("abc", 2))
@torch.inference_mode()
def test_images_and_videos_of_mixed_sizes(tiny: dict[str, Path], shape: str, dtype: torch.dtype) -> None:
    network, expected = own(tiny[shape], "vision", dtype), reference(tiny[shape], "vision", dtype)
    for seed, grids in enumerate(GRIDS):
        sizes = [time * height * width for time, height, width in grids]
        patches = drawn(seed, sum(sizes), 3 * 2 * 16 * 16).to(dtype)
        wanted = expected(patches, grid_thw=torch.tensor(grids))
        merged, levels = network(patches, grids)
        check(merged, wanted.pooler_output)
        assert len(levels) == len(wanted.deepstack_features) > 0
        for level, other in zip(levels, wanted.deepstack_features, strict=True):
            check(level, other)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("shape", few("abc", 2))
@torch.inference_mode()
def test_clips_of_mixed_lengths(tiny: dict[str, Path], shape: str, dtype: torch.dtype) -> None:
    """Shorter and longer than a chunk, and than the window of attention (400 frames)."""
    network, expected = own(tiny[shape], "audio", dtype), reference(tiny[shape], "audio", dtype)
    for seed, frames in enumerate(FRAMES):
        features = drawn(seed, 128, sum(frames)).to(dtype)
        wanted = expected(features, feature_lens=torch.tensor(frames)).last_hidden_state
        found = network(features, frames)
        assert len(found) == sum(map(read_config(tiny[shape]).audio.tokens, frames))
        check(found, wanted)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("shape", few("abc", 2))
@torch.inference_mode()
def test_codes_of_several_utterances(tiny: dict[str, Path], shape: str, dtype: torch.dtype) -> None:
    config = read_config(tiny[shape]).vocoder
    assert config is not None
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(0, config.codebook_size, (2, config.codebooks, 3 * config.window), generator=generator)
    check(one_shot(own(tiny[shape], "vocoder", dtype), codes), reference(tiny[shape], "vocoder", dtype)(codes))


CHANGES: dict[str, tuple[str, dict[str, Any]]] = {
    "vision": ("thinker_config.vision_config", {"hidden_act": "silu", "rope_parameters": {"rope_theta": 500.0}}),
    "order of levels": ("thinker_config.vision_config", {"deepstack_visual_indexes": [1, 0]}),
    "audio": ("thinker_config.audio_config", {"activation_function": "relu", "n_window_infer": 250, "conv_chunksize": 3}),
    "vocoder": ("code2wav_config", {"hidden_act": "gelu", "sliding_window": 5, "rms_norm_eps": 1e-3, "rope_theta": 50.0}),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
@torch.inference_mode()
def test_fields_of_the_config_have_their_effect(tiny: dict[str, Path], tmp_path: Path, name: str) -> None:
    section, fields = CHANGES[name]
    part = "vision" if name == "order of levels" else name
    folder = shutil.copytree(tiny["a"], tmp_path / "checkpoint")
    raw = json.loads((folder / "config.json").read_text())
    values = raw
    for step in section.split("."):
        values = values[step]
    if "rope_theta" in fields:
        del values["rope_parameters"]
    values.update(fields)
    (folder / "config.json").write_text(json.dumps(raw))

    def outputs(place: Path, make: Any) -> list[torch.Tensor]:
        network, is_own = make(place, part), make is own
        if part == "vision":
            patches, grids = drawn(0, 88, 1536), [[1, 4, 6], [2, 8, 4]]
            if is_own:
                merged, levels = network(patches, grids)
                return [merged, *levels]
            output = network(patches, grid_thw=torch.tensor(grids))
            return [output.pooler_output, *output.deepstack_features]
        if part == "audio":
            features, frames = drawn(0, 128, 1041), [37, 1004]
            if is_own:
                return [network(features, frames)]
            return [network(features, feature_lens=torch.tensor(frames)).last_hidden_state]
        codes = torch.randint(0, 64, (1, 4, 20), generator=torch.Generator().manual_seed(0))
        return [one_shot(network, codes) if is_own else network(codes)]

    found, expected = outputs(folder, own), outputs(folder, reference)
    for each, other in zip(found, expected, strict=True):
        check(each, other)
    before = outputs(tiny["a"], own)
    assert any((each - other).abs().max() > 1e-3 for each, other in zip(found, before, strict=True)), "no effect"


@pytest.mark.parametrize("part", ["vision", "audio"])
@torch.inference_mode()
def test_packed_weights_give_the_same(tiny: dict[str, Path], part: str) -> None:
    """The smallest of the tiny layers are packed here as well, which they are not in a stage."""
    network = own(tiny["a"], part)
    inputs: tuple[Any, ...] = (drawn(0, 24, 1536), [[1, 4, 6]]) if part == "vision" else (drawn(0, 128, 237), [237])

    def first(output: Any) -> torch.Tensor:
        made: torch.Tensor = output[0] if isinstance(output, tuple) else output
        return made

    expected = first(network(*inputs))
    packed = []

    def pack(weight: torch.Tensor, bias: torch.Tensor | None) -> PackedLinear:
        matrix = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous())
        packed.append(PackedLinear(matrix, bias))
        return packed[-1]

    pack_linears(network, pack)
    assert len(packed) > 10
    check(first(network(*inputs)), expected)
