"""A trial: one placement under the load, simulated, with what it costs, what it reaches and what saturates."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, sqrt
from typing import Any

from attrs import define, evolve, field, frozen

from omni_cli.deploy.budgets import check
from omni_cli.deploy.fitting import placed
from omni_core.api import ConfigError, Machine, PipelineConfig, StageConfig
from omni_core.runtime_api import plan, validate
from omni_planner.estimate import CLIENT, Estimate
from omni_planner.figures import Objectives, Quantiles, figures_of
from omni_planner.load import Load
from omni_planner.shapes import demands
from omni_planner.simulation import Outcome, simulate

Settings = Mapping[str, Any]
"""Changes of a config: by ``STAGE.FIELD`` or ``STAGE.factory_args.NAME``."""

AROUND = 1000
"""Requests that come before those that count, at most, and after them; and those that count, unless more are asked for."""

CHANCE = 3.0
"""Standard deviations by which the number of requests in flight may grow by chance."""

TOLD = 0.15
"""The growth of a queue, for each request that comes, that every simulation tells from chance where it has requests enough."""

BUSY = 0.98
"""The share of the time in which a thread may send and receive: with more its queue grows."""


@frozen
class Trial:
    """The result of one simulated placement.

    Attributes:
        settings: changes of the config that was given.
        config: the one that was simulated, placed.
        cost: GPUs.
        figures: by name, see :data:`omni_planner.figures.FIGURES`.
        excess: by how much objectives are missed, requests refused, and more requests come than end; 0: all is well.
        per_second: requests that ended in a second.
        refused: share of the requests.
        shares: of the time, by stage (the busiest replica), GPU, and ``messages`` of the client's process and of each process group.
        coming: requests that come while one lasts, of 95 in 100.
        is_growing: more requests come than end.
        notes: of the placement.
    """

    settings: Settings
    config: PipelineConfig
    cost: int
    figures: Mapping[str, Quantiles]
    excess: float
    per_second: float
    refused: float
    shares: Mapping[str, float]
    coming: float = 0.0
    is_growing: bool = False
    notes: Mapping[str, str] = field(factory=dict)

    @property
    def reason(self) -> str:
        """The bottleneck, or that requests are refused."""
        busy = sorted(self.shares.items(), key=lambda each: -each[1])
        listed = ", ".join(f"{name} {share:.0%}" for name, share in busy[:3])
        if self.refused:
            return f"{self.refused:.0%} of the requests are refused; busy: {listed}"
        return f"saturates: {listed}" if busy and busy[0][1] > 0.85 else f"busiest: {listed}"

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


@define
class Trials:
    """Makes trials of a pipeline, each under its load as it is for long.

    Before the requests that count come as many as while one lasts, because a pipeline that was just started is not as busy as one that
    serves. How long one lasts, trials that meet the objectives say.

    Attributes:
        gpu_bytes: the memory of each GPU.
        lasting: seconds that requests last, as far as is known.
    """

    config: PipelineConfig
    estimate: Estimate
    objectives: Objectives
    gpu_bytes: int
    lasting: float = 0.0

    def of(self, settings: Settings, gpus: int, load: Load) -> Trial | str:
        """Place and simulate the config with settings; or return why it cannot be."""
        try:
            config, notes = self._placed(settings, gpus)
        except ConfigError as error:
            return str(error).splitlines()[0]
        lasting = max(self.lasting, sum(demands(self.estimate, self.config, load.mix).values()))
        rate = load.per_second(self.estimate, lasting)
        around = load.in_flight or 1 if load.is_closed else min(AROUND, max(1, ceil(rate * lasting)))
        load = evolve(load, around=around)
        while True:
            made = self._simulated(settings, config, gpus, load, notes)
            if isinstance(made, str) or made.excess or load.is_closed:
                return made
            longer = evolve(
                load,
                around=min(AROUND, max(load.around, ceil(1.1 * made.coming)))
                if made.coming > load.around
                else load.around,
                total=max(load.total, min(AROUND, ceil(CHANCE * sqrt(2 * made.coming) / TOLD))),
            )
            if longer == load:
                self.lasting = max(self.lasting, made.figures["done"].p95)
                return made
            load = longer

    def _placed(self, settings: Settings, gpus: int) -> tuple[PipelineConfig, Mapping[str, str]]:
        made, memory = changed(self.config, settings), [self.gpu_bytes] * gpus
        validate(made)
        placement = placed(made, Machine(memory, here=False))
        made = self.estimate.budgeted(placement.config, memory)
        check(plan(made), memory)
        return made, placement.notes

    def _simulated(
        self, settings: Settings, config: PipelineConfig, gpus: int, load: Load, notes: Mapping[str, str]
    ) -> Trial | str:
        try:
            outcome = simulate(config, self.estimate, load)
        except ConfigError as error:  # of many sizes one may not fit where others do
            return str(error).splitlines()[0]
        count = len(outcome.flights)
        ended = [each for each in outcome.flights if not each.refused]
        figures = figures_of(ended, self.estimate, config.interface)
        refused, rate = 1 - len(ended) / count, count / outcome.window if outcome.window else 0.0
        coming = rate * figures["done"].p95 if "done" in figures else 0.0
        growing = not load.is_closed and _grows(outcome, coming, load.around)
        return Trial(
            settings,
            config,
            gpus,
            figures,
            self.objectives.excess(figures) + refused + (1 - outcome.kept_up) * growing,
            rate * outcome.kept_up if rate else count / (outcome.seconds or 1.0),
            refused,
            shares_of(outcome),
            coming,
            growing,
            notes,
        )


def _grows(outcome: Outcome, coming: float, around: int) -> bool:
    """Return whether more requests come than end, or threads have more to send and receive than they can.

    The growth of a queue is the difference between the requests in flight at both ends of those that count. Where it does not grow, each
    of the two numbers varies by the square root of its mean. Where fewer came before than while one lasts, those in flight still become
    more, whether a queue grows or not.
    """
    if max(outcome.messages.values()) > BUSY:
        return True
    by_chance = CHANCE * sqrt(2 * outcome.in_flight) / max(1, len(outcome.flights))
    return (coming <= around or around == AROUND) and 1 - outcome.kept_up > by_chance


def shares_of(outcome: Outcome) -> dict[str, float]:
    """Return how busy stages (the busiest replica), GPUs and threads of messages are."""
    shares: dict[str, float] = {}
    for name, share in outcome.stages.items():
        stage = name.rpartition(".")[0] or name
        shares[stage] = max(shares.get(stage, 0.0), share)
    shares.update({f"gpu {name}": share for name, share in outcome.gpus.items()})
    for name, share in outcome.messages.items():
        shares["messages" if name == CLIENT else f"messages of {name}"] = share
    return shares


def gpus_text(count: int) -> str:
    return f"{count} GPU{'s' * (count != 1)}"
