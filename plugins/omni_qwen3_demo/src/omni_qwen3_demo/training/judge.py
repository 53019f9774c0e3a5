"""Is what the demo says what it wrote? A recogniser that was not trained on it chooses among the whole replies.

pocketsphinx with a grammar of all replies: chance is one in as many. It shows that the right reply was spoken, and nothing
about how well. Speech played backwards and noise are judged too: they must score near chance.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import soxr

Wave = npt.NDArray[np.float32]

_RATE = 16_000
_DITHER_DB = 30
"""How far under the speech the noise is that is added to it: digital silence confuses the recogniser."""


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
        """The reply that these samples are likest to, or nothing. ``seed``: of the dither."""
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
    """A control: as loud and as long, but no speech."""
    return np.ascontiguousarray(samples[::-1])


def noise_like(samples: Wave, seed: int = 0) -> Wave:
    """A control: noise of the same length and level."""
    level = float(np.sqrt(np.mean(np.square(samples))))
    return (np.random.default_rng(seed).standard_normal(len(samples)) * level).astype(np.float32)


def _words(reply: str) -> str:
    return re.sub(r"[^a-z' ]", "", reply.lower())
