"""The pipeline as a graph in JSON: stages, edges, and the counters from which the page makes queues, rates and latencies."""

from __future__ import annotations

import time
from typing import Any

from omni_core.api import StageConfig
from omni_serve.metrics import Statistics
from omni_serve.server import Server

_SUMMED = (
    *("queued", "in_flight", "completed", "failed", "aborted", "latency.count", "latency.sum"),
    *("cpu_seconds", "sound_seconds", "late_seconds"),
)
_LARGEST = ("latency.p50", "latency.p99")


def snapshot(server: Server, statistics: Statistics) -> dict[str, Any]:
    """Return the graph with its counters now.

    Counters grow from the start of the stage's process; ``time`` (seconds) goes with them, so that two snapshots make a rate.
    """
    config = server.pipe.config
    health = server.pipe.health()
    roles = {stage: role for role, stage in server.interface.roles.items()}
    stages, edges = [], []
    for stage in config.stages:
        numbers = _counters(stage.name, health, statistics)
        stages.append(
            {
                "name": stage.name,
                "role": roles.get(stage.name),
                "terminal": stage.terminal,
                "replicas": len(numbers),
                **_state(stage.name, health),
                "counters": _stage_counters(numbers),
            }
        )
        edges += [_edge(stage, target, numbers) for target in _targets(stage)]
    admission = server.admission
    return {
        "pipeline": config.resolved_name,
        "model": server.model,
        "time": time.monotonic(),
        "requests": {
            "running": admission.running,
            "waiting": admission.waiting,
            **statistics.get("coordinator", {}).get("requests", {}),
        },
        "stages": stages,
        "edges": edges,
    }


def _targets(stage: StageConfig) -> list[str]:
    return list(dict.fromkeys([*stage.next_stages, *stage.stream_to]))


def _edge(stage: StageConfig, target: str, numbers: list[dict[str, float]]) -> dict[str, Any]:
    def total(name: str) -> float:
        return sum(each.get(f"edge.{target}.{name}", 0.0) for each in numbers)

    return {
        "from": stage.name,
        "to": target,
        "stream": target in stage.stream_to,
        "messages": total("messages"),
        "bytes": total("bytes"),
    }


def _counters(stage: str, health: dict[str, dict[str, Any]], statistics: Statistics) -> list[dict[str, float]]:
    """Return the counters of each replica: of one process only, as the ranks of a stage count the same requests."""
    found = []
    for unit, state in health.items():
        if stage in state["stages"]:
            processes = [name for name in sorted(statistics) if name == unit or name.startswith(f"{unit}_tp")]
            found += [statistics[name][stage] for name in processes[:1] if stage in statistics[name]]
    return found


def _stage_counters(numbers: list[dict[str, float]]) -> dict[str, float]:
    summed = {name: sum(each.get(name, 0.0) for each in numbers) for name in _SUMMED}
    return summed | {name: max((each.get(name, 0.0) for each in numbers), default=0.0) for name in _LARGEST}


def _state(stage: str, health: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the state of the stage: ready only if every replica is; the first other one's state otherwise."""
    units = {name: unit for name, unit in health.items() if stage in unit["stages"]}
    other = [unit for unit in units.values() if unit["state"] != "ready"]
    return {
        "units": list(units),
        "state": other[0]["state"] if other else "ready",
        "reason": other[0].get("reason") if other else None,
        "restarts": sum(unit["restarts"] for unit in units.values()),
    }
