"""The settings of admission: ``admission`` of a config."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Self

from attrs import frozen

from omni_core.api import SPEECH, VOCODER, ConfigError, PipelineConfig, did_you_mean, load
from omni_core.runtime_api import AdmissionPolicy, is_interrupt, message_of

TEXT, SOUND = "ttft", "ttfa"
"""Names of objectives, the same as of ``omni plan --slo``: the first output of stages that make text, and of the one that makes sound."""

POLICY = "omni_planner.admission.policy:Objectives"


@frozen
class Options:
    """The settings of a config.

    Attributes:
        objectives: by terminal stage, the seconds in which the first output of a streamed reply is wanted.
        wait: the seconds that a request may wait for its turn, after which the objective counts; ``None``: as long as it
            can still be met from the request's arrival.
        policy: reference of what makes an :class:`~omni_core.coordinator.turns.AdmissionPolicy` out of these.
    """

    objectives: Mapping[str, float]
    wait: float | None = None
    policy: str = POLICY

    @classmethod
    def of(cls, config: PipelineConfig) -> Self:
        """Read ``config.admission``: ``ttft``, ``ttfa`` or names of terminal stages, with seconds; ``wait``; ``policy``.

        Raises:
            ConfigError: a setting is unknown or out of range, or none says an objective.
        """
        given, terminals = dict(config.admission), config.terminal_stages
        wait, policy = given.pop("wait", None), given.pop("policy", POLICY)
        if not isinstance(policy, str):
            raise ConfigError(f"admission.policy: must be package.module:attribute, is {policy!r}")
        if wait is not None and not _is_seconds(wait, 0.0):
            raise ConfigError(f"admission.wait: must be a number of seconds, 0 or more, is {wait!r}")
        roles = config.interface.roles if config.interface is not None else {}
        spoken = [roles[each] for each in (VOCODER, SPEECH) if roles.get(each) in terminals][:1]
        named = {TEXT: [name for name in terminals if name not in spoken], SOUND: spoken}
        objectives: dict[str, float] = {}
        for name, seconds in given.items():
            stages = named.get(name, [name] if name in terminals else None)
            if stages is None:
                known = [TEXT, SOUND, "wait", "policy", *terminals]
                raise ConfigError(f"admission.{name}: no such setting{did_you_mean(name, known)}")
            if not stages:
                what = "makes sound" if name == SOUND else "makes text"
                raise ConfigError(
                    f"admission.{name}: no terminal stage of this pipeline {what}; name one of {terminals}"
                )
            if not _is_seconds(seconds, 1e-6):
                raise ConfigError(f"admission.{name}: must be a number of seconds above 0, is {seconds!r}")
            objectives |= dict.fromkeys(stages, float(seconds))
        if not objectives:
            raise ConfigError("admission: states no objective; give ttft or ttfa, in seconds")
        return cls(objectives, wait, policy)


def _is_seconds(value: Any, least: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value < math.inf


def policy_of(config: PipelineConfig) -> AdmissionPolicy:
    """Return the policy of a pipeline with ``admission``.

    Raises:
        ConfigError: a setting is wrong, or its policy cannot be made.
    """
    options = Options.of(config)
    try:
        make = load(options.policy)
    except ConfigError as error:
        raise ConfigError(f"admission.policy: {error}") from None
    try:
        policy: AdmissionPolicy = make(options)
    except ConfigError:
        raise
    except BaseException as error:
        if is_interrupt(error):
            raise
        raise ConfigError(f"admission.policy: {options.policy!r}: {message_of(error, with_type=True)}") from error
    return policy
