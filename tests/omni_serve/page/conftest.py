"""A Chromium with a microphone that repeats a turn, and the page in it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
from omni_serve_clients import running_server
from page_driving import CHROMIUM, write_turn

from omni_core import AsyncPipe
from omni_serve import Settings, create_app

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

QUIET = ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"]
MEDIA = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Browser]:
    playwright = pytest.importorskip("playwright.async_api", reason="playwright is not installed; `nox -s site` has it")
    spoken = tmp_path_factory.mktemp("microphone") / "spoken.wav"
    write_turn(spoken)
    async with playwright.async_playwright() as started:
        heard = f"--use-file-for-fake-audio-capture={spoken}"
        arguments = ["--no-sandbox", "--disable-gpu", "--headless=shell", *QUIET, *MEDIA, heard]
        browser = await started.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        await browser.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def address(pipe: AsyncPipe) -> AsyncIterator[str]:
    async with running_server(create_app(pipe, Settings())) as address:
        yield f"http://{address}/"


@pytest_asyncio.fixture(loop_scope="session")
async def page(browser: Browser, address: str) -> AsyncIterator[Page]:
    """The page, ready; at the end of a test nothing may have been logged or fetched from elsewhere."""
    context = await browser.new_context(viewport={"width": 1280, "height": 860}, permissions=["microphone"])
    page = await context.new_page()
    page.set_default_timeout(60_000)
    found: list[str] = []
    page.on("console", lambda message: found.append(message.text))
    page.on("pageerror", lambda error: found.append(str(error)))
    page.on(
        "request",
        lambda made: None if made.url.startswith((address, "data:", "blob:")) else found.append(made.url),
    )
    await page.goto(address)
    await page.wait_for_selector("#state.ready")
    yield page
    await context.close()
    assert found == []
