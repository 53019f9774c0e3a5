"""Qwen3-Omni with its thinker, or its thinker and its talker, on SGLang's scheduler: numerically equal to transformers."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attrs import evolve
from harness import pipeline, request_of

from omni_core.client import open_async
from omni_core.config.schema import PipelineConfig
from omni_core.errors import ConfigError
from omni_qwen3.config import read_config
from omni_qwen3.external_decoder import load_external

WAVE_TOLERANCE = 1e-4

DECODERS = {"own": {}, "sglang": {"decoder": "omni_sglang.qwen3_moe:Qwen3MoeDecoder"}}
"""The thinker's layers: ours, and SGLang's."""

BY_THE_ENGINE = "video_with_audio"
"""The reference script asks transformers 5.23 for the sound inside a video; SGLang pins 5.19, where the processor calls that by
another name. So this case is compared with the engine, which is compared with transformers 5.23 in tests/end_to_end.
"""

Answer = tuple[list[int], np.ndarray]


def on_sglang(config: PipelineConfig, *names: str, **thinker: Any) -> PipelineConfig:
    """The config with ``scheduler: sglang`` in these stages; ``thinker``: more factory arguments of that stage."""
    stages = []
    for stage in config.stages:
        if stage.name in names:
            more = thinker if stage.name == "thinker" else {}
            shared = [*stage.preload, "omni_sglang.adapter.runtime"]  # imports SGLang, which takes ten seconds
            arguments = {**stage.factory_args, "kv_cache_mb": 16, **more}
            stage = evolve(stage, scheduler="sglang", preload=shared, factory_args=arguments)
        stages.append(stage)
    return evolve(config, stages=stages)


async def answers(config: PipelineConfig, cases: dict[str, Any], names: Iterable[str]) -> dict[str, Answer]:
    """Return token ids and waveform of each case, all requested at once."""
    async with open_async(config) as client:
        given = await asyncio.gather(*[client.submit(request_of(cases[name])) for name in names])
    return {
        name: (list(answer["decode"].token_ids), np.asarray(answer["code2wav"].samples))
        for name, answer in zip(names, given, strict=True)
    }


def differences(got: dict[str, Answer], expected: dict[str, Answer]) -> list[str]:
    wrong = []
    for name, (ids, wave) in got.items():
        wanted, target = expected[name]
        if ids != wanted:
            wrong.append(f"{name}: ids {ids} instead of {wanted}")
        elif wave.shape != target.shape:
            wrong.append(f"{name}: {wave.shape[0]} samples instead of {target.shape[0]}")
        elif np.abs(wave - target).max() > WAVE_TOLERANCE:
            wrong.append(f"{name}: waveform off by {np.abs(wave - target).max():.2e}")
    return wrong


@pytest.mark.timeout(280)
@pytest.mark.parametrize(
    ("shape", "names", "layers"),
    [
        ("a", ["thinker"], "own"),
        ("a", ["thinker", "talker_ar"], "sglang"),
        ("b", ["thinker", "talker_ar"], "own"),
        ("b", ["thinker", "talker_ar"], "sglang"),
        ("c", ["thinker", "talker_ar"], "sglang"),
    ],
    ids=str,
)
async def test_every_modality_equals_the_reference(
    shape: str,
    names: list[str],
    layers: str,
    checkpoints: dict[str, Path],
    cases: dict[str, Any],
    reference: Callable[[str], dict[str, np.ndarray]],
) -> None:
    asked = [name for name in cases if name != BY_THE_ENGINE]
    found = reference(shape)
    expected = {name: (found[f"{name}.ids"].tolist(), found[f"{name}.wave"]) for name in asked}
    got = await answers(on_sglang(pipeline(checkpoints[shape]), *names, **DECODERS[layers]), cases, asked)
    assert not (wrong := differences(got, expected)), "\n".join(wrong)


@pytest.mark.timeout(280)
async def test_sound_inside_a_video_equals_the_engine(checkpoints: dict[str, Path], cases: dict[str, Any]) -> None:
    plain = pipeline(checkpoints["a"])
    expected = await answers(plain, cases, [BY_THE_ENGINE])
    got = await answers(on_sglang(plain, "thinker", "talker_ar"), cases, [BY_THE_ENGINE])
    assert not (wrong := differences(got, expected)), "\n".join(wrong)


@pytest.mark.parametrize(
    ("field", "value"), [("mlp_only_layers", [1]), ("attention_bias", True), ("hidden_act", "gelu")]
)
def test_what_sglangs_layers_do_not_compute_is_refused(
    checkpoints: dict[str, Path], tmp_path: Path, field: str, value: Any
) -> None:
    folder = shutil.copytree(checkpoints["a"], tmp_path / "checkpoint")
    raw = json.loads((folder / "config.json").read_text())
    raw["thinker_config"]["text_config"][field] = value
    (folder / "config.json").write_text(json.dumps(raw))
    with pytest.raises(ConfigError, match=rf"text_config\.{field} .*: SGLang's layers do not compute it"):
        load_external(DECODERS["sglang"]["decoder"], str(folder), read_config(folder), dtype="float32", device="cpu")
