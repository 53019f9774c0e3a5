"""The moments of one spoken answer as its client saw them, and what they mean to somebody who listens."""

from __future__ import annotations

from typing import Any

from attrs import define, field

_ROUNDING = 1e-9
"""Differences of times are not exact: a pause of this many seconds is none."""


@define
class Timeline:
    """One request. Times are seconds of one clock.

    Attributes:
        scenario: its kind.
        begun: when it was due to be sent. In an open loop this is its drawn time, also where the client was late.
        sounds: arrivals of pieces of sound, with their seconds of sound.
        ended: when the answer was complete, or failed.
        error: the class of the failure.
        tokens: of the answer, as the server counts them.
    """

    scenario: str
    begun: float
    sounds: list[tuple[float, float]] = field(factory=list)
    ended: float | None = None
    error: str | None = None
    tokens: int | None = None

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
    def silences(self) -> list[float]:
        """Pauses in seconds that a listener hears who starts at the first piece, plays at 1x and waits when nothing is left."""
        found, played_until = [], None
        for arrival, seconds in self.sounds:
            if played_until is None or arrival > played_until:
                if played_until is not None and arrival - played_until > _ROUNDING:
                    found.append(arrival - played_until)
                played_until = arrival
            played_until += seconds
        return found

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

    def as_data(self, origin: float) -> dict[str, Any]:
        """Return plain data, with times relative to ``origin``, in seconds with microseconds."""
        times = {"begun": self.begun - origin, **{name: getattr(self, name) for name in MEASURES}, "sound": self.sound}
        rounded = {name: None if value is None else round(value, 6) for name, value in times.items()}
        return {"scenario": self.scenario, "error": self.error, "tokens": self.tokens, **rounded}


MEASURES = ("ttfa", "gap", "late", "total", "rtf")
"""The measures of one request."""
