"""Conversations by voice on the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from page_driving import check_accessible, needs_browser

if TYPE_CHECKING:
    from playwright.async_api import Page

pytestmark = [pytest.mark.asyncio(loop_scope="session"), needs_browser]


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


async def test_the_player_is_not_done_before_the_sound_has_come(page: Page) -> None:
    reported = """async () => {
        const { Player } = await import("/page/player.js");
        const done = [];
        const player = new Player((status) => done.push(status.done));
        await player.open();
        player.begin();
        player.write(new Float32Array(10));
        player.end();
        while (!done.includes(true)) await new Promise((next) => setTimeout(next, 20));
        return done.slice(0, 3);
    }"""
    assert await page.evaluate(reported) == [False, False, False]
