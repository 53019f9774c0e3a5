"""Loudspeaker and microphone, through sounddevice (PortAudio), which ``omni-commands[audio]`` installs."""

from __future__ import annotations

import asyncio
import importlib
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from omni_core.api import OmniError

RECORDING_RATE = 16_000
"""Hz of a recording: what models of speech hear."""

LONGEST_RECORDING = 300
"""Seconds after which a recording keeps nothing more."""


class SoundDeviceError(OmniError):
    """There is no device for sound here; the message says what is missing."""


def open_sounddevice(flag: str, kind: str) -> Any:
    """Return the module sounddevice, if this machine has a device of ``kind`` (``output`` or ``input``).

    Raises:
        SoundDeviceError: the package, PortAudio or the device is missing.
    """
    try:
        module = importlib.import_module("sounddevice")
    except ImportError:
        raise SoundDeviceError(f"{flag} needs sounddevice: pip install 'omni-commands[audio]'") from None
    except OSError as error:
        raise SoundDeviceError(f"{flag} needs PortAudio ({error}): apt-get install libportaudio2") from None
    try:
        module.query_devices(kind=kind)
    except (ValueError, module.PortAudioError) as error:
        instead = "; --out FILE saves the speech instead" if kind == "output" else "; /audio FILE sends a recording"
        raise SoundDeviceError(f"{flag}: this machine has no {kind} device for sound ({error}){instead}") from None
    return module


class Player:
    """Plays samples as they come. PortAudio's thread takes them from a queue; silence where there are none yet."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._lock = threading.Lock()
        self._pieces: deque[Any] = deque()
        self._stream: Any = None
        self._drained: Callable[[], object] | None = None

    def write(self, samples: Any, sample_rate: int) -> None:
        """Queue float32 samples, shape ``[n]``. The first call opens the device.

        Raises:
            SoundDeviceError: the device cannot play at this rate.
        """
        with self._lock:
            self._pieces.append(samples)
        if self._stream is None:
            try:
                self._stream = self._module.OutputStream(
                    samplerate=sample_rate, channels=1, dtype="float32", callback=self._fill
                )
                self._stream.start()
            except self._module.PortAudioError as error:
                raise SoundDeviceError(f"--play: the device does not play {sample_rate} Hz: {error}") from None

    async def finish(self) -> None:
        """Wait until everything has been played."""
        if self._stream is None:
            return
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        with self._lock:
            self._drained = lambda: loop.call_soon_threadsafe(done.set)
        await done.wait()
        self._stream.stop()  # plays what the device still holds
        self.close()

    def close(self) -> None:
        """Stop at once. Idempotent."""
        stream, self._stream = self._stream, None
        with self._lock:
            self._pieces.clear()
            self._drained = None
        if stream is not None:
            stream.abort()
            stream.close()

    def _fill(self, out: Any, frames: int, time: Any, status: Any) -> None:
        filled = 0
        with self._lock:
            while filled < frames and self._pieces:
                piece = self._pieces.popleft()
                part = piece[: frames - filled]
                out[filled : filled + len(part), 0] = part
                filled += len(part)
                if len(part) < len(piece):
                    self._pieces.appendleft(piece[len(part) :])
            out[filled:, 0] = 0
            if not self._pieces and self._drained is not None:
                drained, self._drained = self._drained, None
                drained()


class Recorder:
    """A recording of the microphone, begun when it is made. Raises ``SoundDeviceError`` where it cannot begin."""

    def __init__(self, module: Any) -> None:
        self._pieces: list[Any] = []
        self._frames = 0
        try:
            self._stream = module.InputStream(
                samplerate=RECORDING_RATE, channels=1, dtype="float32", callback=self._take
            )
            self._stream.start()
        except module.PortAudioError as error:
            raise SoundDeviceError(f"--mic: the device does not record {RECORDING_RATE} Hz: {error}") from None

    @property
    def seconds(self) -> float:
        """The length so far."""
        return self._frames / RECORDING_RATE

    def stop(self) -> list[Any]:
        """End the recording and return its pieces: float32 samples, shape ``[n]``. Idempotent."""
        self._stream.stop()
        self._stream.close()
        return self._pieces

    def _take(self, samples: Any, frames: int, time: Any, status: Any) -> None:
        if self.seconds < LONGEST_RECORDING:
            self._pieces.append(samples[:, 0].copy())
            self._frames += frames
