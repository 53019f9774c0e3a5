"""The simulated coordinator decides as the runtime's does: what runs where and when, what runs again, what ends and how."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

sys.path.insert(0, str(Path(__file__).parent))

from coordinator_mirror import Mirror, Mirrored
from planner_lines import pipeline, profile

from omni_core.config.schema import PipelineConfig, RestartConfig
from omni_core.launch.running import machine_of
from omni_planner import simulation
from omni_planner.arrivals import open_loop
from omni_planner.failures import Failure
from omni_planner.profile import CLIENT, Visit
from omni_planner.requests import closed_loop, draw


def both(
    config: PipelineConfig,
    load: Any,
    made: Any,
    failures: list[Failure],
    in_flight: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[Mirror, simulation.Simulation]:
    """Simulate a load, and give the runtime's coordinator the same events."""
    mirror = Mirror(config)

    def mirrored(config: PipelineConfig) -> Callable[..., Any]:
        return lambda **options: Mirrored(machine_of(config)(**options), mirror)

    monkeypatch.setattr(simulation, "machine_of", mirrored)
    simulated = simulation.Simulation(config, made, None, in_flight, None, failures)
    mirror.begin(simulated)
    simulated.begin(load)
    simulated.clock.run()
    mirror.end()
    return mirror, simulated


def schedule(seed: int) -> tuple[PipelineConfig, Any, Any, list[Failure], int | None]:
    """Return a pipeline of one to three stages, its profile, a load and failures of a second or two."""
    draws = random.Random(seed)
    names = ["a", "b", "c"][: draws.randint(1, 3)]
    config = pipeline(*names)
    stages = []
    for each in config.stages:
        replicas = draws.choice([1, 1, 2, 3])
        balance = draws.choice(["turns", "least_busy", "cost", "planner_lines:last_of"]) if replicas > 1 else "turns"
        stages.append(evolve(each, replicas=replicas, balance=balance))
    objective = {names[-1]: draws.uniform(0.02, 0.3)} if draws.random() < 0.3 else {}
    config = evolve(
        config,
        stages=stages,
        max_in_flight=draws.choice([2, 4, 8, 1000]),
        retries=draws.choice([0, 1, 1, 2]),
        request_timeout=draws.choice([None, draws.uniform(0.03, 1.0)]),
        restart=RestartConfig(limit=draws.choice([0, 1, 100])),
        admission=objective,
    )
    made = profile(*names, seconds=draws.uniform(0.002, 0.02), cores=draws.randint(1, 4))
    made.starts = {name: draws.uniform(0.05, 1.0) for name in names}
    mix = {"text": 1.0}
    if len(names) == 3 and draws.random() < 0.7:  # b and c answer side by side; of some requests b alone
        first, second, third = config.stages
        forked = [evolve(first, next=["b", "c"]), evolve(second, next=[], terminal=True), third]
        config = evolve(config, stages=forked)
        ends = {name: Visit(["a"], [CLIENT]) for name in "bc"}
        made.kinds["text"] = [{"a": Visit([CLIENT], ["b", "c"]), **ends}]
        made.kinds["one"] = [{"a": Visit([CLIENT], ["b"]), "b": ends["b"]}]
        for each in made.stages.values():
            each.costs["one"] = each.costs["text"]
        mix["one"] = 0.5
    for samples in made.kinds.values():
        samples[0]["a"].prompt = draws.randint(0, 100)
    kinds = draw(made.kinds, mix, seed)
    if draws.random() < 0.5:
        load, in_flight = open_loop(kinds, draws.uniform(5.0, 150.0), 0.6, seed), None
    else:
        load, in_flight = closed_loop(kinds, draws.randint(5, 50)), draws.randint(1, 12)
    units = [
        name if stage.replicas == 1 else f"{name}.{number}"
        for name, stage in zip(names, stages, strict=True)
        for number in range(stage.replicas)
    ]
    failures = [Failure(draws.uniform(0.0, 0.8), draws.choice(units)) for _ in range(draws.choice([0, 1, 2, 4]))]
    return config, load, made, failures, in_flight


@pytest.mark.parametrize("first", range(0, 2000, 100))
def test_both_decide_the_same(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Counter[str]()
    for seed in range(first, first + 100):
        config, load, made, failures, in_flight = schedule(seed)
        mirror, simulated = both(config, load, made, failures, in_flight, monkeypatch)
        for each in simulated.flights:
            mirror.simulated.read[each.name] = list(each.events)
        ours, theirs = mirror.simulated.rows(), mirror.real.rows()
        assert [what for _, what in ours] == [what for _, what in theirs], seed
        assert [when for when, _ in ours] == pytest.approx([when for when, _ in theirs], abs=2e-6), seed
        seen.update(error for _, error in mirror.real.ends.values())
        seen["again"] += sum(number > 1 for _, what, _, number, _ in mirror.real.attempts if what == "start")
        seen["replicas"] += any(sum(placement.values()) for *_, placement in mirror.real.attempts)
    for what in ("", "again", "replicas", "OverloadedError", "RequestFailedError", "RequestTimeoutError"):
        assert seen[what] >= 10, what
