"""The talker and its code predictor give the same results when their steps and frames are replayed, and a GPU could record them.
The recorder here calls the recorded function again (see tests/omni_torch/engine/test_graphs.py). And both by kernels of a CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from attrs import evolve
from eager_recorder import EagerRecorder
from ghost import GHOST, GhostRecorder, decode, ghost_gpu
from qwen3_tts_cases import SHAPES, cases_of
from qwen3_tts_released import released
from qwen3_tts_stages import GREEDY, Stages, asking
from tiers import few

from omni_qwen3_tts.config import parse_config
from omni_qwen3_tts.feedback import MOST_RECORDED, recordable_frame
from omni_qwen3_tts.talker_network import Talker
from omni_testing.tiny.qwen3_tts import write_tiny_checkpoint
from omni_torch.operations.installed_kernels import install
from omni_torch.quantization import packed_linear, quantized_linear
from omni_torch.quantization.quantized_linear import QUANTIZATIONS
from omni_torch.runners.graphs import Graphs

Tiny = Callable[[str], Path]
Golden = dict[str, np.ndarray]
OTHERS = [("a", "bfloat16"), ("b", "float32"), ("c", "float32"), ("c", "bfloat16")]
RECORDED: dict[str, Any] = {"cuda_graphs": EagerRecorder, "frame_graphs": EagerRecorder}


@pytest.mark.parametrize("shape", few(SHAPES, 2))
@pytest.mark.parametrize("options", few([{}, {"kv_blocks": 40, "block_size": 8}], 2), ids=str)
def test_replayed_steps_and_frames_equal_the_reference(
    shape: str, options: dict[str, Any], tiny: Tiny, golden: Golden
) -> None:
    """Greedy requests beside drawn ones, which ask for filters of more kinds than are recorded."""
    cases = cases_of(shape)
    drawn = [asking(cases[0], seed=number, residual_top_k=3 + number) for number in range(MOST_RECORDED + 1)]
    asked = [*(asking(each, **GREEDY) for each in cases), *drawn]
    stages = Stages(tiny(shape), **RECORDED, **options)
    made = stages.run(*asked)
    for number in range(len(cases)):
        assert np.array_equal(made[number].codes, golden[f"{shape}.{number}.codes"]), cases[number]
    for one, other in zip(made[len(cases) :], Stages(tiny(shape)).run(*drawn), strict=True):
        assert np.array_equal(one.codes, other.codes)
    recordings = stages.talker._runner.feedback.graphs._recordings
    assert len({filters for (_, filters), _ in recordings}) == MOST_RECORDED
    assert stages.talker.statistics()["graph_steps"] > 10


@pytest.mark.parametrize("size", ["1b7", pytest.param("0b6", marks=pytest.mark.full)])
def test_a_step_and_a_frame_do_not_synchronise_with_the_host(
    size: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ghost_gpu(monkeypatch)
    config = parse_config(released(size, "custom_voice"))
    with torch.device(GHOST):
        model = Talker(evolve(config, talker=evolve(config.talker, layers=2))).bfloat16().requires_grad_(False)
    _, graphs = decode(model)
    assert not graphs.failed, caplog.text
    hidden = torch.zeros(3, model.hidden_size, dtype=torch.bfloat16, device=GHOST)
    temperature = torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)
    uniforms = torch.rand(3, config.code_groups - 1, dtype=torch.float64)
    for inputs in ([hidden, hidden], [hidden, hidden, temperature, uniforms]):
        frames = Graphs(GHOST, GhostRecorder).run(
            len(inputs), partial(recordable_frame, model.code_predictor, (50, 1.0)), inputs
        )
        assert frames is not None, caplog.text
        assert frames["codes"].shape == (3, config.code_groups - 1)
        assert frames["feedback"].shape == hidden.shape
        assert model.code_predictor._state is None, "a graph's memory is its own"


@pytest.mark.parametrize(
    ("shape", "stored"),
    [("a", "float32"), ("b", "bfloat16"), *(pytest.param(*each, marks=pytest.mark.full) for each in OTHERS)],
)
def test_steps_and_frames_of_kernels_give_the_same_codes(
    shape: str, stored: str, tmp_path: Path, kernels: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a code predictor as wide as the talker, and of a narrower one."""
    pytest.importorskip("omni_kernels_cpu")
    from omni_kernels_cpu.library import problem

    if problem() is not None:
        pytest.skip(str(problem()))
    monkeypatch.setattr(packed_linear, "LEAST_VALUES", 0)
    folder = write_tiny_checkpoint(tmp_path / shape, shape=shape, dtype=stored)
    asked = [asking(each, seed=number) for number, each in enumerate(cases_of(shape))]
    stages = Stages(folder)
    expected = stages.run(*asked)
    assert not stages.talker.statistics()["kernel_steps"]
    install(kernels)
    made = stages.run(*asked)
    assert stages.talker.statistics()["kernel_steps"] > 5, "prompts and decode steps"
    assert stages.talker._runner.model.code_predictor._whole is not None
    for one, other in zip(made, expected, strict=True):
        assert np.array_equal(one.codes, other.codes)
        np.testing.assert_allclose(one.samples, other.samples, atol=1e-4)


NARROW = [name for name, each in QUANTIZATIONS.items() if quantized_linear._works(each)]


@pytest.mark.parametrize("name", few(NARROW, 1))
def test_narrow_weights_speak(name: str, tiny: Tiny) -> None:
    for made in Stages(tiny("b"), quantization=name).run(*(asking(each, seed=1) for each in cases_of("b"))):
        assert len(made.codes) > 1
        assert np.isfinite(made.samples).all()
