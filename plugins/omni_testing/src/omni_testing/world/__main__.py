"""``python -m omni_testing.world SEED``: run one world and print what happened. ``SEED COUNT``: so many, from that seed on."""

from __future__ import annotations

import sys
import time

from omni_testing.world import Broken, World


def main() -> int:
    first, count = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1
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
    return min(broken, 1)


if __name__ == "__main__":
    raise SystemExit(main())
