"""Pipelines that do one thing: they draw, only hear, or only speak."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
from image_stages import drawing_pipeline
from omni_serve_clients import running_server
from page_driving import DONE, WIDE, check_accessible, needs_browser, send, write_turn

from omni_core import AsyncPipe, open_async
from omni_serve import Settings, create_app

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page, Route

pytestmark = [pytest.mark.asyncio(loop_scope="session"), needs_browser]


@pytest_asyncio.fixture(loop_scope="session")
async def studio(browser: Browser, pipe: AsyncPipe) -> AsyncIterator[Page]:
    """The page of a pipeline that draws; ``pipe`` has made its stages importable."""
    async with open_async(drawing_pipeline()) as drawing, running_server(create_app(drawing, Settings())) as address:
        page = await browser.new_page(viewport={"width": 390, "height": 844})
        page.set_default_timeout(60_000)
        found: list[str] = []
        page.on("console", lambda message: found.append(message.text))
        page.on("pageerror", lambda error: found.append(str(error)))
        await page.goto(f"http://{address}/")
        await page.wait_for_selector("#state.ready")
        yield page
        await page.close()
        assert [each for each in found if "status of 400" not in each] == []  # Chromium logs an answer that refuses


SHADES = """() => {
    window.shades = [];
    new MutationObserver(async () => {
        const image = document.querySelector(".assistant:last-child img");
        if (!image?.src || image.src === window.shades.at(-1)) return;
        window.shades.push(image.src);
    }).observe(document.getElementById("messages"), { subtree: true, childList: true, attributes: true });
}"""
SHADE = """(image) => {
    const canvas = document.createElement("canvas");
    canvas.getContext("2d").drawImage(image, 0, 0);
    return [...canvas.getContext("2d").getImageData(3, 3, 1, 1).data.slice(0, 3)];
}"""


async def test_a_picture_is_shown_with_its_previews_and_edited(studio: Page) -> None:
    assert "Describe a picture" in await studio.inner_text("#empty")
    assert not await studio.is_visible("#speak")

    async def seeded(route: Route) -> None:
        assert route.request.post_data_json["partial_images"] == 3
        await route.continue_(post_data={**route.request.post_data_json, "seed": 80})

    await studio.route("**/v1/images/generations", seeded)
    await studio.evaluate(SHADES)
    await send(studio, "grey")
    await studio.wait_for_selector(DONE)
    assert await studio.inner_text(".assistant .note") == "32 x 32, seed 80"
    assert await studio.eval_on_selector(".assistant img", SHADE) == [80, 80, 80]
    assert len(await studio.evaluate("window.shades")) == 4, "three previews, and the picture"
    assert await studio.evaluate(WIDE) <= 0

    await studio.click(".assistant button:has-text('Edit')")
    await studio.wait_for_selector(".attachment img")
    await send(studio, "darker")
    await studio.wait_for_function("() => document.querySelectorAll('.assistant:not(.running) .toolbar').length === 2")
    assert await studio.eval_on_selector(".assistant:last-child img", SHADE) == [40, 40, 40]
    await send(studio, "refuse")
    await studio.wait_for_selector(".assistant.failed")
    assert "messages: refused" in await studio.inner_text(".assistant.failed .error")


async def panel(browser: Browser, address: str, **other: object) -> Page:
    """The page as if the pipeline had other capabilities."""
    page = await browser.new_page()
    page.set_default_timeout(60_000)

    async def declared(route: Route) -> None:
        answer = await route.fetch()
        told = await answer.json()
        told["data"][0]["capabilities"] |= other
        await route.fulfill(response=answer, json=told)

    await page.route("**/v1/models", declared)
    await page.goto(address)
    await page.wait_for_selector("#state.ready")
    return page


async def test_a_pipeline_that_only_hears(browser: Browser, address: str, tmp_path: Path) -> None:
    language = [{"name": "language", "type": "string", "help": "", "choices": ["de", "en"]}]
    only = {"inputs": ["audio"], "outputs": ["text"], "transcription": "direct", "parameters": {"writer": language}}
    page = await panel(browser, address, **only)
    assert not await page.is_visible("#text")
    assert not await page.is_visible("#talk")
    write_turn(tmp_path / "spoken.wav")
    await page.set_input_files("#file", tmp_path / "spoken.wav")
    await page.select_option("#set-language", "de")
    await check_accessible(page)
    async with page.expect_request("**/v1/audio/transcriptions") as asked:
        await page.click("#send")
    assert 'name="language"\r\n\r\nde\r\n' in (await asked.value).post_data_buffer.decode("latin-1")
    await page.wait_for_selector(".assistant .toolbar")
    assert "audio:" in await page.inner_text(".assistant .words")

    times = [{"name": "timestamps", "type": "string", "help": "", "choices": ["none", "segment", "word"]}]
    await page.route("**/v1/models", lambda route: route.abort())
    await page.close()
    page = await panel(browser, address, **(only | {"parameters": {"writer": times}}))
    segments = [{"start": 0.0, "end": 1.5, "text": " One."}, {"start": 61.25, "end": 62.0, "text": " Two."}]
    await page.route(
        "**/v1/audio/transcriptions", lambda route: route.fulfill(json={"text": "One. Two.", "segments": segments})
    )
    await page.set_input_files("#file", tmp_path / "spoken.wav")
    await page.click("#send")
    await page.wait_for_selector(".timed")
    assert (await page.inner_text(".timed")).split() == ["0:00", "One.", "1:01", "Two."]
    async with page.expect_download() as started:
        await page.click("button:has-text('Subtitles')")
    made = await asyncio.to_thread(Path(await (await started.value).path()).read_text)
    assert made == "1\n00:00:00,000 --> 00:00:01,500\nOne.\n\n2\n00:01:01,250 --> 00:01:02,000\nTwo.\n"
    await page.close()


async def test_a_pipeline_that_only_speaks(browser: Browser, address: str) -> None:
    page = await panel(browser, address, inputs=["text"], outputs=["audio"], speech="direct", transcription=None)
    assert not await page.is_visible("#talk")
    await page.select_option("#set-voice", "high")
    await page.fill("#set-speed", "2")
    await check_accessible(page)
    async with page.expect_request("**/v1/audio/speech") as asked:
        await send(page, "one two")
    body = (await asked.value).post_data_json
    assert (body["input"], body["voice"], body["speed"]) == ("one two", "high", 2)
    await page.wait_for_selector(".assistant audio")
    assert await page.evaluate("document.querySelector('.assistant audio').duration") == pytest.approx(0.1, abs=0.02)
    await page.close()
