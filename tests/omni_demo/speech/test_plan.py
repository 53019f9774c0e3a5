"""The demo's dtype and size: float32 everywhere, on any card."""

from __future__ import annotations

import pytest

from omni_cli.deploy.fitting import placed
from omni_core.config.completion import Machine
from omni_demo.speech.pipeline import default_model, demo

NETWORKS = ("image_encoder", "audio_encoder", "thinker", "talker_ar", "code2wav")


@pytest.mark.parametrize("gpus", [[], [24 * 2**30]])
def test_the_demo_runs_in_float32(monkeypatch: pytest.MonkeyPatch, gpus: list[int]) -> None:
    """Its checkpoint is stored in bfloat16, to be small."""
    monkeypatch.setattr("omni_torch.placement.devices.computes_bfloat16", lambda: True)
    config = placed(demo(default_model()[0]), Machine(gpus, here=False)).config
    assert {config.stage(name).factory_args["dtype"] for name in NETWORKS} == {"float32"}
    assert {config.stage(name).gpu for name in NETWORKS} == ({0} if gpus else {None})
