"""``omni top``: what is shown in a terminal of some width, and the key to leave."""

from __future__ import annotations

import asyncio
import io
import os
import sys
import termios

import pytest
from rich.console import Console
from status_reports import STAGES, report, run

from omni_cli import top
from omni_cli.top import load_line, table, view


def shown(width: int, status: object = None, **changes: object) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(view(run(), status or report(**changes), None, width))  # type: ignore[arg-type]
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined, no-any-return]


def test_eighty_columns_hold_a_line_per_stage() -> None:
    title, header, *rows = shown(80)
    assert title == "qwen3-omni  pid 7, up 48 s: 2 in flight, 45 completed"
    assert header.split() == ["stage", "state", "queued", "running", "done", "failed", "per", "s", "p50", "p99", "KV"]
    assert [row.split()[0] for row in rows] == STAGES
    assert all("…" not in row and row.split()[1] == "ready" for row in rows)
    assert all(len(row) <= 80 for row in rows)


def test_a_wide_terminal_shows_more() -> None:
    header = shown(140)[1]
    assert header.split()[-3:] == ["batch", "KV", "out"]
    assert "process" not in header, "each process has the name of its stage"
    assert "process" in shown(140, processes="pipeline")[1]


def test_a_narrow_terminal_keeps_stage_and_state() -> None:
    header, first = shown(60)[1:3]
    assert header.split() == ["stage", "state", "queued", "running", "done", "per", "s", "p99"]
    assert first.split()[:2] == ["preprocessing", "ready"]


def test_columns_with_nothing_to_say_are_left_out() -> None:
    assert "restarts" not in [column.header for column in table(report(), None).columns]
    again = report()
    again.health["thinker"]["restarts"] = 2
    assert "restarts" in [column.header for column in table(again, None).columns]


def test_a_pipeline_that_does_not_answer_says_so() -> None:
    (line,) = (str(view(run(), None, None, 80)),)
    assert line == "? (pid 7): does not answer; is its process stopped?"


@pytest.mark.parametrize(("typed", "leaves"), [(b"q", True), (b"xQ", True), (b"x", False)])
async def test_a_key_leaves(typed: bytes, leaves: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, end = os.openpty()
    with os.fdopen(end) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        usual = termios.tcgetattr(end)
        with top._keys() as left:
            os.write(terminal, typed)
            done, _ = await asyncio.wait([left], timeout=60.0 if leaves else 0.05)
            assert bool(done) is leaves
        assert termios.tcgetattr(end) == usual
    os.close(terminal)


def loaded(done: int, uptime: float, cpu: float, late: float = 0.0) -> object:
    """Return a status with processor's times and sound."""
    made = report(done=done, uptime=uptime)
    for name, stages in made.statistics.items():
        if name != "coordinator":
            made.statistics[name] = {stage: {**numbers, "cpu_seconds": cpu} for stage, numbers in stages.items()}
    vocoder = made.statistics["code2wav"]["code2wav"]
    made.statistics["code2wav"]["code2wav"] = {**vocoder, "sound_seconds": 10.0 * late + 5.0, "late_seconds": late}
    made.statistics["talker_ar"]["talker_ar"]["cpu_seconds"] = 2 * cpu
    return made


def test_late_sound_and_the_busiest_stage_are_shown() -> None:
    before, now = loaded(40, 40.0, 10.0), loaded(45, 50.0, 14.8, late=1.5)
    line = load_line(now, before)  # type: ignore[arg-type]
    assert line == "0.50 a second; 1.50 s late in 15.0 s of sound; saturates: talker_ar 96%"
    shown = table(now, before, 200)  # type: ignore[arg-type]
    cells = {str(column.header): list(column.cells) for column in shown.columns}
    row = STAGES.index("talker_ar")
    assert [cells[name][row] for name in ("cpu", "work")] == ["96%", "1.9 s"]
    line = load_line(loaded(45, 50.0, 5.0, late=0.5), loaded(40, 40.0, 2.0))  # type: ignore[arg-type]
    assert line == "0.50 a second; 0.50 s late in 5.0 s of sound; busiest: talker_ar 60%"
    assert load_line(report(), None) == ""
