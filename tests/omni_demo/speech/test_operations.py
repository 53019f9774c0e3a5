"""The demo speaks while every unit of it is replaced and its talker is scaled."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest

from omni_core.client import AsyncPipe, open_async
from omni_core.errors import OmniError

pytestmark = pytest.mark.full

pytest.importorskip("omni_cli.live")

IN_FLIGHT = 64
QUESTIONS = ["What is your name?", "How are you?", "Count to five.", "What colour is the sky?"]
SHORT = {
    "thinker": {"max_new_tokens": 6},
    "talker": {"max_new_tokens": 6, "temperature": 2.5, "top_k": 0, "top_p": 1.0},
}
"""Half a second of speech, drawn by the seed."""


async def ask(pipe: AsyncPipe, number: int) -> tuple[str, bytes]:
    """Return the text and the samples of the answer to one of :data:`IN_FLIGHT` requests."""
    reply = await pipe.chat(QUESTIONS[number % 4], seed=number, params=SHORT)
    return reply.text, reply.audio.samples.tobytes()


@pytest.mark.timeout(400)
async def test_every_unit_is_replaced_and_the_talker_scaled_under_64_requests_and_no_sample_changes() -> None:
    # One request per pass of the vocoder: what others are decoded with changes the last bit of a sum, in an undisturbed run too.
    async with open_async("demo", set={"code2wav.factory_args.max_running": 1}) as pipe:
        undisturbed = await asyncio.gather(*(ask(pipe, number) for number in range(IN_FLIGHT)))
        assert len(set(undisturbed)) > IN_FLIGHT // 2, "the requests are too alike to show anything"
        processes, numbers, answered = pipe.process_ids, count(), 0
        failed: list[OmniError] = []
        different: list[int] = []
        is_ending = False

        async def go_on() -> None:
            nonlocal answered
            while not is_ending:
                number = next(numbers) % IN_FLIGHT
                try:
                    answer = await ask(pipe, number)
                except OmniError as error:
                    failed.append(error)
                    return
                answered += 1
                if answer != undisturbed[number]:
                    different.append(number)

        async def more(answers: int) -> None:
            wanted = answered + answers
            while answered < wanted and not failed:
                await asyncio.sleep(0.01)

        load = [asyncio.create_task(go_on()) for _ in range(IN_FLIGHT)]
        ended = []
        for stage in [stage.name for stage in pipe.config.stages]:
            ended += (await pipe.replace(stage, wait=False)).ended
            await more(4)
        assert set(ended) == set(processes)
        await pipe.scale("talker_ar", 3)
        await more(24)
        await pipe.scale("talker_ar", 1, wait=False)
        is_ending = True
        await asyncio.gather(*load)
        async with asyncio.timeout(60):
            while len(pipe.health()) > len(processes):
                await asyncio.sleep(0.05)
        assert not set(processes.values()) & set(pipe.process_ids.values())
    assert failed == []
    assert different == []
    assert answered > IN_FLIGHT
