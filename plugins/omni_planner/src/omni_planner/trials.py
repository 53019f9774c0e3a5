"""A trial: one placement under the load, simulated, with what it costs, what it reaches and what saturates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import evolve, field, frozen

from omni_cli.deploy.budgets import check
from omni_cli.deploy.fitting import placed
from omni_core.config.completion import Machine
from omni_core.config.placement import plan
from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.config.validation import validate
from omni_core.errors import ConfigError
from omni_planner.arrivals import Pattern, Poisson, amid_others, open_loop
from omni_planner.estimate import EstimatedProfile
from omni_planner.objectives import Objectives, figures_of
from omni_planner.profile import CLIENT, PipelineProfile
from omni_planner.requests import Arrival, closed_loop, draw
from omni_planner.simulate import Outcome, simulate, summarise
from omni_planner.summary import Quantiles

Settings = Mapping[str, Any]
"""Changes of a config: by ``STAGE.FIELD`` or ``STAGE.factory_args.NAME``."""


@frozen
class Load:
    """The load of a plan.

    Attributes:
        mix: weights of the profile's kinds of request. total: requests of a simulation. around: so many more before them, and after
            them, that do not count.
        rate: requests a second, with ``pattern``. in_flight: or requests at once, or with ``pause`` (seconds) conversations.
    """

    mix: Mapping[str, float]
    total: int
    rate: float | None = None
    in_flight: int | None = None
    pause: float | None = None
    seed: int = 0
    pattern: Pattern = field(factory=Poisson)
    around: int = 0

    def arrivals(self, profile: PipelineProfile) -> Sequence[Arrival]:
        """Return the requests."""
        requests = draw(profile.kinds, self.mix, self.seed)
        if self.rate is None:
            return closed_loop(requests, self.total + 2 * self.around)
        if self.around:
            return amid_others(requests, self.rate, self.total, self.around, self.seed, self.pattern)
        return open_loop(requests, self.rate, self.total / self.rate, self.seed, self.pattern)

    def scaled(self, share: float) -> Load:
        """Return the part of the load that one of several equal pipelines gets."""
        if self.rate is not None:
            return evolve(self, rate=self.rate * share)
        return evolve(self, in_flight=max(1, round((self.in_flight or 1) * share)))

    def __str__(self) -> str:
        mixed = ", ".join(f"{name} {weight / sum(self.mix.values()):.0%}" for name, weight in self.mix.items())
        if self.rate is not None:
            return f"{self.rate:g} requests a second{self.pattern} ({mixed})"
        if self.pause is not None:
            return f"{self.in_flight} conversations, {self.pause:g} s between an answer and the next question ({mixed})"
        return f"{self.in_flight} requests at once ({mixed})"


@frozen
class Trial:
    """The result of one simulated placement.

    Attributes:
        settings: changes of the config that was given. config: the one that was simulated, placed. cost: GPUs or cores.
        figures: by name, see :mod:`omni_planner.objectives`. excess: by how much objectives are missed; 0: all are met.
        per_second: requests that ended in a second. refused: share of the requests. kept_up, in_flight: see
            :class:`~omni_planner.simulation.Outcome`. counted: requests that the figures are of. around: those before them.
            coming: where not all count, requests that come while one lasts, of 95 in 100; else 0.
        shares: of the time, by stage (the busiest replica), device, and ``messages`` of the client's process and of each process group.
    """

    settings: Settings
    config: PipelineConfig
    cost: int
    figures: Mapping[str, Quantiles]
    excess: float
    per_second: float
    refused: float
    shares: Mapping[str, float]
    processors: float = 0.0
    notes: Mapping[str, str] = field(factory=dict)
    kept_up: float = 1.0
    in_flight: float = 0.0
    counted: int = 0
    around: int = 0
    coming: float = 0.0

    @property
    def saturated(self) -> str:
        """The stage or device that is busiest."""
        return max(self.shares, key=lambda name: self.shares[name], default="nothing")

    def key(self, first: str) -> tuple[float, int, float]:
        """Sort key: fewer misses, then a lower cost, then the first objective's figure."""
        figure = self.figures.get(first)
        return round(self.excess, 4), self.cost, figure.p95 if figure is not None else 0.0


def changed(config: PipelineConfig, settings: Settings) -> PipelineConfig:
    """Return a config with settings applied to its stages."""
    by_stage: dict[str, dict[str, Any]] = {}
    for path, value in settings.items():
        stage, _, rest = path.partition(".")
        by_stage.setdefault(stage, {})[rest] = value

    def with_settings(stage: StageConfig) -> StageConfig:
        given = by_stage.get(stage.name, {})
        arguments = {key.partition(".")[2]: each for key, each in given.items() if "." in key}
        fields = {key: each for key, each in given.items() if "." not in key}
        return evolve(stage, factory_args={**stage.factory_args, **arguments}, **fields)

    return evolve(config, stages=[with_settings(stage) for stage in config.stages])


def attempt(
    config: PipelineConfig,
    settings: Settings,
    profile: PipelineProfile,
    load: Load,
    objectives: Objectives,
    cost: int,
    *,
    gpus: Sequence[int] = (),
    cores: int | None = None,
) -> Trial | str:
    """Place and simulate a config with settings; or return why it cannot be."""
    notes: Mapping[str, str] = {}
    try:
        made = changed(config, settings)
        validate(made)
        if gpus:
            placement = placed(made, Machine(list(gpus), here=False))
            made, notes = placement.config, placement.notes
            if isinstance(profile, EstimatedProfile):
                made = profile.budgeted(made, gpus)
            check(plan(made), list(gpus))
    except ConfigError as error:
        return str(error).splitlines()[0]
    arrivals = load.arrivals(profile)
    try:
        outcome = simulate(
            made, profile, arrivals, in_flight=load.in_flight, cores=cores, pause=load.pause, around=load.around
        )
    except ConfigError as error:  # of many sizes one may not fit where others do
        return str(error).splitlines()[0]
    summary = summarise(outcome)
    figures = figures_of(summary, profile, made.interface)
    refused = summary.refused / max(1, summary.refused + summary.requests)
    return Trial(
        settings,
        made,
        cost,
        figures,
        objectives.excess(figures) + refused,
        summary.per_second,
        refused,
        _shares(outcome, {each.name: each.group for each in plan(made)}),
        sum(outcome.busy),
        notes,
        outcome.kept_up,
        outcome.in_flight,
        len(outcome.flights),
        load.around,
        len(outcome.flights) / outcome.window * figures["done"].p95 if outcome.window and "done" in figures else 0.0,
    )


def _shares(outcome: Outcome, groups: Mapping[str, str]) -> dict[str, float]:
    """Return :attr:`Trial.shares`. ``groups``: the group of each process."""
    shares: dict[str, float] = {}
    for name, share in outcome.stages.items():
        stage = name.rpartition(".")[0] or name
        shares[stage] = max(shares.get(stage, 0.0), share)
    shares.update({f"gpu {name}": share for name, share in outcome.devices.items()})
    shares["messages"] = outcome.messages
    for name, (messages, _) in outcome.processes.items():
        if name != CLIENT:
            group = messages_of_group(groups[name])
            shares[group] = max(shares.get(group, 0.0), messages / outcome.seconds if outcome.seconds else 0.0)
    return shares


def messages_of_group(group: str) -> str:
    """Return the name of the share of the time in which the processes of a group send and receive."""
    return f"messages of {group}"
