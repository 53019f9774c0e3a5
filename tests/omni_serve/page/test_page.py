"""The page in headless Chromium: it sends and stops, text and sound arrive, the pipeline is drawn, and nothing is logged or too wide.

``nox -s site`` finds or installs the browser and axe-core; by itself: set ``OMNI_CHROMIUM`` to the executable of a Chromium, and
``OMNI_AXE`` to axe.min.js, without which nothing is said about accessibility.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from omni_serve_clients import running_server
from page_driving import DONE, WIDE, check_accessible, needs_browser, send

from omni_core import AsyncPipe
from omni_serve import Settings, create_app

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page, Route

pytestmark = [pytest.mark.asyncio(loop_scope="session"), needs_browser]

SECRET = "a long secret of mine"


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
    await page.click("#speak")
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
    await page.click("#speak")
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
    assert await page.inner_text("#notice") == "a.txt: this pipeline takes pictures, sound and video, no other files."


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
        await check_accessible(page)
        await page.click("#show-pipeline")
        await page.click("#show-sidebar")
    await check_accessible(page)
    if width == 390:
        await page.click("#backdrop", position={"x": 380, "y": 400})
    await page.click("#settings")
    await page.click("#settings-more summary")
    await check_accessible(page)
    assert await page.evaluate(WIDE) <= 0
    await page.keyboard.press("Escape")
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


async def test_a_server_that_is_away_is_told_in_words(browser: Browser, address: str) -> None:
    page = await browser.new_page()
    page.set_default_timeout(60_000)
    await page.goto(address)
    await page.wait_for_selector("#state.ready")
    await page.route("**/v1/**", lambda route: route.abort())
    await send(page, "still here")
    await page.wait_for_selector(".assistant.failed .error")
    assert await page.inner_text(".error") == "The server does not answer. Is it still running?"
    assert "Trying again in" in await page.inner_text("#offline")
    assert await page.evaluate("document.body.classList.contains('away')")
    await check_accessible(page)
    await page.unroute("**/v1/**")
    await page.click("#try-now")
    await page.wait_for_selector("#state.ready")
    assert not await page.is_visible("#offline")
    await page.click(".failed button:has-text('Try again')")
    await page.wait_for_selector(".assistant:not(.failed) .words:has-text('still here')")
    await page.close()


MOVED = """() => {
    window.moved = 0;
    new PerformanceObserver((list) => list.getEntries().forEach((each) => (window.moved += each.value)))
        .observe({ type: "layout-shift", buffered: true });
}"""


async def test_nothing_moves_while_it_is_loaded(page: Page) -> None:
    await page.add_init_script(f"({MOVED})()")
    await page.reload()
    await page.wait_for_selector("#graph svg")
    await page.wait_for_function("document.body.classList.contains('drawn')")
    await page.wait_for_timeout(200)
    assert await page.evaluate("window.moved") == 0


DROPPED = """([kind, name, type, target]) => {
    const data = new DataTransfer();
    data.items.add(new File([new Uint8Array([1, 2, 3])], name, { type }));
    const given = { bubbles: true, cancelable: true };
    const fire = (one) => document.querySelector(target).dispatchEvent(one);
    if (kind === "paste") return fire(new ClipboardEvent("paste", { ...given, clipboardData: data }));
    fire(new DragEvent("dragenter", { ...given, dataTransfer: data }));
    const shown = !document.getElementById("drop").hidden;
    fire(new DragEvent("drop", { ...given, dataTransfer: data }));
    return [shown, document.getElementById("drop").hidden];
}"""


async def test_files_are_dropped_and_pasted(page: Page) -> None:
    assert await page.evaluate(DROPPED, ["drop", "a.mp4", "video/mp4", "#messages"]) == [True, True]
    await page.wait_for_selector(".attachment video")
    await page.evaluate(DROPPED, ["paste", "b.wav", "audio/wav", "#text"])
    await page.wait_for_selector(".attachment audio")
    await page.click("[title='Remove a.mp4']")
    assert await page.locator(".attachment").count() == 1
