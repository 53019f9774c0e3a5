"""The simulation of a pipeline under a load, and its figures."""

from __future__ import annotations

import gc
from collections.abc import Sequence

from attrs import evolve

from omni_core.config.schema import PipelineConfig
from omni_core.errors import ConfigError
from omni_planner.failures import Failure
from omni_planner.machine import Process
from omni_planner.profile import CLIENT, PipelineProfile
from omni_planner.replica import Loop
from omni_planner.requests import Arrival, Flight
from omni_planner.simulation import Outcome as Outcome
from omni_planner.simulation import Simulation
from omni_planner.summary import Events, Summary


def simulate(
    config: PipelineConfig,
    profile: PipelineProfile,
    arrivals: Sequence[Arrival],
    *,
    in_flight: int | None = None,
    cores: int | None = None,
    pause: float | None = None,
    failures: Sequence[Failure] = (),
    around: int = 0,
) -> Outcome:
    """Run a load against a pipeline in simulated time.

    Args:
        config: the placement to try: its processes, replicas, hosts and engine settings may differ from the profile's.
        arrivals: the load. in_flight: requests at once of its closed loop; or with ``pause`` conversations, whose next request comes so
            many seconds after the last one's sound has been played.
        cores: of each machine; by default as many as the profile's has. failures: deaths of units and losses of hosts.
        around: so many of the first and of the last requests do not count. They keep the pipeline as busy as it is under a load that
            goes on, and the simulation ends with the last of those that count.

    Raises:
        ConfigError: a request visits a stage that the profile has not measured; or a failure is of something that is not there, or the
            profile does not know how long it takes to start again.
        ValueError: ``around`` leaves no request that counts.
    """
    simulation = Simulation(config, profile, cores, in_flight, pause, failures)
    simulation.begin(arrivals, around)
    collects = gc.isenabled()
    gc.disable()  # what a simulation makes is in no cycle; looking for them takes a quarter of its time
    try:
        simulation.clock.run()
    finally:
        if collects:
            gc.enable()
    return simulation.outcome()


def processor_use(
    config: PipelineConfig, profile: PipelineProfile, arrivals: Sequence[Arrival], in_flight: int
) -> dict[str, tuple[int, float]]:
    """Simulate a closed loop; return what each stage's process (and :data:`CLIENT`) uses: how often the thread that sends and receives
    woke, and the processor seconds of the others. Stages have processes of their own.
    """
    simulation = Simulation(config, profile, None, in_flight, None)
    simulation.begin(arrivals)
    simulation.clock.run()
    loops: dict[str, tuple[Loop, float]] = {CLIENT: (simulation.client, 0.0)}
    for unit in simulation.units:
        for name, replica in unit.replicas.items():
            loops[name] = unit.loop, replica.worked
    return {name: (loop.wakes, worked) for name, (loop, worked) in loops.items() if isinstance(loop, Process)}


def summarise(outcome: Outcome) -> Summary:
    """Return the figures of a simulation.

    Raises:
        ConfigError: requests wait for ever, for messages that none of the measured ones had.
    """
    stuck = sum(each.ended is None and not each.refused for each in outcome.flights)
    if stuck:
        raise ConfigError(
            f"{stuck} of {len(outcome.flights)} simulated requests never end: the profile is not of this pipeline; calibrate it anew"
        )
    ended = _ended(outcome)
    sound = [each.sound for each in ended if each.sound]
    refused, failed = (sum(getattr(each, name) for each in outcome.flights) for name in ("refused", "failed"))
    retried = sum(each.attempts > 1 and not each.failed for each in outcome.flights)
    made = Summary.of(events_of(outcome), outcome.seconds or 1.0, refused, sound, failed, retried)
    if not outcome.window:
        return made
    return evolve(made, per_second=len(outcome.flights) * outcome.kept_up / outcome.window)


def events_of(outcome: Outcome) -> list[Events]:
    """Return what the clients of the requests that ended have read, in seconds since each came."""
    return [[(when - each.arrived, stage, final) for when, stage, final in each.events] for each in _ended(outcome)]


def _ended(outcome: Outcome) -> list[Flight]:
    return [each for each in outcome.flights if each.events and not each.failed]
