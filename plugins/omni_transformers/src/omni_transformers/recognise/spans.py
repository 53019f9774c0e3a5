"""The division of a long recording: at quiet places, or into windows that overlap."""

from __future__ import annotations

from attrs import frozen

from omni_media.api import Samples

QUIET = 0.1
"""Seconds of the pieces that are compared."""


@frozen
class Span:
    """Samples ``begin`` to ``end``, of which the first ``left`` and the last ``right`` are context for the others."""

    begin: int
    end: int
    left: int = 0
    right: int = 0


def quiet_spans(samples: Samples, rate: int, seconds: float, search: float = 5.0) -> list[Span]:
    """Divide a recording into spans of at most ``seconds``, at the quietest place in the last ``search`` seconds of each."""
    most, step, found, begin = round(seconds * rate), round(QUIET * rate), list[Span](), 0
    while len(samples) - begin > most:
        first = begin + max(step, most - round(search * rate))
        count = max(1, (begin + most - first) // step)
        energy = [float((samples[at : at + step] ** 2).sum()) for at in range(first, first + count * step, step)]
        end = min(first + energy.index(min(energy)) * step + step // 2, begin + most)
        found.append(Span(begin, end))
        begin = end
    return [*found, Span(begin, len(samples))]


def overlapping_spans(length: int, rate: int, seconds: float, context: float) -> list[Span]:
    """Divide ``length`` samples into windows of ``seconds``, with ``context`` seconds of their neighbours on either side."""
    most, side, found, begin = round(seconds * rate), round(context * rate), list[Span](), 0
    while begin + most < length:
        found.append(Span(begin, begin + most, side if begin else 0, side))
        begin += most - 2 * side
    return [*found, Span(begin, length, side if begin else 0, 0)]
