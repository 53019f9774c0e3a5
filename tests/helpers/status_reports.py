"""Statuses of pipelines that do not run."""

from __future__ import annotations

from pathlib import Path

from omni_cli.runs import Run
from omni_core.protocol.messages import StatusReport

STAGES = [
    "preprocessing",
    "image_encoder",
    "audio_encoder",
    "mm_aggregate",
    "thinker",
    "decode",
    "talker_ar",
    "code2wav",
]


def report(
    done: int = 45, uptime: float = 48.0, states: dict[str, str] | None = None, processes: str = ""
) -> StatusReport:
    """The status of eight stages; ``processes``: all in the process of that name."""
    counters = {
        "queued": 0.0, "in_flight": 2.0, "completed": float(done), "failed": 0.0, "latency.p50": 0.3379,
        "latency.p99": 2.0, "steps": 10.0, "computed": 17.0, "total_blocks": 100.0, "free_blocks": 25.0,
        "edge.next.bytes": done * 1e5,
    }  # fmt: skip
    units = {processes: STAGES} if processes else {name: [name] for name in STAGES}
    health = {
        name: {"state": (states or {}).get(name, "ready"), "restarts": 0, "stages": stages, "pids": [1]}
        for name, stages in units.items()
    }
    requests = {"running": 2.0, "completed": float(done), "failed": 0.0, "refused": 0.0}
    statistics = {name: dict.fromkeys(stages, counters) for name, stages in units.items()}
    return StatusReport("qwen3-omni", uptime, health, {**statistics, "coordinator": {"requests": requests}})


def run(folder: str = "/tmp/omni-a1", pid: int = 7, status: StatusReport | None = None) -> Run:
    """A run with that status."""
    return Run(Path(folder), pid, "python serve.py", status)
