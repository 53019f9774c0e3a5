"""Tools of answers and conversations, and their settings."""

from __future__ import annotations

import asyncio
import json
import wave
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from page_driving import DONE, WIDE, check_accessible, needs_browser, send

if TYPE_CHECKING:
    from playwright.async_api import Page

pytestmark = [pytest.mark.asyncio(loop_scope="session"), needs_browser]


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

[in](https://example.org/?a=1&b=2) [out](javascript:alert(1)) ![x](https://example.org/x.png) <b onclick="x">R&amp;D</b> &constructor;"""


async def test_markdown_is_shown_and_html_is_text(page: Page) -> None:
    whole, _ = await page.evaluate(MARKDOWN, [TEXT])
    pieces, kept = await page.evaluate(MARKDOWN, [TEXT[at : at + 3] for at in range(0, len(TEXT), 3)])
    assert pieces == whole
    assert kept, "what does not change is not made again"
    for part in (
        '<p dir="auto"><em>One</em> <code>two</code></p>',
        '<h2 class="heading size3" dir="auto">Three</h2>',
        '<ol dir="auto"><li>four<ul dir="auto"><li>five</li></ul></li></ol>',
        "<code>six &lt; 7</code></pre>",
        '<td class="right">9</td>',
        '<a href="https://example.org/?a=1&amp;b=2" title="" target="_blank" rel="noopener noreferrer">in</a>',
        "<span>out</span>",
        '&lt;b onclick="x"&gt;R&amp;D&lt;/b&gt; &amp;constructor;',
    ):
        assert part in whole, part
    for part in ("javascript:", "<img", "<b "):
        assert part not in whole, part
    for much in ("> " * 20_000, "word " * 13_000):  # nested too deep, and too long: shown as it is
        shown, _ = await page.evaluate(MARKDOWN, [much, "end"])
        assert shown == f'<p class="plain" dir="auto">{much.replace(">", "&gt;")}end</p>'


SHOWN = """async (turns) => {
    const { Messages } = await import("/page/messages.js");
    const messages = new Messages(document.getElementById("messages"), {});
    for (const turn of turns) messages.kept(turn);
}"""
ANSWER = """(text) => new Promise(async (done) => {
    const { Messages } = await import("/page/messages.js");
    const place = document.getElementById("messages");
    const answer = new Messages(place, {}).answer({ role: "assistant", text: "" });
    const painted = () => new Promise((next) => setTimeout(() => requestAnimationFrame(() => setTimeout(next)), 50));
    const below = [];
    for (const scrolled of [0, 0, 1000, 0]) {
        place.scrollTop -= scrolled;
        await painted();
        const before = place.scrollTop;
        answer.text(text);
        await painted();
        below.push(place.scrollHeight - place.scrollTop - place.clientHeight < 2);
        if (scrolled) below.push(place.scrollTop === before);
    }
    done(below);
})"""


async def test_the_end_stays_in_sight_unless_the_reader_has_scrolled_up(page: Page) -> None:
    assert await page.evaluate(ANSWER, "words\n\n" * 40) == [True, True, False, True, False]


async def test_languages_written_from_the_right_begin_there_and_tables_keep_words_whole(page: Page) -> None:
    table = "\n\n|" + "heading|" * 30 + "\n|" + "---|" * 30 + "\n|" + "word|" * 30
    turns = [{"role": "user", "text": "שלום"}, {"role": "assistant", "text": "שלום, two." + table}]
    await page.evaluate(SHOWN, turns)
    shown = "all => all.map(each => getComputedStyle(each).direction)"
    assert await page.eval_on_selector_all(".said, .words p", shown) == ["rtl"] * 2
    assert await page.eval_on_selector(".words th", "each => each.offsetWidth") > 40
    assert await page.evaluate(WIDE) <= 0


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
    await page.keyboard.type("No name")
    await page.keyboard.press("Escape")
    assert await page.locator("#chats .title").all_inner_texts() == ["second words", "first words"]
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


async def test_two_tabs_keep_what_each_of_them_was_told(page: Page) -> None:
    other = await page.context.new_page()
    await other.goto(page.url)
    await other.wait_for_selector("#state.ready")
    await send(page, "one")
    await other.click("#chats .title")
    assert await other.inner_text(".said") == "one"
    await other.wait_for_selector(".assistant .toolbar")
    await send(other, "two")
    await page.wait_for_selector(".user:has-text('two') + .assistant .toolbar")
    await send(page, "three")
    await other.wait_for_selector(".user:has-text('three') + .assistant .toolbar")
    assert await other.locator(".said").all_inner_texts() == ["one", "two", "three"]
    await other.click("#chats .icon")
    await other.click("#chat-menu [data-act=remove]")
    await page.wait_for_selector("#empty")
    await other.close()


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
