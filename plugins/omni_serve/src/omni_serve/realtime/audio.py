"""Sound of realtime sessions: what clients send becomes mono float32 at 16 kHz, speech becomes what they asked for.

Every converter keeps its state from piece to piece, so that borders between pieces cannot be heard.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt
import soxr
from attrs import frozen

from omni_media import reader
from omni_serve.encoders import PCM_RATE, Encoder, Samples, encoder, pcm16, wav_header
from omni_serve.errors import invalid
from omni_serve.g711 import Law, from_law

AudioType = Literal["audio/pcm", "audio/pcmu", "audio/pcma"]

INPUT_RATE = 16_000
"""Of what pipelines hear: every speech encoder in use takes this rate, and so do voice detectors."""

LEAST_MS = 100
"""The shortest recording that is taken, as by OpenAI."""


_LAWS: dict[AudioType, Law] = {"audio/pcmu": "pcmu", "audio/pcma": "pcma"}


@frozen
class Wire:
    """A format of sound on the wire: 16-bit little-endian PCM, or G.711."""

    type: AudioType = "audio/pcm"
    rate: int = PCM_RATE

    @property
    def law(self) -> Law | None:
        """Return the law of G.711; ``None``: it is PCM."""
        return None if self.type == "audio/pcm" else _LAWS[self.type]

    def milliseconds(self, size: int) -> float:
        """Return the length of ``size`` bytes."""
        return size * 1000 / (self.rate * (2 if self.law is None else 1))


def from_base64(text: str, where: str) -> bytes:
    """Return what a client has sent as base64.

    Raises:
        ApiError: 400, it is none.
    """
    try:
        return reader.from_base64(text)
    except ValueError:
        raise invalid(f"{where}: is not base64", where, "invalid_value") from None


class InputAudio:
    """Decodes the sound of one client."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self._odd = b""
        self._begin()

    def _begin(self) -> None:
        self._stream = soxr.ResampleStream(self.wire.rate, INPUT_RATE, 1, dtype="float32")

    def write(self, data: bytes) -> Samples:
        """Return the samples that are ready. Half a sample waits for its other half."""
        if self.wire.law is None:
            data = self._odd + data
            whole = len(data) - len(data) % 2
            self._odd = data[whole:]
            samples: npt.NDArray[np.int16] = np.frombuffer(data[:whole], "<i2")
        else:
            samples = from_law(data, self.wire.law)
        made: Samples = self._stream.resample_chunk(samples.astype(np.float32) / 32768.0)
        return made

    def flush(self) -> Samples:
        """Return what the filter holds back, and begin anew."""
        rest: Samples = self._stream.resample_chunk(np.zeros(0, np.float32), last=True)
        self._odd = b""
        self._begin()
        return rest


def output_audio(wire: Wire, rate: int, speed: float = 1.0) -> Encoder:
    """Return the encoder of the speech of one reply.

    Args:
        rate: of the samples that come.
        speed: 0.25 to 1.5; the pitch stays.
    """
    return encoder(wire.law or "pcm", rate, live=True, speed=speed, target=wire.rate)


def wav(samples: Samples) -> bytes:
    """Return a file of samples at :data:`INPUT_RATE`, which is how recordings are kept and given to the pipeline."""
    data = pcm16(samples)
    return wav_header(INPUT_RATE, len(data)) + data


def from_wav(data: bytes, wire: Wire) -> bytes:
    """Return a recording that is kept in the format of the wire."""
    samples = np.frombuffer(data[len(wav_header(INPUT_RATE, 0)) :], "<i2").astype(np.float32) / 32768.0
    out = output_audio(wire, INPUT_RATE)
    return out.write(samples) + out.finish()
