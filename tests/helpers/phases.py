"""A plugin, a stage module and a stage that stop at the phase ``OMNI_FAULT_PHASE``, each time in other code of the
start-up.

Code that reaches the phase creates the file ``OMNI_FAULT_MARK`` and then computes, or reads from a socket, for a long
time.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from omni_core.config.schema import EndpointsConfig, PipelineConfig, StageConfig
from omni_core.hookspecs import PipelineComponent, hookimpl
from omni_core.protocol.messages import StagePayload


def come_to(phase: str) -> None:
    if os.environ.get("OMNI_FAULT_PHASE") == phase:
        Path(os.environ["OMNI_FAULT_MARK"]).touch()
        time.sleep(60)


@hookimpl
def omni_pipelines() -> list[PipelineComponent]:
    return [PipelineComponent("phases", "phases:pipeline", "stops on the way")]


def pipeline(model: str) -> PipelineConfig:
    come_to("resolve")
    stage = StageConfig(name="only", factory="phases_stage:factory", process="only", terminal=True)
    return PipelineConfig(model_path=model, stages=[stage], endpoints=EndpointsConfig(os.environ["OMNI_FAULT_FOLDER"]))


def compute(payload: StagePayload) -> dict[str, Any]:
    come_to("run")
    return {}
