"""Attacks ``omni serve demo`` over loopback and prints what each attack cost: ``python tests/attacks/run.py [--only TEXT] [--json FILE]``.

No attack may use more than 50 ms of CPU time in one callback of the server's event loop, or take its memory to 3 times what it is when
idle; a good tenant beside it gets all its answers. Exits with 1 where one does.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import attrs
from attacks import ATTACKS
from harness import attacked, served, tenant


def main() -> int:
    """Run the attacks one after another."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="attacks whose name has this text")
    parser.add_argument("--json", type=Path, help="write the outcomes to this file")
    options = parser.parse_args()
    outcomes = []
    with tempfile.TemporaryDirectory() as folder, served(Path(folder)) as server:
        with tenant(server):  # so that what is loaded late counts as idle memory
            time.sleep(3)
        idle = server.memory()
        print(f"{'attack':58} {'callback':>8} {'memory':>6} {'asked':>5} {'slowest':>7} {'health':>6}  the server said")
        for name, attack in ATTACKS.items():
            if options.only not in name:
                continue
            outcome = attacked(server, idle, name, attack)
            outcomes.append(outcome)
            print(
                f"{name:58} {outcome.callback:5.0f} ms {outcome.memory:5.1f}x {outcome.asked:5} {outcome.slowest:5.1f} s "
                f"{outcome.health:4.1f} s  {outcome.said}",
                flush=True,
            )
            for each in outcome.wrong:
                print(f"    WRONG: {each}", flush=True)
    if options.json:
        options.json.write_text(json.dumps([attrs.asdict(each) for each in outcomes], indent=1))
    failed = [each.attack for each in outcomes if each.wrong]
    print(f"{len(outcomes) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
