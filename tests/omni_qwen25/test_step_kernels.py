"""Thinker and talker by omni-kernels-cpu, beside the same stages without kernels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from qwen25_stages import Reply, Stages
from tiers import few

pytest.importorskip("omni_kernels_cpu")

from omni_core.protocol.messages import OmniRequest
from omni_kernels_cpu.library import problem
from omni_testing.tiny.qwen25 import write_tiny_checkpoint
from omni_torch.operations.installed_kernels import install
from omni_torch.quantization import packed_linear

pytestmark = pytest.mark.skipif(problem() is not None, reason=str(problem()))

TEXTS = ("Hello.", "Who are you?", "Say it again, and this time in as many words as you can find.")


def replies(folder: Path, texts: Sequence[str] = TEXTS, **engine: Any) -> tuple[list[Reply], list[int]]:
    """Return the replies to texts that come together, and the steps of both engines that were made by one call."""
    params = {"thinker": {"max_new_tokens": 6}, "talker": {"max_new_tokens": 8, "temperature": 0.7}, "seed": 1}
    asked = [OmniRequest({"messages": [{"role": "user", "content": text}]}, params) for text in texts]
    stages = Stages(folder, **engine)
    found = stages.run(*asked)
    return found, [each.statistics()["kernel_steps"] for each in (stages.thinker, stages.talker)]  # type: ignore[attr-defined]


@pytest.mark.parametrize("shape", few(["a", "b", "c"], 2))
@pytest.mark.parametrize("stored", few(["float32", "bfloat16"], 1))
def test_replies_in_float32(
    shape: str, stored: str, tmp_path: Path, kernels: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_linear, "LEAST_VALUES", 0)
    folder = write_tiny_checkpoint(tmp_path / shape, shape=shape, dtype=stored)
    expected, steps = replies(folder)
    assert steps == [0, 0]
    install(kernels)
    made, steps = replies(folder)
    assert min(steps) > 5, "prompts and decode steps"
    for reply, right in zip(made, expected, strict=True):
        assert (reply.ids, reply.codes) == (right.ids, right.codes)
    [alone], _ = replies(folder, TEXTS[:1])
    assert (alone.ids, alone.codes) == (made[0].ids, made[0].codes)


@pytest.mark.parametrize("options", [{"dtype": "bfloat16"}, {"quantization": "int8_weight_only"}], ids=str)
def test_narrow_weights_are_computed_in_calls_too(
    options: dict[str, Any], tiny: dict[str, Path], kernels: dict[str, Any]
) -> None:
    install(kernels)
    made, steps = replies(tiny["a"], **options)
    assert min(steps) > 5
    assert all(reply.ids and reply.codes for reply in made)
    assert torch.isfinite(torch.as_tensor(made[0].samples)).all()
