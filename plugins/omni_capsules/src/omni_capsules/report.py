"""A capsule in words: what happened, where the request was when, and in what the environment here differs."""

from __future__ import annotations

import time
from collections.abc import Iterator

from omni_capsules.capsule import Capsule, StageRecord
from omni_capsules.events import INPUTS, OUTPUTS, Event
from omni_capsules.rebuild import Rebuilt
from omni_capsules.replay import Comparison, Outcome

_MOST_EVENTS = 12
"""Events of a stage that are shown; of more, the first and the last ones."""


def lines(capsule: Capsule) -> Iterator[str]:
    """Yield what a capsule holds, line by line."""
    yield from map(printable, _lines(capsule))


def printable(text: str) -> str:
    """Return a text of a file as a terminal may get it: what moves a cursor or sets a colour as a Python literal has it."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def _lines(capsule: Capsule) -> Iterator[str]:
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(capsule.wall / 1e9))
    yield f"request {capsule.request_id} of {capsule.pipeline}, {when}: {capsule.state} after {capsule.seconds:.3f} s"
    if capsule.error is not None:
        stage = capsule.error.get("stage")
        where = f"in stage {stage}: " if stage else ""
        yield f"  {where}{capsule.error.get('error_type')}: {capsule.error.get('message')}"
    asked = [f"{name}={value}" for name, value in capsule.request.items() if value not in (None, {}, False)]
    yield f"  asked for: {', '.join(asked) or 'nothing special'}"
    for record in capsule.stages:
        yield from _stage_lines(capsule, record)
    for name, reason in capsule.missing.items():
        yield f"process {name}: {reason}"


def _stage_lines(capsule: Capsule, record: StageRecord) -> Iterator[str]:
    end = record.first("completed", "failed", "aborted")
    taken = record.first("taken")
    queued = f", {taken.at / 1e9:.3f} s in the queue" if taken is not None else ""
    after = (record.wall - capsule.wall) / 1e9
    ended = end.kind if end is not None else "did not end: its process died or was asked before"
    yield (
        f"stage {record.stage}: process {record.process} (pid {record.pid} on {record.host}), from {after:.3f} s on: "
        f"{ended}, {record.seconds:.3f} s{queued}; {_counted(record)}"
    )
    shown = record.events
    if len(shown) > _MOST_EVENTS:
        half = _MOST_EVENTS // 2
        skipped = len(shown) - _MOST_EVENTS
        yield from map(_event_line, shown[:half])
        yield f"           ... {skipped} further events"
        shown = shown[-half:]
    yield from map(_event_line, shown)


def _counted(record: StageRecord) -> str:
    given = sum(event.kind in INPUTS for event in record.events)
    made = sum(event.kind in OUTPUTS for event in record.events)
    return f"{given} inputs{'' if record.inputs else ' (not recorded)'}, {made} outputs"


def _event_line(event: Event) -> str:
    who = f" from {event.source}" if event.source else f" to {event.target}" if event.target else ""
    part = f" of {event.part}" if event.part else ""
    text = event.shape
    if event.kind in ("error", "failed"):
        text = f"{event.detail.get('error_type')}: {event.detail.get('message')}"
    elif event.detail.get("left_out"):
        text += f" (left out: {event.detail['left_out']})"
    return f"  {event.at / 1e9:9.3f} s  {event.kind}{part}{who}{f'  {text}' if text else ''}"


def verdict(rebuilt: Rebuilt, outcome: Outcome, comparison: Comparison) -> str:
    """Return how a replay compares, in one line."""
    end = f"{outcome.ended or 'did not end, as it had not then'}, {outcome.seconds:.3f} s"
    if outcome.ended == "failed" and outcome.error is not None:
        end = f"failed: {outcome.error['error_type']}: {outcome.error['message']}"
    if comparison.difference:
        counted = f"{comparison.equal} of {comparison.recorded} outputs are equal"
        return f"stage {rebuilt.spec.name}: {end}; DIFFERENT: {comparison.difference} ({counted})"
    same = (
        "the same error" if outcome.ended == "failed" else f"all {comparison.recorded} outputs are equal, byte by byte"
    )
    return f"stage {rebuilt.spec.name}: {end}; {same}"
