"""Both decoders by omni-kernels-cpu: the reference's codes, and those of the same stage without kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fish_cases import CASES, SHAPES
from fish_driving import GREEDY, create_semantic_ar, request_message, speak
from tiers import few

pytest.importorskip("omni_kernels_cpu")

from omni_fish_s2.fast import FastDecoder
from omni_kernels_cpu.library import problem
from omni_testing.tiny.fish_s2 import write_tiny_checkpoint
from omni_torch.operations.installed_kernels import install
from omni_torch.quantization import packed_linear

pytestmark = pytest.mark.skipif(problem() is not None, reason=str(problem()))

DRAWN = {"temperature": 0.8, "top_p": 0.9, "top_k": 20, "seed": 5}


def answers(folder: Path, sampling: dict[str, Any], **options: Any) -> tuple[dict[str, np.ndarray], int]:
    """Return the frames of all cases, computed together, and the steps that were one call."""
    stage = create_semantic_ar(str(folder), **options)
    found = speak(stage, [request_message(name, folder, case, sampling) for name, case in CASES.items()])
    return found, stage.statistics()["kernel_steps"]


@pytest.mark.parametrize("shape", few(SHAPES, 2))
def test_greedy_codes_are_those_of_the_reference(
    shape: str,
    tiny: dict[str, Path],
    golden: dict[str, dict[str, np.ndarray]],
    kernels: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[int] = []
    by_steps = FastDecoder._by_steps
    monkeypatch.setattr(FastDecoder, "_by_steps", lambda *given: calls.append(len(given[1])) or by_steps(*given))
    install(kernels)
    made, steps = answers(tiny[shape], GREEDY)
    assert steps > 5
    assert max(calls) > 1, "frames of several requests"
    for name, codes in made.items():
        assert np.array_equal(codes, golden[shape][f"{name}.codes"]), name


@pytest.mark.parametrize("shape", few(SHAPES, 2))
@pytest.mark.parametrize("stored", few(["float32", "bfloat16"], 1))
def test_drawn_codes_are_those_without_kernels(
    shape: str, stored: str, tmp_path: Path, kernels: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_linear, "LEAST_VALUES", 0)
    folder = write_tiny_checkpoint(tmp_path / shape, shape=shape, dtype=stored)
    expected, steps = answers(folder, DRAWN)
    assert steps == 0
    install(kernels)
    made, steps = answers(folder, DRAWN)
    assert steps > 5
    for name, codes in made.items():
        assert np.array_equal(codes, expected[name]), name


@pytest.mark.parametrize("options", [{"dtype": "bfloat16"}, {"quantization": "int8_weight_only"}], ids=str)
def test_narrow_weights_are_computed_in_calls_too(
    options: dict[str, Any], tiny: dict[str, Path], kernels: dict[str, Any]
) -> None:
    install(kernels)
    made, steps = answers(tiny["a"], GREEDY, **options)
    assert steps > 5
    assert all(len(codes) for codes in made.values())
