"""Synthesises speech with espeak-ng, from the library in the ``espeakng-loader`` wheel, in this process.

espeak-ng's output depends slightly on earlier calls. So the library is loaded anew for every call, and its generator is
seeded: the same call makes the same samples, whatever was called before.
"""

from __future__ import annotations

import _ctypes
import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import soxr

Samples = npt.NDArray[np.float32]

_SYNCHRONOUS = 2
_RATE, _PITCH, _RANGE = 1, 3, 4
_UTF8 = 1
_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)


def speak(text: str, **settings: Any) -> Samples:
    """Synthesise one text; see :func:`speak_all`."""
    return speak_all([text], **settings)[0]


def speak_all(
    texts: Sequence[str],
    *,
    voice: str = "en-us",
    speed: int = 150,
    pitch: int = 50,
    span: int = 50,
    rate: int = 24_000,
) -> list[Samples]:
    """Return mono samples of each text at ``rate`` Hz, in [-1, 1].

    Args:
        voice: an espeak-ng voice, with a variant if wanted (``en-us+f3``).
        speed: words per minute.
        pitch, span: height and range of the intonation, 0 to 99.

    Raises:
        ValueError: the voice does not exist.
    """
    engine = _Engine()
    try:
        engine.choose(voice, {_RATE: speed, _PITCH: pitch, _RANGE: span})
        return [engine.speak(text, rate) for text in texts]
    finally:
        engine.close()


class _Engine:
    """The library, which keeps its state in globals until it is unloaded."""

    def __init__(self) -> None:
        import espeakng_loader

        self._library = ctypes.CDLL(espeakng_loader.get_library_path())
        data = espeakng_loader.get_data_path().encode()
        self._rate: int = self._library.espeak_Initialize(_SYNCHRONOUS, 0, data, 0)
        if self._rate <= 0:
            raise RuntimeError(f"espeak-ng could not be initialised with its data in {data.decode()}")
        self._library.espeak_ng_SetRandSeed(1)
        self._pieces: list[npt.NDArray[np.int16]] = []
        self._callback = _CALLBACK(self._receive)
        self._library.espeak_SetSynthCallback(self._callback)

    def close(self) -> None:
        self._library.espeak_Terminate()
        _ctypes.dlclose(self._library._handle)

    def choose(self, voice: str, parameters: dict[int, int]) -> None:
        if self._library.espeak_SetVoiceByName(voice.encode()) != 0:
            raise ValueError(f"espeak-ng has no voice {voice!r}")
        for parameter, value in parameters.items():
            self._library.espeak_SetParameter(parameter, value, 0)

    def speak(self, text: str, rate: int) -> Samples:
        self._pieces.clear()
        encoded = text.encode()
        size = ctypes.c_size_t(len(encoded) + 1)
        self._library.espeak_Synth(encoded, size, 0, 0, 0, _UTF8, None, None)
        wave = np.concatenate(self._pieces).astype(np.float32) / 32768
        return np.asarray(soxr.resample(wave, self._rate, rate, quality="HQ"), dtype=np.float32)

    def _receive(self, samples: Any, count: int, events: Any) -> int:
        if samples and count > 0:
            self._pieces.append(np.ctypeslib.as_array(samples, (count,)).copy())
        return 0
