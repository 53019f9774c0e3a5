"""Shared parts of the end-to-end tests: shapes, the pipeline of a checkpoint, and requests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_core.config.schema import PipelineConfig
from omni_core.plugins import load_plugins
from omni_core.protocol.messages import OmniRequest
from omni_core.references import load

THINKER_TOKENS = 24
TALKER_TOKENS = 48
SHAPES = ["a", "b", "c"]


def text_part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def pipeline(model_path: Path, name: str = "qwen3-omni", **options: Any) -> PipelineConfig:
    """The config that ``omni run NAME --model PATH`` would use."""
    config: PipelineConfig = load(load_plugins().get("omni_pipelines", name).target)(str(model_path), **options)
    return config


def request_of(case: dict[str, Any], **changes: Any) -> OmniRequest:
    """A greedy request for a case, asking for the codes too."""
    params = {
        "thinker": {"temperature": 0.0, "max_new_tokens": case["thinker_max_new_tokens"]},
        "talker": {"temperature": 0.0, "max_new_tokens": case["talker_max_new_tokens"]},
        "return_codes": True,
    }
    metadata = {"speaker": "Ethan", "use_audio_in_video": bool(case.get("use_audio_in_video"))}
    text = case.get("aloud")
    return OmniRequest(
        inputs={"messages": case["messages"] if text is None else [{"role": "user", "content": text}]},
        params={**params, **changes.get("params", {})},
        modalities=changes.get("modalities", None if text is None else ["speech"]),
        metadata={**metadata, **changes.get("metadata", {})},
    )


class Oracle:
    """The reference in a process of its own, which works on a job while the test goes on. A context manager.

    Every job writes to a path of its own.
    """

    def __init__(self) -> None:
        if "OMNI_ORACLE_PACKAGES" not in os.environ:
            pytest.skip("the reference's processor needs torchvision in OMNI_ORACLE_PACKAGES; `nox` sets it")
        command = [sys.executable, str(Path(__file__).with_name("oracle.py"))]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Oracle:
        return self

    def __exit__(self, *_: object) -> None:
        """End the process, whatever it does."""
        self._process.kill()
        self._process.communicate()

    def begin(self, checkpoint: Path, out: Path, **more: Any) -> None:
        """Begin a job; with ``cases`` it is to answer them, without to save the reference's processor."""
        assert self._process.stdin is not None
        print(
            json.dumps({"checkpoint": str(checkpoint), "out": str(out), **more}), file=self._process.stdin, flush=True
        )

    def wait(self, out: Path) -> None:
        """Wait for the job that writes there. Its failure is an assertion error with the traceback."""
        assert self._process.stdout is not None
        reply: dict[str, str] = {}
        while reply.get("out") != str(out):  # a test that failed has not waited for its own
            line = self._process.stdout.readline()
            assert line, f"the reference's process ended with code {self._process.wait()}"
            reply = json.loads(line)
        assert "error" not in reply, reply["error"]

    def answers(self, checkpoint: Path, out: Path, cases: dict[str, Any]) -> dict[str, np.ndarray]:
        """Return the answers to ``cases``: ``{case}.prompt``, ``{case}.ids``, ``{case}.wave``."""
        self.begin(checkpoint, out, cases=cases)
        self.wait(out)
        return dict(np.load(out))


def mixed(cases: dict[str, Any]) -> list[OmniRequest]:
    """Requests of every modality, greedy and sampled, long and short, with their own seeds."""
    made = []
    for index, (_, case) in enumerate(sorted(cases.items())):
        request = request_of(case)
        if index % 2:
            request.params["thinker"] |= {"temperature": 0.8, "top_k": 20, "max_new_tokens": 10 + 3 * index}
            request.params["talker"] |= {"temperature": 0.9, "top_k": 50, "max_new_tokens": 16 + 4 * index}
            request.params["seed"] = 100 + index
        made.append(request)
    return made
