"""The moments of one request as its client saw them, and what they mean to somebody who listens."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from attrs import define, field


@define
class Timeline:
    """One request. Times are seconds of one clock.

    Attributes:
        scenario: its kind.
        begun: when it was due to be sent. In an open loop this is its drawn time, also where the client was late.
        texts: arrivals of pieces of text. sounds: arrivals of pieces of sound, with their seconds of sound.
        ended: when the answer was complete, or failed. error: the class of the failure.
        tokens: of the answer, as the server counts them.
        barge_in: seconds from the first sound of a user who interrupts to the server's word that it has heard it.
    """

    scenario: str
    begun: float
    texts: list[float] = field(factory=list)
    sounds: list[tuple[float, float]] = field(factory=list)
    ended: float | None = None
    error: str | None = None
    tokens: int | None = None
    barge_in: float | None = None

    @property
    def ttft(self) -> float | None:
        """Seconds to the first piece of text."""
        return self.texts[0] - self.begun if self.texts else None

    @property
    def ttfa(self) -> float | None:
        """Seconds to the first piece of sound."""
        return self.sounds[0][0] - self.begun if self.sounds else None

    @property
    def total(self) -> float | None:
        """Seconds to the end of the answer."""
        return self.ended - self.begun if self.ended is not None else None

    @property
    def sound(self) -> float:
        """Seconds of sound in the answer."""
        return sum(seconds for _, seconds in self.sounds)

    @property
    def chunk_gaps(self) -> list[float]:
        """Seconds between arrivals of neighbouring pieces: of sound if the answer has sound, else of text."""
        times = [arrival for arrival, _ in self.sounds] or self.texts
        return [after - before for before, after in pairwise(times)]

    @property
    def silences(self) -> list[float]:
        """Pauses in seconds that a listener hears who starts at the first piece, plays at 1x and waits when nothing is left."""
        found, played_until = [], None
        for arrival, seconds in self.sounds:
            if played_until is None or arrival > played_until:
                if played_until is not None:
                    found.append(arrival - played_until)
                played_until = arrival
            played_until += seconds
        return found

    @property
    def played_until(self) -> float | None:
        """The moment at which that listener has heard all of it."""
        return self.sounds[0][0] + sum(self.silences) + self.sound if self.sounds else None

    @property
    def late(self) -> float | None:
        """Seconds by which the end of the sound is delayed by pauses."""
        return sum(self.silences) if self.sounds else None

    @property
    def gap(self) -> float | None:
        """The longest pause that a listener hears, in seconds."""
        return max(self.silences, default=0.0) if self.sounds else None

    @property
    def rtf(self) -> float | None:
        """Seconds of computing and transport for each second of sound."""
        return self.total / self.sound if self.total is not None and self.sound else None

    def measure(self, name: str) -> float | None:
        """Return one of :data:`MEASURES`."""
        value: float | None = getattr(self, name)
        return value

    def as_data(self, origin: float) -> dict[str, Any]:
        """Return plain data, with times relative to ``origin``."""
        measures = {name: rounded(self.measure(name)) for name in MEASURES}
        head = {"scenario": self.scenario, "begun": rounded(self.begun - origin), "error": self.error}
        return {**head, **measures, "sound": rounded(self.sound), "tokens": self.tokens}


MEASURES = {
    "ttft": "time to first text",
    "ttfa": "time to first sound",
    "gap": "longest pause heard",
    "late": "late seconds of sound",
    "total": "time to the end",
    "rtf": "real-time factor",
    "barge_in": "barge-in time",
}
"""The measures of one request, with a title each."""


def rounded(value: float | None) -> float | None:
    """Return seconds with microseconds."""
    return None if value is None else round(value, 6)
