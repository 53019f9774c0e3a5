"""Drives the page in a browser: ``OMNI_CHROMIUM`` names the executable of a Chromium, ``OMNI_AXE`` axe.min.js."""

from __future__ import annotations

import os
import wave
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

if TYPE_CHECKING:
    from playwright.async_api import Page

AXE = os.environ.get("OMNI_AXE")
CHROMIUM = os.environ.get("OMNI_CHROMIUM")
WIDE = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
DONE = "#send:not([hidden])"

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="OMNI_CHROMIUM names no browser; `nox -s site` has one")


async def check_accessible(page: Page) -> None:
    """No violation of axe's rules in what is shown now."""
    if AXE is None:
        return
    if not await page.evaluate("Boolean(window.axe)"):
        await page.evaluate(Path(AXE).read_text())
    run = "axe.run().then(({ violations }) => violations.map(each => [each.id, each.nodes.map(node => node.html)]))"
    assert await page.evaluate(run) == []


async def send(page: Page, text: str) -> None:
    await page.fill("#text", text)
    await page.press("#text", "Enter")


def write_turn(path: Path) -> None:
    """Write what the fake microphone repeats: 0.6 s that are as loud and as rich as a voice, then a pause."""
    rate = 48_000
    time = np.arange(int(0.6 * rate)) / rate
    phase = 2 * np.pi * (150 * time + 3 * np.sin(2 * np.pi * 4 * time))
    voice = sum(np.sin(number * phase) / number for number in range(1, 20)) * (0.6 + 0.4 * np.sin(2 * np.pi * 7 * time))
    samples = np.concatenate([np.zeros(rate // 5), 0.4 * voice, np.zeros(rate)])
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, rate, 0, "NONE", ""))
        file.writeframes((np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())
