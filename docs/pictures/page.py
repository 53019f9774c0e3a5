"""Takes docs/pictures/page-light.png and page-dark.png of the page of ``omni serve demo``: ``python docs/pictures/page.py``.

Needs omni-serve, omni-demo, Pillow, playwright, and the path of a Chromium in ``OMNI_CHROMIUM``.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

SIZE = {"width": 1400, "height": 900}
COLORS = 256
QUIET = [
    "--no-sandbox",
    "--headless=shell",
    "--disable-background-networking",
    "--autoplay-policy=no-user-gesture-required",
]


@contextmanager
def served() -> Iterator[str]:
    """Run ``omni serve demo`` on a free port; yield the address of its page."""
    command = [sys.executable, "-m", "omni_core.cli", "serve", "demo", "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        yield next(found[0] for line in process.stderr if (found := re.findall(r"Talk to it at (\S+)", line)))
    finally:
        process.terminate()
        process.wait()


def picture_of(color: str) -> bytes:
    """Return a picture that the demo knows."""
    made = io.BytesIO()
    Image.new("RGB", (160, 90), color).save(made, "PNG")
    return made.getvalue()


def converse(page: Page) -> None:
    """Ask questions in three conversations, and wait until the last answer is spoken."""
    questions = (
        ("Tell me a joke.", None),
        ("Who are you?", None),
        ("Say hello.", None),
        ("What colour is this?", "#d01c1f"),
    )
    for number, (text, color) in enumerate((*questions, ("What is your name?", None))):
        if number in (1, 2):
            page.click("#new-chat")
        if color is not None:
            page.set_input_files("#file", {"name": "it.png", "mimeType": "image/png", "buffer": picture_of(color)})
            page.wait_for_selector(".attachment")
        page.fill("#text", text)
        page.wait_for_selector("#send:not([hidden]):not([disabled])")
        page.press("#text", "Enter")
        page.wait_for_selector("#stop:not([hidden])")
        page.wait_for_selector("#send:not([hidden])")
    page.mouse.move(0, 0)
    page.wait_for_timeout(500)


def main() -> None:
    """Take both pictures."""
    with served() as address, sync_playwright() as started:
        browser = started.chromium.launch(executable_path=os.environ["OMNI_CHROMIUM"], args=QUIET)
        for scheme in ("light", "dark"):
            page = browser.new_page(viewport=SIZE, color_scheme=scheme)  # type: ignore[arg-type]
            page.goto(address)
            page.wait_for_selector("#state.ready")
            converse(page)
            taken = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
            drawn = taken.quantize(COLORS, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
            drawn.save(Path(__file__).with_name(f"page-{scheme}.png"), optimize=True)
            page.close()
        browser.close()


if __name__ == "__main__":
    main()
