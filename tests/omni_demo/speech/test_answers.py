"""The demo's replies to every documented prompt, to prompts outside its set, and to pictures and sounds that were not
in the training.
"""

from __future__ import annotations

import asyncio

import pytest
from tiers import few

from demo_training.speech import report
from demo_training.speech.report import Asked
from demo_training.speech.sounds import HELD_OUT_VOICES
from omni_core.client import AsyncPipe
from omni_demo.speech.phrases import COLOURS, KEYWORDS, PICTURE_PROMPTS, SOUND_PROMPTS, UNKNOWN

pytestmark = pytest.mark.asyncio(loop_scope="session")

OUTSIDE = (
    "Who was the first man on Mars?",
    "What is the meaning of life?",
    "Sing me a song.",
    "How tall is the Eiffel tower?",
    "Do you like pizza?",
    "What time is it?",
    "Where is Spain?",
    "Tell me the news.",
    "What is your favourite colour?",
    "asdf qwer",
    "I love you",
    "Which film should I watch tonight?",
    "Can you speak French?",
    "Who wrote Hamlet?",
    "How far is the moon?",
)


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


async def wrong_answers(client: AsyncPipe, asked: list[Asked]) -> list[str]:
    """Return the prompts that do not get their exact reply, sent all at once."""
    answers = await asyncio.gather(*(report.answer(client, each, speech=False) for each in asked))
    return [
        f"{each.name}: {said!r} instead of {each.reply!r}"
        for each, (said, _) in zip(asked, answers, strict=True)
        if said != each.reply
    ]


async def test_every_documented_prompt_gets_its_exact_reply(client: AsyncPipe) -> None:
    assert not await wrong_answers(client, report.documented())


async def test_case_and_final_punctuation_do_not_matter(client: AsyncPipe) -> None:
    typed = [(each, each.name.lower().rstrip(".!?")) for each in report.documented()]
    wrong = await wrong_answers(client, [Asked(words, (text(words),), each.reply) for each, words in typed])
    assert not wrong


async def test_questions_outside_the_set_are_refused_in_words(client: AsyncPipe) -> None:
    asked = [Asked(words, (text(words),), UNKNOWN) for words in OUTSIDE]
    assert not await wrong_answers(client, asked)


async def test_a_question_about_a_picture_or_a_sound_that_is_not_there_is_refused(client: AsyncPipe) -> None:
    asked = [Asked(words, (text(words),), UNKNOWN) for words in (*PICTURE_PROMPTS, *SOUND_PROMPTS)]
    assert not await wrong_answers(client, asked)


@pytest.mark.parametrize("colour", few(COLOURS, 2))
async def test_colours_of_pictures_of_other_seeds_and_more_noise(client: AsyncPipe, colour: str) -> None:
    alone = [report.picture(colour, seed) for seed in range(12)]
    beside = [Asked(each.name, (*each.parts, text(PICTURE_PROMPTS[0])), each.reply) for each in alone]
    wrong = await wrong_answers(client, alone + beside)
    assert not wrong


@pytest.mark.full
@pytest.mark.parametrize("keyword", KEYWORDS)
async def test_keywords_of_other_seeds_at_other_speeds_and_in_more_noise(client: AsyncPipe, keyword: str) -> None:
    alone = [report.sound(keyword, seed) for seed in range(12)]
    beside = [Asked(each.name, (*each.parts, text(SOUND_PROMPTS[0])), each.reply) for each in alone]
    wrong = await wrong_answers(client, alone + beside)
    assert len(wrong) <= 2, wrong


@pytest.mark.full
async def test_most_keywords_in_voices_that_no_training_had(client: AsyncPipe) -> None:
    asked = [report.sound(keyword, seed, HELD_OUT_VOICES) for keyword in KEYWORDS for seed in range(12)]
    wrong = await wrong_answers(client, asked)
    assert len(wrong) <= len(asked) // 4, wrong


async def test_other_colours_and_other_sounds_are_refused(client: AsyncPipe) -> None:
    pictures = await wrong_answers(client, [report.picture(None, seed) for seed in range(20)])
    assert len(pictures) <= 1, pictures
    sounds = await wrong_answers(client, [report.sound(None, seed) for seed in range(20)])
    assert len(sounds) <= 2, sounds


async def test_pictures_and_sounds_in_several_turns(client: AsyncPipe) -> None:
    """In conversations of other seeds than the training's, each turn a picture, a sound or a question."""
    for seed in range(12):
        messages, reply = report.conversation(seed)
        result = await client.submit(report.request_of(messages, speech=False))
        assert result["decode"].text == reply, seed


async def test_a_conversation_is_answered_by_its_last_question(client: AsyncPipe) -> None:
    said: list[dict[str, object]] = [
        {"role": "user", "content": "What is your name?"},
        {"role": "assistant", "content": "My name is Omni."},
    ]
    last = [
        report.picture("red", 0),
        report.sound("music", 3),
        Asked("", (text("Where is Paris?"),), "Paris is in France."),
    ]
    for asked in last:
        messages = [*said, {"role": "user", "content": list(asked.parts)}]
        assert (await client.submit(report.request_of(messages, speech=False)))["decode"].text == asked.reply
