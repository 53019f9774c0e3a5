"""Loudspeaker and microphone, with a module in place of sounddevice whose callbacks the tests call."""

from __future__ import annotations

import asyncio
import sys
import wave
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from omni_cli.chat import session as session_module
from omni_cli.sound_device import RECORDING_RATE, Player, Recorder, SoundDeviceError, open_sounddevice


class PortAudioError(Exception):
    """As sounddevice has it."""


class Stream:
    """A stream of PortAudio that is driven by hand."""

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.state: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return lambda: self.state.append(name)

    def play(self, frames: int) -> list[float]:
        """Return what the device would play next."""
        out = np.full((frames, 1), 9.0, np.float32)
        self.options["callback"](out, frames, None, None)
        return [float(value) for value in out[:, 0]]


def fake(devices: bool = True) -> Any:
    """A module like sounddevice; its streams are in ``streams``."""
    module = SimpleNamespace(streams=[], PortAudioError=PortAudioError)

    def made(**options: Any) -> Stream:
        module.streams.append(Stream(**options))
        return module.streams[-1]

    def query_devices(kind: str) -> dict[str, str]:
        if not devices:
            raise PortAudioError("Error querying device -1")
        return {"name": kind}

    module.OutputStream = module.InputStream = made
    module.query_devices = query_devices
    return module


async def test_samples_are_played_in_order_across_pieces() -> None:
    module = fake()
    player = Player(module)
    player.write(np.array([0.1, 0.2, 0.3], np.float32), 24_000)
    player.write(np.array([0.4], np.float32), 24_000)
    (stream,) = module.streams
    assert stream.options["samplerate"] == 24_000
    assert stream.play(2) == pytest.approx([0.1, 0.2])
    end = asyncio.ensure_future(player.finish())
    await asyncio.sleep(0)
    assert not end.done()
    assert stream.play(4) == pytest.approx([0.3, 0.4, 0, 0])
    await end
    assert stream.state == ["start", "stop", "abort", "close"]


async def test_a_player_that_is_closed_is_silent_at_once() -> None:
    module = fake()
    player = Player(module)
    await player.finish()  # nothing was played
    player.write(np.ones(100, np.float32), 24_000)
    player.close()
    player.close()
    assert module.streams[0].play(2) == [0, 0]
    assert module.streams[0].state == ["start", "abort", "close"]


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    with pytest.raises(SoundDeviceError, match=r"--play needs sounddevice: pip install 'omni-commands\[audio\]'"):
        open_sounddevice("--play", "output")
    monkeypatch.setitem(sys.modules, "sounddevice", fake(devices=False))
    with pytest.raises(SoundDeviceError, match=r"no output device for sound .*--out FILE"):
        open_sounddevice("--play", "output")
    with pytest.raises(SoundDeviceError, match=r"no input device for sound .*/audio FILE"):
        open_sounddevice("--mic", "input")
    monkeypatch.setitem(sys.modules, "sounddevice", fake())
    assert open_sounddevice("--play", "output").query_devices(kind="output")


def test_a_recording_ends_at_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omni_cli.sound_device.LONGEST_RECORDING", 1)
    module = fake()
    recorder = Recorder(module)
    for _ in range(3):
        module.streams[0].options["callback"](np.ones((RECORDING_RATE, 1), np.float32), RECORDING_RATE, None, None)
    assert recorder.seconds == 1
    assert [piece.shape for piece in recorder.stop()] == [(RECORDING_RATE,)]


@pytest.fixture
def microphone(monkeypatch: pytest.MonkeyPatch) -> Any:
    module = fake()
    monkeypatch.setitem(sys.modules, "sounddevice", module)

    async def enter_pressed(message: Any) -> None:
        samples = np.full((800, 1), 0.25, np.float32)
        module.streams[-1].options["callback"](samples, 800, None, None)
        samples[:] = 0  # PortAudio uses its buffer again
        assert message().startswith("recording 0.1 s")

    monkeypatch.setattr(session_module, "enter_pressed", enter_pressed)
    return module


async def test_a_turn_is_recorded_and_sent(microphone: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from omni_cli.chat.screen import Screen
    from omni_cli.request.generation import Generation

    sent: list[tuple[str, int, int]] = []

    async def receive(pipe: Any, request: Any, *rest: Any) -> Any:
        (part,) = request.inputs["messages"][-1]["content"]
        with wave.open(part["path"]) as file:
            sent.append((part["type"], file.getframerate(), max(file.readframes(800))))
        folders.append(Path(part["path"]).parent)
        return SimpleNamespace(text="heard", audio=None, outputs={}, notices=[])

    folders: list[Path] = []
    monkeypatch.setattr(session_module, "receive_reply", receive)
    chat = session_module.Session(SimpleNamespace(interface=None), None, Generation(), Screen(), mic=True)
    lines = iter(["", "/mic", "/quit"])

    class Lines:
        async def read(self) -> str:
            return next(lines)

    await chat.run(Lines())
    assert [each[:2] for each in sent] == [("audio", RECORDING_RATE)] * 2
    assert sent[0][2] > 0
    assert not folders[0].exists(), "recordings end with the chat"
