"""The page in headless Chromium: it sends and stops, text and sound arrive, the microphone is recorded, and nothing is logged or too wide.

``nox -s site`` finds or installs the browser; by itself: set ``OMNI_CHROMIUM`` to the executable of a Chromium.
"""

from __future__ import annotations

import asyncio
import os
import wave
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
from image_stages import drawing_pipeline
from omni_serve_clients import running_server

from omni_core import AsyncPipe, open_async
from omni_serve import Settings, create_app

pytest.importorskip("playwright", reason="playwright is not installed; `nox -s site` has it")

from playwright.async_api import Browser, Page, Route, async_playwright

CHROMIUM = os.environ.get("OMNI_CHROMIUM")
pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.skipif(CHROMIUM is None, reason="OMNI_CHROMIUM names no browser; `nox -s site` has one"),
]

SECRET = "a long secret of mine"
QUIET = ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"]
MEDIA = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
WIDE = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
DONE = "#send:not([hidden])"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def browser(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Browser]:
    spoken = tmp_path_factory.mktemp("microphone") / "spoken.wav"
    _write_turn(spoken)
    async with async_playwright() as started:
        heard = f"--use-file-for-fake-audio-capture={spoken}"
        arguments = ["--no-sandbox", "--disable-gpu", "--headless=shell", *QUIET, *MEDIA, heard]
        browser = await started.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        await browser.close()


def _write_turn(path: Path) -> None:
    """Write what the fake microphone repeats: 0.6 s that are as loud and as rich as a voice, then a pause."""
    rate = 48_000
    time = np.arange(int(0.6 * rate)) / rate
    phase = 2 * np.pi * (150 * time + 3 * np.sin(2 * np.pi * 4 * time))
    voice = sum(np.sin(number * phase) / number for number in range(1, 20)) * (0.6 + 0.4 * np.sin(2 * np.pi * 7 * time))
    samples = np.concatenate([np.zeros(rate // 5), 0.4 * voice, np.zeros(rate)])
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, rate, 0, "NONE", ""))
        file.writeframes((np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())


@pytest_asyncio.fixture(scope="module", loop_scope="session")
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


async def send(page: Page, text: str) -> None:
    await page.fill("#text", text)
    await page.press("#text", "Enter")


async def test_text_and_sound_arrive(page: Page) -> None:
    await send(page, "one two three four")
    await page.wait_for_selector(DONE)
    assert await page.inner_text(".assistant .words") == "one two three four"
    # Four tones of 0.1 s and some samples, which came at once: no underrun.
    assert await page.inner_text("#played") == "0.4 s"
    assert await page.inner_text("#underruns") == "0"
    assert "total" in await page.inner_text(".request .note")
    for kind in ("wait", "text", "audio", "heard"):
        assert await page.evaluate(f"parseFloat(document.querySelector('.bar.{kind}').style.width) > 0"), kind


async def test_the_history_is_sent(page: Page) -> None:
    await send(page, "one")
    await page.wait_for_selector(DONE)
    await page.uncheck("#speak")
    await send(page, "history")
    await page.wait_for_function("() => document.querySelectorAll('.assistant:not(.running)').length === 2")
    assert await page.inner_text(".assistant:last-child .words") == "user=one assistant=one"


async def test_late_sound_is_counted(page: Page, pipe: AsyncPipe, address: str) -> None:
    async def slow(route: Route) -> None:
        body = {**route.request.post_data_json, "pause": 0.4}
        await route.continue_(post_data=body)

    await page.route("**/v1/chat/completions", slow)
    await send(page, "one two three")
    await page.wait_for_function("() => Number(document.getElementById('underruns').textContent) >= 1")
    await page.wait_for_selector(DONE)


async def test_a_new_chat_begins_without_the_answer_that_it_stopped(page: Page) -> None:
    async def slow(route: Route) -> None:
        await route.continue_(post_data={**route.request.post_data_json, "pause": 0.1})

    await page.route("**/v1/chat/completions", slow)
    await send(page, "word " * 100)
    await page.wait_for_function("() => document.querySelector('.assistant .words')?.textContent")
    await page.click("#new-chat")
    await page.wait_for_selector(DONE)
    await page.unroute("**/v1/chat/completions")
    await page.uncheck("#speak")
    await send(page, "history")
    await page.wait_for_selector(".assistant:not(.running)")
    assert await page.inner_text("#messages") == "history"  # the answer names the earlier messages: none


@pytest.mark.parametrize("how", ["Escape", "click"])
async def test_stop_aborts_the_request(page: Page, pipe: AsyncPipe, how: str) -> None:
    async def slow(route: Route) -> None:
        await route.continue_(post_data={**route.request.post_data_json, "pause": 0.1})

    before = (await pipe.statistics())["coordinator"]["requests"]["aborted"]
    await page.route("**/v1/chat/completions", slow)
    await send(page, "word " * 100)
    await page.wait_for_function("() => document.querySelector('.assistant .words')?.textContent")
    await (page.keyboard.press("Escape") if how == "Escape" else page.click("#stop"))
    await page.wait_for_selector(DONE)
    assert await page.inner_text(".assistant .note") == "stopped"
    async with asyncio.timeout(60):
        while (await pipe.statistics())["coordinator"]["requests"]["aborted"] == before:
            await asyncio.sleep(0.02)


async def test_a_recording_is_sent(page: Page) -> None:
    await page.click("#record")
    await page.wait_for_timeout(500)
    await page.click("#record")
    await page.wait_for_selector(".attachment audio")
    await page.click("#send")
    await page.wait_for_selector(DONE)
    kind, size = (await page.inner_text(".assistant .words")).split(":")
    assert kind == "audio"
    assert 10_000 < int(size) < 20_000_000


async def test_files_are_attached_and_others_refused(page: Page) -> None:
    pixel = bytes.fromhex(
        "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d4944415478da63fcffff3f030005fe02fea72d9d6d"
        "0000000049454e44ae426082"
    )
    await page.set_input_files("#file", [{"name": "a.png", "mimeType": "image/png", "buffer": pixel}])
    await page.wait_for_selector(".attachment img")
    await send(page, "look")
    await page.wait_for_selector(DONE)
    assert await page.inner_text(".assistant .words") == f"look image:{len(pixel)}"
    await page.set_input_files("#file", [{"name": "a.txt", "mimeType": "text/plain", "buffer": b"x"}])
    assert "is no image" in await page.inner_text(".assistant.failed .error")


async def test_a_conversation_by_voice(page: Page) -> None:
    # The fake microphone repeats a turn; the answer names what the pipeline was sent.
    await page.click("#talk")
    await page.wait_for_function("() => document.querySelector('.assistant .words')?.textContent.startsWith('audio:')")
    await page.wait_for_function("() => parseFloat(document.getElementById('played').textContent) > 0")
    await page.click("#talk")
    await page.wait_for_selector("#talk[aria-pressed=false]")


INTERRUPTED = """async (ended) => {
    const { Talk } = await import("/page/talk.js");
    const { Messages } = await import("/page/messages.js");
    const calls = [];
    const note = (name) => () => calls.push(name);
    const player = { status: { done: false, played: 0.5 } };
    for (const name of ["begin", "write", "end", "clear"]) player[name] = note(name);
    const messages = new Messages(document.getElementById("messages"));
    const talk = new Talk({ player, messages, waterfall: {} });
    talk.send = (event) => calls.push([event.type, event.item_id, event.audio_end_ms]);
    const sound = { type: "response.output_audio.delta", item_id: "answer", delta: "AAA=" };
    talk.take(sound);
    if (ended) talk.take({ type: "response.done", response: { status: "completed" } });
    talk.take({ type: "input_audio_buffer.speech_started", item_id: "question" });
    talk.take(sound);
    return calls;
}"""


@pytest.mark.parametrize("ended", [False, True])
async def test_speaking_interrupts_the_answer(page: Page, ended: bool) -> None:
    """Also one that is complete, and still played."""
    told = ["conversation.item.truncate", "answer", 500]
    expected = ["begin", "write", *(["end"] if ended else []), "clear", told]  # and nothing of what was on its way
    assert await page.evaluate(INTERRUPTED, ended) == expected
    assert await page.inner_text(".assistant .note") == "interrupted"


async def test_the_graph_is_drawn_with_numbers(page: Page) -> None:
    await page.wait_for_selector("#graph .stage")
    assert await page.locator("#graph .stage").count() == 3
    assert await page.locator("#graph .edge").count() == 2
    before = await page.inner_text("#requests")
    await send(page, "one")
    await page.wait_for_selector(DONE)
    await page.wait_for_function("before => document.getElementById('requests').textContent !== before", arg=before)
    assert "queued" in (await page.text_content("#graph") or "")


async def test_a_stage_that_restarts_is_named(page: Page) -> None:
    async def restarting(route: Route) -> None:
        answer = await route.fetch()
        told = await answer.json()
        told["stages"][-1]["state"] = "restarting"
        await route.fulfill(response=answer, json=told)

    await page.route("**/v1/omni/pipeline", restarting)
    await page.wait_for_selector("#state:not(.ready):has-text('speak: restarting')")
    await page.unroute("**/v1/omni/pipeline")
    await page.wait_for_selector("#state.ready")


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
    assert not await studio.is_visible("#speak-label")

    async def seeded(route: Route) -> None:
        assert route.request.post_data_json["partial_images"] == 3
        await route.continue_(post_data={**route.request.post_data_json, "seed": 80})

    await studio.route("**/v1/images/generations", seeded)
    await studio.evaluate(SHADES)
    await send(studio, "grey")
    await studio.wait_for_selector(DONE)
    assert await studio.inner_text(".assistant .note") == "32 x 32, seed 80"
    assert await studio.eval_on_selector(".assistant img", SHADE) == [80, 80, 80]
    assert len(await studio.evaluate("window.shades")) == 2, "the previews, which are equal, and the picture"
    assert await studio.evaluate(WIDE) <= 0

    await studio.click(".assistant button:has-text('Edit')")
    await studio.wait_for_selector(".attachment img")
    await send(studio, "darker")
    await studio.wait_for_function("() => document.querySelectorAll('.assistant:not(.running) button').length === 2")
    assert await studio.eval_on_selector(".assistant:last-child img", SHADE) == [40, 40, 40]
    await send(studio, "refuse")
    await studio.wait_for_selector(".assistant.failed")
    assert "messages: refused" in await studio.inner_text(".assistant.failed .error")


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_it_fits_and_follows_the_theme(page: Page, width: int, scheme: str) -> None:
    await page.emulate_media(color_scheme=scheme)
    await page.set_viewport_size({"width": width, "height": 844})
    await send(page, "a-very-long-word-without-a-place-to-break-" * 5)
    await page.wait_for_selector(DONE)
    assert await page.evaluate(WIDE) <= 0
    shade = "() => getComputedStyle(document.body).backgroundColor.match(/\\d+/g).reduce((a, b) => a + Number(b), 0)"
    assert (await page.evaluate(shade) < 200) == (scheme == "dark")
    if width == 390:
        await page.click("#show-pipeline")
        assert await page.is_visible("#graph svg")
        assert await page.evaluate(WIDE) <= 0
    await page.click("#theme")
    assert (await page.evaluate(shade) < 200) == (scheme == "light")


async def test_a_phone_is_ready_although_it_does_not_draw_the_pipeline(browser: Browser, address: str) -> None:
    page = await browser.new_page(viewport={"width": 390, "height": 780})
    page.set_default_timeout(60_000)
    await page.goto(address)
    await page.wait_for_selector("#state.ready")
    assert not await page.is_visible("#graph")
    await page.close()


async def test_the_key_is_asked_for_and_kept_in_the_tab(browser: Browser, pipe: AsyncPipe) -> None:
    async with running_server(create_app(pipe, Settings(keys={"mine": SECRET}))) as address:
        page = await browser.new_page()
        page.set_default_timeout(60_000)
        await page.goto(f"http://{address}/")
        await page.wait_for_selector("#key-dialog[open]")
        await page.keyboard.press("Escape")  # without a key there is nothing to see
        for given, told in (("wrong", "does not know"), (SECRET, "")):
            await page.wait_for_selector("#key-dialog[open]")
            await page.fill("#key", given)
            await page.press("#key", "Enter")
            if told:
                await page.wait_for_selector(f"#key-problem:has-text('{told}')")
        await page.wait_for_selector("#state.ready")
        await send(page, "one")
        await page.wait_for_selector(DONE)
        assert await page.inner_text(".assistant .words") == "one"
        await page.reload()
        await page.wait_for_selector("#state.ready")
        await page.close()
