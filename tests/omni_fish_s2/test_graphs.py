"""Replayed steps and frames equal the reference's, and a GPU could record the recorded functions. The recorder here
calls the recorded function again (see tests/omni_torch/engine/test_graphs.py).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from attrs import evolve
from eager_recorder import EagerRecorder
from fish_cases import CASES, SAMPLED, SAMPLED_CASES, SHAPES
from fish_driving import GREEDY, create_semantic_ar, request_message, speak
from fish_released import RELEASED
from ghost import GHOST, GhostRecorder, decode, ghost_gpu
from tiers import few

from omni_fish_s2.config import parse_config
from omni_fish_s2.frame_feedback import recordable_frame
from omni_fish_s2.sampling import SpeechSampling, choose, filters, widest
from omni_fish_s2.slow import SlowDecoder
from omni_torch.runners.graphs import Graphs

Golden = dict[str, dict[str, np.ndarray]]


@pytest.mark.parametrize("shape", few(SHAPES, 2))
@pytest.mark.parametrize("options", few([{}, {"max_running": 3}, {"kv_blocks": 48, "block_size": 8}], 2), ids=str)
def test_greedy_and_drawn_codes_in_one_batch_equal_the_reference(
    shape: str, options: dict[str, Any], tiny: dict[str, Path], golden: Golden
) -> None:
    """Includes turns and cloned voices."""
    stage = create_semantic_ar(str(tiny[shape]), cuda_graphs=EagerRecorder, frame_graphs=EagerRecorder, **options)
    messages = [request_message(name, tiny[shape], case, GREEDY) for name, case in CASES.items()]
    for way, sampling in SAMPLED.items():
        messages += [request_message(f"{name}/{way}", tiny[shape], CASES[name], sampling) for name in SAMPLED_CASES]
    spoken = speak(stage, messages)
    for name, codes in spoken.items():
        assert np.array_equal(codes, golden[shape][f"{name}.codes"]), name
    assert stage.statistics()["graph_steps"] > 20
    recordings = stage._runner.feedback.graphs._recordings  # type: ignore[attr-defined]
    assert {most for most, _ in recordings} >= ({0, 64} if "max_running" in options else {64}), (
        "without draws, and with"
    )
    assert (stage.statistics()["preemptions"] > 0) == ("kv_blocks" in options)


def test_top_k_leaves_one_of_few_numbers_of_columns() -> None:
    def of(*values: int) -> int:
        return widest([SpeechSampling(top_k=each) for each in values], 100)

    assert [of(1), of(2), of(3), of(30, 5), of(65), of(100), of(5, 0)] == [1, 2, 4, 32, 100, 100, 100]


# --- what a GPU could record, at the released dimensions -------------------------------------------------------------
@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> SlowDecoder:
    ghost_gpu(monkeypatch)
    config = parse_config(RELEASED)
    with torch.device(GHOST):
        return SlowDecoder(evolve(config, slow=evolve(config.slow, layers=2))).bfloat16().requires_grad_(False)


def test_a_step_does_not_synchronise_with_the_host(model: SlowDecoder, caplog: pytest.LogCaptureFixture) -> None:
    _, graphs = decode(model)
    assert not graphs.failed, caplog.text


def test_a_frame_does_not_synchronise_with_the_host(model: SlowDecoder, caplog: pytest.LogCaptureFixture) -> None:
    config, params = model.config, [SpeechSampling()] * 3
    hidden = torch.zeros(3, config.slow.dim, dtype=torch.bfloat16, device=GHOST)
    first = torch.zeros(3, dtype=torch.int64, device=GHOST)
    uniforms = torch.rand(3, config.codebooks - 1, config.codebook_size)
    drawn = [torch.tensor([True, False, True]), filters(params, config.codebook_size), uniforms]
    for inputs in ([hidden, first], [hidden, first, *drawn]):
        frames = Graphs(GHOST, GhostRecorder).run("frame", partial(recordable_frame, model, 32), inputs)
        assert frames is not None, caplog.text
        assert frames["codes"].shape == (3, config.codebooks)
        assert frames["feedback"].shape == hidden.shape


def test_the_path_without_graphs_cannot_be_recorded(model: SlowDecoder) -> None:
    """It copies each request's parameters from the host, for each code."""
    logits, uniforms = torch.zeros(2, 64, device=GHOST), torch.zeros(2, 64, device=GHOST)

    def build(rows: torch.Tensor) -> Any:
        return lambda: {"codes": choose(rows, [SpeechSampling()] * 2, uniforms)}

    assert Graphs(GHOST, GhostRecorder).run("choose", build, [logits]) is None
