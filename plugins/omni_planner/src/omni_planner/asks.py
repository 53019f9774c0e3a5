"""The requests that an estimate is made for: their kinds, and sizes that vary around those of a kind."""

from __future__ import annotations

import math
import random
import statistics
from typing import Any

from attrs import evolve, fields

from omni_core.api import ConfigError, did_you_mean
from omni_torch.placement.work import Ask

KINDS = {
    "text": Ask(text=300, reply=200),
    "image": Ask(text=300, pixels=1_000_000, reply=150),
    "audio": Ask(text=100, audio=10.0, reply=150),
    "speech": Ask(text=300, audio=5.0, reply=60, speech=12.0),
    "drawing": Ask(text=60, drawn=1024 * 1024),
}
"""Requests that need no description: a text, a question about a picture, one about a recording, a turn of a conversation by voice, and an
image to make."""

SIZES = 64
"""Requests of each kind, of as many sizes, which come in turn."""


def ask_of(text: str) -> tuple[str, Ask]:
    """Parse ``NAME:text=300,pixels=1e6,audio=5,reply=60,speech=12``; what is left out is that of the kind of the name, or 0.

    Raises:
        ConfigError: it is not of that form.
    """
    name, _, parts = text.partition(":")
    found = KINDS.get(name, Ask())
    known = [each.name for each in fields(Ask)]
    for part in filter(None, parts.split(",")):
        key, _, value = part.partition("=")
        if key not in known:
            raise ConfigError(
                f"--request {text}: there is no {key!r}{did_you_mean(key, known)}; there are: {', '.join(known)}"
            )
        try:
            number = float(value)
            if not 0 <= number < 1e9:
                raise ValueError
        except ValueError:
            raise ConfigError(f"--request {text}: {key} must be a number of at least 0") from None
        given: dict[str, Any] = {key: number if key in ("audio", "speech") else int(number)}
        found = evolve(found, **given)
    return name, found


def of_sizes(ask: Ask, spread: float, seed: str) -> list[Ask]:
    """Return requests like ``ask`` whose sizes are log-normal, with its sizes as the mean and ``spread`` as their relative deviation.

    The lengths of an answer and of its speech go together, the others are independent of each other. Images that are made have the size
    and the steps of ``ask``.
    """
    if not spread:
        return [ask]
    variance = math.log1p(spread**2)
    normal = statistics.NormalDist(-variance / 2, math.sqrt(variance))
    factors = [math.exp(normal.inv_cdf((each + 0.5) / SIZES)) for each in range(SIZES)]
    mean = statistics.fmean(factors)
    drawn: dict[str, list[float]] = {}
    for name in ("text", "pixels", "audio", "reply"):
        drawn[name] = [each / mean for each in factors]
        random.Random(f"{seed} {name}").shuffle(drawn[name])
    return [
        Ask(
            text=max(1, round(ask.text * text)) if ask.text else 0,
            pixels=round(ask.pixels * pixels),
            audio=ask.audio * audio,
            reply=max(1, round(ask.reply * reply)) if ask.reply else 0,
            speech=ask.speech * reply,
            drawn=ask.drawn,
            steps=ask.steps,
        )
        for text, pixels, audio, reply in zip(*drawn.values(), strict=True)
    ]
