"""G.711, the sound of telephony: a byte for each sample, by either of its two laws."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

Law = Literal["pcmu", "pcma"]

LAW_RATE = 8_000
"""The sample rate at which it is used."""


def _mu_law() -> npt.NDArray[np.int16]:
    """Return the sample of each byte of G.711 mu-law."""
    code = ~np.arange(256, dtype=np.uint8)
    magnitude = ((((code & 0x0F).astype(np.int32) << 3) + 0x84) << ((code & 0x70) >> 4).astype(np.int32)) - 0x84
    return np.where(code & 0x80, -magnitude, magnitude).astype(np.int16)


def _a_law() -> npt.NDArray[np.int16]:
    """Return the sample of each byte of G.711 A-law."""
    code = np.arange(256, dtype=np.uint8) ^ 0x55
    exponent = ((code & 0x70) >> 4).astype(np.int32)
    step = (code & 0x0F).astype(np.int32) << 4
    magnitude = np.where(exponent == 0, step + 8, (step + 0x108) << np.maximum(exponent - 1, 0))
    return np.where(code & 0x80, magnitude, -magnitude).astype(np.int16)


_TABLES = {"pcmu": _mu_law(), "pcma": _a_law()}
_ORDERS = {kind: np.argsort(table, kind="stable").astype(np.uint8) for kind, table in _TABLES.items()}
_MIDDLES = {
    kind: (table[_ORDERS[kind]][1:].astype(np.int32) + table[_ORDERS[kind]][:-1].astype(np.int32)) / 2
    for kind, table in _TABLES.items()
}


def to_law(samples: npt.NDArray[np.int16], kind: Law) -> bytes:
    """Return 16-bit samples as G.711, each as the byte of the nearest sample."""
    return bytes(_ORDERS[kind][np.searchsorted(_MIDDLES[kind], samples)].tobytes())


def from_law(data: bytes, kind: Law) -> npt.NDArray[np.int16]:
    """Return the samples of G.711."""
    return _TABLES[kind][np.frombuffer(data, np.uint8)]
