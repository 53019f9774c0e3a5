"""The platform of a machine: its driver, or the variable."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from omni_cli.deploy import platforms
from omni_cli.deploy.platforms import PLATFORMS, platform
from omni_core.errors import ConfigError


@pytest.mark.parametrize(
    ("gpus", "devices", "system", "expected"),
    [
        ([80], (), "linux", "cuda"),
        (None, ("/dev/kfd",), "linux", "rocm"),
        ([], ("/dev/davinci_manager",), "linux", "npu"),
        ([], (), "linux", "cpu"),
        ([], (), "darwin", "mps"),
    ],
)
def test_the_driver_tells(
    monkeypatch: pytest.MonkeyPatch, gpus: list[int] | None, devices: tuple[str, ...], system: str, expected: str
) -> None:
    def no_library(name: str) -> None:
        raise OSError(name)

    monkeypatch.delenv("OMNI_PLATFORM", raising=False)
    monkeypatch.setattr(platforms, "detect", lambda: gpus)
    monkeypatch.setattr(Path, "exists", lambda path: str(path) in devices)
    monkeypatch.setattr(platforms.ctypes, "CDLL", no_library)
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platforms.os, "uname", lambda: type("Machine", (), {"machine": "arm64"}))
    assert platform() == expected
    if system == "linux" and not gpus and not devices:
        monkeypatch.setattr(platforms.ctypes, "CDLL", lambda name: name)
        assert platform() == "xpu"


def test_the_variable_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PLATFORMS:
        monkeypatch.setenv("OMNI_PLATFORM", name)
        assert platform() == name
    monkeypatch.setenv("OMNI_PLATFORM", "cudo")
    with pytest.raises(ConfigError, match="OMNI_PLATFORM=cudo: no such platform; did you mean 'cuda'"):
        platform()
