"""Runs the fault table and prints it: ``python tests/faults/table/run.py [--only TEXT] [--quick] [--json FILE]``.

Each row is a process of its own, with a pipeline or more. Bars are for two idle cores; a row that misses one says why, and the exit
code is 1.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
FOLDERS = (HERE, HERE.parents[1] / "helpers")
sys.path[:0] = map(str, FOLDERS)
os.environ["PYTHONPATH"] = os.pathsep.join([*map(str, FOLDERS), os.environ.get("PYTHONPATH", "")])

from table_rows import ROWS, Row, end_ours, serve  # noqa: E402

SECONDS = {False: 600.0, True: 180.0}
"""The most that all rows take together, by ``--quick``."""


def be_row(name: str, quick: bool, path: Path) -> None:
    """Do the work of a row in this process."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp", ignore_cleanup_errors=True) as folder:
        row = Row(path, quick, Path(folder))
        try:
            asyncio.run(ROWS[name][1](row))
        except Exception as error:
            row.check(False, f"{type(error).__name__}: {error}")
        row.over = True
        row.save()


def run_row(name: str, quick: bool, limit: float) -> Row:
    """Run a row in a process of its own, and end whatever it has left."""
    os.environ["OMNI_FAULT_TABLE"] = f"{os.getpid()}-{name}"
    with tempfile.TemporaryDirectory() as folder, Path(folder, "log").open("w") as log:
        path = Path(folder, "row.json")
        if limit < 5:
            return Row(path, reasons=[f"not run: there are {SECONDS[quick]:.0f} s for all rows"])
        command = [sys.executable, __file__, "--row", name, "--json", str(path), *["--quick"] * quick]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        try:
            problem = f"its process ended with code {process.wait(limit)}"
        except subprocess.TimeoutExpired:
            problem = f"not over after {limit:.0f} s"
        finally:
            while end_ours():
                time.sleep(0.02)
            process.wait()
        row = Row(path, **json.loads(path.read_text())) if path.exists() else Row(path)
        row.check(row.over, f"{problem}: {Path(folder, 'log').read_text()[-200:]!r}")
        return row


def main() -> int:
    """Run the rows one after another."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="rows whose name has this text")
    parser.add_argument("--quick", action="store_true", help="fewer cases")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    if options.serve:
        asyncio.run(serve(*options.serve))
    if options.row:
        be_row(options.row, options.quick, options.json)
        return 0
    print(f"{'':46} {'n':>5} {'hurt':>5} {'wrong':>5} {'hung':>5} {'recover':>8} {'took':>6}")
    rows, end = {}, time.monotonic() + SECONDS[options.quick]
    for name in (each for each in ROWS if options.only in each):
        begin = time.monotonic()
        row = rows[name] = run_row(name, options.quick, min(ROWS[name][0], end - time.monotonic()))
        numbers = (
            f"{row.n:5} {row.hurt:5} {row.wrong:5} {row.hung:5} {row.recover:6.1f} s {time.monotonic() - begin:4.0f} s"
        )
        print(f"{name:46} {numbers}  {'FAILS' if row.reasons else 'holds'}", flush=True)
        for each in row.reasons[:4]:
            print(f"    {each}", flush=True)
        if len(row.reasons) > 4:
            print(f"    and {len(row.reasons) - 4} more")
    if options.json:
        options.json.write_text(json.dumps({name: row.numbers() for name, row in rows.items()}, indent=1))
    failed = sum(bool(row.reasons) for row in rows.values())
    print(f"{len(rows) - failed} hold, {failed} fail")
    return 1 if failed or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
