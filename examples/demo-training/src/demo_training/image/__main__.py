"""``python -m demo_training.image FOLDER``: train, and judge; with ``--judge CHECKPOINT``: judge alone."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from demo_training.image.build import Steps, build
from demo_training.image.report import report


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(prog="python -m demo_training.image", description=__doc__)
    parser.add_argument("folder", type=Path, help="of the training, or with --judge the checkpoint's")
    parser.add_argument("--judge", action="store_true", help="train nothing; print the report of a checkpoint")
    parser.add_argument("--count", type=int, default=100, help="pictures per row of the report (default 100)")
    parser.add_argument("--denoiser-steps", type=int, default=Steps().denoiser, help=f"default {Steps().denoiser}")
    parser.add_argument("--minutes", type=float, help="train the denoiser for so long at the most")
    given = parser.parse_args()
    checkpoint = (
        given.folder if given.judge else build(given.folder, Steps(denoiser=given.denoiser_steps), given.minutes)
    )
    print(asyncio.run(report(str(checkpoint), given.count)))


main()
