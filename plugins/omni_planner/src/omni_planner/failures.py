"""Deaths of processes and losses of hosts, to be simulated."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable

from attrs import frozen

from omni_core.errors import ConfigError, did_you_mean

MOST = 10_000
"""Failures of a simulation at most."""


@frozen
class Failure:
    """The death of a unit (a process, or the ranks of a stage) or the loss of a host with all its units.

    Attributes:
        at: seconds. name: of the unit, as ``omni ps`` has it, or of the host. is_host: it is a host. away: seconds until a lost host can
            be used again.
    """

    at: float
    name: str
    is_host: bool = False
    away: float = 0.0


def failure_of(text: str) -> Failure:
    """Parse ``UNIT@SECONDS`` or ``host:NAME@SECONDS+AWAY``.

    Raises:
        ConfigError: it is not of that form.
    """
    match = re.fullmatch(r"(host:)?([^@]+)@([0-9.]+)(?:\+([0-9.]+))?", text)
    try:
        if match is None or bool(match[1]) != (match[4] is not None):
            raise ValueError
        return Failure(float(match[3]), match[2], bool(match[1]), float(match[4] or 0.0))
    except ValueError:
        raise ConfigError(
            f"--fail {text}: must be UNIT@SECONDS, such as thinker@30, or host:NAME@SECONDS+AWAY, such as host:b@30+60"
        ) from None


def at_random(units: Iterable[str], mean: float, seconds: float, seed: int) -> list[Failure]:
    """Return deaths of units at random, ``mean`` seconds between two of one unit on average, within so many seconds.

    Raises:
        ConfigError: there are more than :data:`MOST`.
    """
    found: list[Failure] = []
    for unit in units:
        generator, now = random.Random(f"failures {seed} {unit}"), 0.0
        while (now := now + generator.expovariate(1.0 / mean)) < seconds:
            found.append(Failure(now, unit))
            if len(found) > MOST:
                raise ConfigError(f"more than {MOST} deaths in {seconds:.0f} s with {mean:g} s between those of a unit")
    return sorted(found, key=lambda each: each.at)


def check_names(failures: Iterable[Failure], units: Iterable[str], hosts: Iterable[str]) -> None:
    """Raise a ConfigError if a failure names a unit or a host that does not exist."""
    known = {False: sorted(units), True: sorted(hosts)}
    for each in failures:
        names = known[each.is_host]
        if each.name not in names:
            what = "host" if each.is_host else "unit"
            raise ConfigError(f"there is no {what} {each.name!r} in the placement{did_you_mean(each.name, names)}")
