"""Checks the demo's speech with a speech recogniser that was not trained on it.

pocketsphinx chooses among all replies by a grammar; chance is one in as many. A recognised reply shows that the right
words were spoken, not how good they sound. Speech played backwards and noise are controls: they must score near chance.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import soxr

Wave = npt.NDArray[np.float32]

_RATE = 16_000
_DITHER_DB = 30
"""The signal-to-noise ratio of the added dither: digital silence confuses the recogniser."""


class Judge:
    """A recogniser of these replies."""

    def __init__(self, replies: tuple[str, ...]) -> None:
        from pocketsphinx import Decoder

        self._replies = {_words(reply): reply for reply in replies}
        self._decoder = Decoder(samprate=_RATE, lm=None, loglevel="FATAL")
        alternatives = " | ".join(self._replies)
        self._decoder.add_jsgf_string("replies", f"#JSGF V1.0; grammar replies; public <reply> = {alternatives};")
        self._decoder.activate_search("replies")

    def hear(self, samples: Wave, rate: int = 24_000, *, seed: int = 0) -> str | None:
        """Return the reply that these samples match best, or nothing. ``seed``: of the dither."""
        wave = soxr.resample(np.asarray(samples, np.float32), rate, _RATE)
        silence = np.zeros(_RATE // 4, np.float32)
        wave = np.concatenate([silence, wave, silence])
        noise = (
            np.random.default_rng(seed).standard_normal(len(wave)) * np.sqrt(np.mean(wave**2)) / 10 ** (_DITHER_DB / 20)
        )
        sound = ((wave + noise) * 32767).clip(-32768, 32767).astype(np.int16)
        self._decoder.start_utt()
        self._decoder.process_raw(sound.tobytes(), no_search=False, full_utt=True)
        self._decoder.end_utt()
        heard = self._decoder.hyp()
        return None if heard is None else self._replies.get(heard.hypstr)


def backwards(samples: Wave) -> Wave:
    """Return a control: the samples reversed, with the same loudness and length."""
    return np.ascontiguousarray(samples[::-1])


def noise_like(samples: Wave, seed: int = 0) -> Wave:
    """Return a control: noise of the same length and level."""
    level = float(np.sqrt(np.mean(np.square(samples))))
    return (np.random.default_rng(seed).standard_normal(len(samples)) * level).astype(np.float32)


def _words(reply: str) -> str:
    return re.sub(r"[^a-z' ]", "", reply.lower())
