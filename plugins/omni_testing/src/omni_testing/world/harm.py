"""Harm in a world beside bad requests: deaths, starts that fail, processes that stand still, connections that are cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from omni_testing.world.process import Process

if TYPE_CHECKING:
    from omni_testing.world.simulation import World

Harm = Callable[["World", str], None]


def planned(world: World, seconds: float) -> list[tuple[float, Harm, str]]:
    """Return what goes wrong within so many seconds: when, what, and to which unit."""
    random = world.random
    kinds: dict[str, Sequence[Harm]] = {
        "deaths": (_kill, _kill, _kill, _kill_twice, _fail_starts),
        "slow": (_freeze,),
        "mixed": (_kill, _freeze, _cut),
    }
    if world.mode not in kinds:
        return []
    count = random.choice((1, 1, 2, 4))
    names = list(world.units)
    return [(seconds * random.random(), random.choice(kinds[world.mode]), random.choice(names)) for _ in range(count)]


def _current(world: World, name: str) -> Process | None:
    alive = [each for each in world.processes if each.spec.name == name and each.is_alive]
    return alive[-1] if alive else None


def _kill(world: World, name: str) -> None:
    process = _current(world, name)
    if process is not None:
        process.die(-9)


def _kill_twice(world: World, name: str) -> None:
    _kill(world, name)
    pause = world.random.choice((0.003, 0.05, 0.3))
    world.harm_until = max(world.harm_until, world.parent.time() + pause)
    world.parent.call_later(pause, _kill, world, name)


def _fail_starts(world: World, name: str) -> None:
    world.failing_starts += 1
    _kill(world, name)


def _freeze(world: World, name: str) -> None:
    process = _current(world, name)
    if process is not None:
        seconds = world.random.choice((0.1, 0.8, 5.0))
        world.note(f"{name} stands still for {seconds} s")
        world.is_unclear = True
        process.loop.frozen_until = world.clock.now + seconds
        world.harm_until = max(world.harm_until, process.loop.frozen_until)


def _cut(world: World, name: str) -> None:
    process = _current(world, name)
    if process is not None:
        world.note(f"a connection to {name} is cut")
        world.harm_until = max(world.harm_until, world.clock.now + 2.0)
        process.cut()
