"""The page in headless Chromium: it sends and stops, text and sound arrive, the microphone is recorded, and nothing is logged or too wide.

``nox -s site`` finds or installs the browser and axe-core; by itself: set ``OMNI_CHROMIUM`` to the executable of a Chromium, and
``OMNI_AXE`` to axe.min.js, without which nothing is said about accessibility.
"""

from __future__ import annotations

import asyncio
import json
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

AXE = os.environ.get("OMNI_AXE")
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


async def test_a_conversation_by_voice(page: Page) -> None:
    # The fake microphone repeats a turn; the answer names what the pipeline was sent.
    await page.click("#big-talk")
    await page.wait_for_function("() => document.querySelector('.assistant .words')?.textContent.startsWith('audio:')")
    await page.wait_for_function("() => parseFloat(document.getElementById('played').textContent) > 0")
    level = "document.getElementById('talk-level')"
    drawn = f"{level}.getContext('2d').getImageData(0, 0, {level}.width, {level}.height).data.some((each) => each > 0)"
    assert await page.evaluate(drawn)
    await page.wait_for_selector(".user .said:has-text('Write down what is said. audio:')")  # the transcript
    await page.hover(".user")
    await page.wait_for_selector(".user [title=Play]")
    await check_accessible(page)
    await page.fill("#text", "typed words")
    await page.press("#text", "Enter")
    await page.wait_for_selector(".user:has-text('typed words') ~ .assistant .words:has-text('typed words')")
    await page.click("#talk")
    await page.wait_for_selector("#talk[aria-pressed=false]")
    assert not await page.is_visible("#talk-panel")


INTERRUPTED = """async (ended) => {
    const { Talk } = await import("/page/talk.js");
    const { Messages } = await import("/page/messages.js");
    const calls = [];
    const note = (name) => () => calls.push(name);
    const player = { status: { done: false, played: 0.5 } };
    for (const name of ["begin", "write", "end", "clear"]) player[name] = note(name);
    const messages = new Messages(document.getElementById("messages"), {});
    const chat = { turns: [], save() {} };
    const talk = new Talk({ player, messages, chat, waterfall: {}, state() {} });
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


MARKDOWN = """async (pieces) => {
    const { Markdown } = await import("/page/markdown.js");
    const place = document.createElement("div");
    const shown = new Markdown(place);
    const kept = [];
    for (const piece of pieces) {
        shown.add(piece);
        shown.show();
        kept.push(place.firstChild);
    }
    return [place.innerHTML, kept.at(-1) === kept.at(-2)];
}"""
TEXT = """*One* `two`

### Three

1. four
   - five

```py
six < 7
```

| a | b |
|---|--:|
| 8 | 9 |

[in](https://example.org/?a=1&b=2) [out](javascript:alert(1)) ![x](https://example.org/x.png) <b onclick="x">R&amp;D</b>"""


async def test_markdown_is_shown_and_html_is_text(page: Page) -> None:
    whole, _ = await page.evaluate(MARKDOWN, [TEXT])
    pieces, kept = await page.evaluate(MARKDOWN, [TEXT[at : at + 3] for at in range(0, len(TEXT), 3)])
    assert pieces == whole
    assert kept, "what does not change is not made again"
    for part in (
        "<p><em>One</em> <code>two</code></p>",
        '<h2 class="heading size3">Three</h2>',
        "<ol><li>four<ul><li>five</li></ul></li></ol>",
        "<code>six &lt; 7</code></pre>",
        '<td class="right">9</td>',
        '<a href="https://example.org/?a=1&amp;b=2" title="" target="_blank" rel="noopener noreferrer">in</a>',
        "<span>out</span>",
        '&lt;b onclick="x"&gt;R&amp;D&lt;/b&gt;',
    ):
        assert part in whole, part
    for part in ("javascript:", "<img", "<b "):
        assert part not in whole, part
    for much in ("> " * 20_000, "word " * 13_000):  # nested too deep, and too long: shown as it is
        shown, _ = await page.evaluate(MARKDOWN, [much, "end"])
        assert shown == f'<p class="plain">{much.replace(">", "&gt;")}end</p>'


async def test_what_can_be_done_with_an_answer(page: Page) -> None:
    await send(page, "one two")
    await page.wait_for_selector(DONE)
    tools = ".assistant .toolbar"
    await page.click(f"{tools} [title=Play]")
    await page.wait_for_selector(f"{tools} [title='Stop playing']")
    await page.wait_for_selector(f"{tools} [title=Play]")  # after 0.2 s
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await page.focus(f"{tools} [title=Play]")  # by keyboard
    await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    await page.wait_for_selector(f"{tools} [title=Done]")
    assert await page.evaluate("navigator.clipboard.readText()") == "one two"
    async with page.expect_download() as started:
        await page.click(f"{tools} [title=Download]")
    made = await started.value
    assert made.suggested_filename == "one-two.wav"
    with wave.open(str(await made.path())) as file:
        assert (file.getframerate(), file.getnframes()) == (24_000, 2 * 2403)

    await page.click(f"{tools} [title='Try again']")
    await page.wait_for_selector(f".message:last-child{tools}, .assistant:last-child .toolbar")
    assert await page.locator(".assistant").count() == 1
    await send(page, "three")
    await page.wait_for_function("() => document.querySelectorAll('.assistant .toolbar').length === 2")
    await page.hover(".user >> nth=0")
    await page.click(".user .toolbar [title=Edit] >> nth=0")
    assert await page.input_value("#text") == "one two"
    assert await page.locator(".replaced").count() == 4
    await check_accessible(page)
    await page.keyboard.press("Escape")
    assert await page.locator(".replaced").count() == 0
    assert await page.input_value("#text") == ""
    await page.focus(".user .toolbar [title=Edit] >> nth=0")
    await page.keyboard.press("Enter")
    await send(page, "history")
    await page.wait_for_function("() => document.querySelectorAll('.message').length === 2")
    await page.wait_for_selector(".assistant.failed .error, .assistant .toolbar")
    assert await page.inner_text(".assistant .words") == "", "nothing came before"


async def test_settings_that_the_pipeline_declares_are_sent(page: Page) -> None:
    await page.click("#settings")
    shown = await page.eval_on_selector_all("#settings-form [data-name]", "all => all.map(each => each.dataset.name)")
    assert shown == ["system", "voice", "temperature", "max_new_tokens", "seed", "speaker.temperature"]
    await page.fill("#set-system", "Be brief.")
    await page.select_option("#set-voice", "high")
    await page.fill("#set-temperature", "0.5")
    await page.fill("#set-seed", "-1")  # out of bounds: left out
    await page.click("#settings-more summary")
    await page.fill("[id='set-speaker.temperature']", "1.5")
    await page.click("#settings-form [type=submit]")
    await page.reload()
    await page.wait_for_selector("#state.ready")
    async with page.expect_request("**/v1/chat/completions") as asked:
        await send(page, "one")
    body = (await asked.value).post_data_json
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert (body["temperature"], body["audio"]["voice"]) == (0.5, "high")
    assert body["stage_sampling"] == {"speaker": {"temperature": 1.5}}
    assert "seed" not in body
    assert "max_new_tokens" not in body
    await page.wait_for_selector(DONE)
    assert await page.inner_text(".assistant .words") == "one"


async def test_conversations_are_kept_renamed_exported_and_removed(page: Page) -> None:
    for text in ("first words", "second words"):
        await page.click("#new-chat")
        await send(page, text)
        await page.wait_for_selector(".assistant .toolbar")
    await page.reload()
    await page.wait_for_selector("#state.ready")
    assert await page.locator("#chats .title").all_inner_texts() == ["second words", "first words"]
    await page.click("#chats .title >> nth=1")
    assert await page.inner_text(".assistant .words") == "first words"
    await page.click(".assistant [title=Play]")  # its speech is kept, too
    await page.wait_for_selector(".assistant [title='Stop playing']")

    async def menu(what: str) -> None:
        await page.hover("#chats li >> nth=1")
        await page.click("#chats .icon >> nth=1")
        await page.click(f"#chat-menu [data-act={what}]")

    await page.hover("#chats li >> nth=1")
    await page.click("#chats .icon >> nth=1")
    await check_accessible(page)
    await page.keyboard.press("Escape")
    await menu("rename")
    await page.keyboard.type("Another name")
    await page.keyboard.press("Enter")
    assert await page.locator("#chats .title").all_inner_texts() == ["second words", "Another name"]
    async with page.expect_download() as started:
        await menu("json")
    made = json.loads(await asyncio.to_thread(Path(await (await started.value).path()).read_text))
    assert (made["title"], made["model"]) == ("Another name", "tones")
    assert [(each["role"], each["content"]) for each in made["messages"]] == [
        ("user", "first words"),
        ("assistant", "first words"),
    ]
    assert made["messages"][1]["speech"].startswith("data:audio/wav;base64,")
    async with page.expect_download() as started:
        await menu("md")
    made = await asyncio.to_thread(Path(await (await started.value).path()).read_text)
    assert made == "# Another name\n\n**You**\n\nfirst words\n\n**tones**\n\nfirst words\n"
    await menu("remove")
    await page.wait_for_selector("#empty")
    await page.reload()
    await page.wait_for_selector("#state.ready")
    assert await page.locator("#chats .title").all_inner_texts() == ["second words"]


FULL = """async () => {
    const { Store } = await import("/page/store.js");
    const kept = async () => {
        const store = new Store();
        await store.open();
        return store.chats.map((each) => each.id);
    };
    const store = new Store();
    await store.open();
    const said = (size) => ({ role: "user", text: "", media: [{ blob: new Blob([new Uint8Array(size)]) }] });
    const save = (id, size) => store.save({ id, title: id, turns: [said(size)] });
    for (let number = 0; number < 62; number++) await save(`${number}`.padStart(2, "0"), 10);
    const many = await kept();
    await save("large", 150e6);
    await save("larger", 150e6);
    return [many, await kept()];
}"""


async def test_the_oldest_conversations_go_where_there_are_too_many(page: Page) -> None:
    many, large = await page.evaluate(FULL)
    assert (len(many), many[0], many[-1]) == (60, "61", "02")
    assert large == ["larger"], "200 MB in all"


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
    _write_turn(tmp_path / "spoken.wav")
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
