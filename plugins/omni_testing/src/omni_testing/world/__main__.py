"""``python -m omni_testing.world SEED``: run one world and print what happened. ``SEED COUNT``: so many, from that seed on."""

from __future__ import annotations

import time

import click

from omni_testing.world import Broken, World


@click.command()
@click.argument("first", metavar="SEED", type=int)
@click.argument("count", type=click.IntRange(min=1), default=1)
def main(first: int, count: int) -> None:
    """Run the world of a seed and print what happened in it; or COUNT worlds, from that seed on."""
    begin, broken = time.process_time(), 0
    for seed in range(first, first + count):
        try:
            world = World(seed).run()
        except Broken as error:
            broken += 1
            print(error)
            continue
        if count == 1:
            print(world)
    seconds = time.process_time() - begin
    print(f"{count} worlds in {seconds:.1f} s of one core; {broken} broken")
    raise SystemExit(min(broken, 1))


if __name__ == "__main__":
    main()
