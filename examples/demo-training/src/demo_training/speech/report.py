"""Report of a training run: a plot of the losses, and a table of the pipeline's replies and the speech recogniser's results."""

from __future__ import annotations

import asyncio
import csv
from pathlib import Path
from typing import Any

import numpy as np
from attrs import frozen

from demo_training.speech import pictures, questions, sounds
from demo_training.speech.judge import Judge, Wave, backwards, noise_like
from omni_core.api import AsyncPipe, OmniRequest, open_async
from omni_demo.speech.phrases import COLOURS, KEYWORDS, REPLIES, TOPICS, UNKNOWN, picture_reply, sound_reply
from omni_demo.speech.pipeline import demo

_HELD_OUT = 1_000_000
"""The first seed of the report: larger than that of any training step."""


@frozen(eq=False)
class Asked:
    """A request's content, and its expected reply."""

    name: str
    parts: tuple[dict[str, Any], ...]
    reply: str


def documented() -> list[Asked]:
    """Return every documented prompt."""
    return [
        Asked(prompt, ({"type": "text", "text": prompt},), topic.reply) for topic in TOPICS for prompt in topic.prompts
    ]


def one_of_each() -> list[Asked]:
    """Return a request for each reply, with pictures and sounds that were not in the training."""
    asked = [Asked(topic.prompts[0], ({"type": "text", "text": topic.prompts[0]},), topic.reply) for topic in TOPICS]
    asked += [picture(colour, 0) for colour in COLOURS]
    asked += [sound(keyword, 0) for keyword in KEYWORDS]
    return [*asked, Asked("Who is Anna?", ({"type": "text", "text": "Who is Anna?"},), UNKNOWN)]


def other_questions(count: int) -> list[Asked]:
    """Return texts outside the set, from other seeds than the training's."""
    random = np.random.default_rng(_HELD_OUT)
    texts = [questions.something_else(random) for _ in range(count)]
    return [Asked(text, ({"type": "text", "text": text},), UNKNOWN) for text in texts]


def picture(colour: str | None, seed: int) -> Asked:
    """Return a picture alone, with more noise than in training."""
    pixels = pictures.draw_picture(colour, np.random.default_rng(_HELD_OUT + seed), noise=18)
    reply = UNKNOWN if colour is None else picture_reply(colour)
    return Asked(f"a picture: {colour or 'another colour'}", ({"type": "image", "image": pixels},), reply)


def sound(keyword: str | None, seed: int, voices: tuple[str, ...] = sounds.TRAINED_VOICES) -> Asked:
    """Return a sound alone, with more noise and at more speeds than in training."""
    random = np.random.default_rng(_HELD_OUT + seed)
    if keyword is None:
        wave = sounds.something_else(random, voices)
    else:
        wave = sounds.say(keyword, random, voices, speeds=(105, 205), noise_db=8)
    part = {"type": "audio", "samples": wave, "sample_rate": sounds.RATE}
    return Asked(
        f"a sound: {keyword or 'something else'}", (part,), UNKNOWN if keyword is None else sound_reply(keyword)
    )


def conversation(seed: int) -> tuple[list[dict[str, Any]], str]:
    """Return a chat of two to four turns, each a held-out picture, a held-out sound or a documented question, and the last reply."""
    random = np.random.default_rng(_HELD_OUT + seed)
    asked = [picture(str(random.choice(COLOURS)), 100 + 2 * seed + each) for each in range(2)]
    asked += [sound(str(random.choice(KEYWORDS)), 100 + seed), documented()[int(random.integers(len(documented())))]]
    turns = [asked[each] for each in random.integers(len(asked), size=int(random.integers(2, 5)))]
    messages: list[dict[str, Any]] = []
    for turn in turns:
        messages += [{"role": "user", "content": list(turn.parts)}, {"role": "assistant", "content": turn.reply}]
    return messages[:-1], turns[-1].reply


def request_of(messages: list[dict[str, Any]], *, speech: bool = True, seed: int = 1) -> OmniRequest:
    """Return a request of this conversation that may generate the longest reply."""
    params = {"seed": seed, "thinker": {"max_new_tokens": 32}, "talker": {"max_new_tokens": 80}}
    return OmniRequest({"messages": messages}, params, None if speech else ["text"])


async def answer(client: AsyncPipe, asked: Asked, *, speech: bool = True) -> tuple[str, Wave]:
    """Return the pipeline's text and its sound at 24 kHz (empty without speech)."""
    messages = [{"role": "user", "content": list(asked.parts)}]
    result = await client.submit(request_of(messages, speech=speech))
    wave = np.asarray(result["code2wav"].samples) if speech else np.empty(0, np.float32)
    return result["decode"].text, wave


async def _last_reply(client: AsyncPipe, messages: list[dict[str, Any]]) -> str:
    result = await client.submit(request_of(messages, speech=False))
    text: str = result["decode"].text
    return text


def plot_losses(folder: Path) -> None:
    """Plot ``losses.png`` of the three trainings."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(15, 4))
    for axis, name in zip(axes, ("thinker", "talker", "code2wav"), strict=True):
        with (folder / f"{name}.csv").open() as file:
            rows = [[float(cell) for cell in row[:2]] for row in csv.reader(file)]
        if rows:
            axis.plot(*zip(*rows, strict=True))
        axis.set(title=name, xlabel="step", ylabel="loss", yscale="log")
    figure.tight_layout()
    figure.savefig(folder / "losses.png", dpi=100)
    pyplot.close(figure)


def write_report(checkpoint: Path, folder: Path) -> str:
    """Write ``report.md``: see :func:`_report`. Returns its text."""
    text = asyncio.run(_report(checkpoint))
    (folder / "report.md").write_text(text)
    return text


async def _report(checkpoint: Path) -> str:
    """Count the exact replies per kind of prompt, and check every reply and the controls with the speech recogniser."""
    kinds = {
        "documented prompts": documented(),
        "questions outside the set": other_questions(100),
        "held-out pictures of the four colours": [picture(colour, seed) for colour in COLOURS for seed in range(1, 26)],
        "held-out pictures of none of them": [picture(None, seed) for seed in range(1, 51)],
        "held-out sounds of the four words": [sound(word, seed) for word in KEYWORDS for seed in range(1, 26)],
        "the four words in voices that no training had": [
            sound(word, seed, sounds.HELD_OUT_VOICES) for word in KEYWORDS for seed in range(1, 26)
        ],
        "held-out sounds of none of them": [sound(None, seed) for seed in range(1, 51)],
    }
    judge, lines = Judge(REPLIES), ["| asked | exact replies |", "|---|---|"]
    async with open_async(demo(str(checkpoint), processes="one")) as client:
        for kind, asked in kinds.items():
            right = [(await answer(client, each, speech=False))[0] == each.reply for each in asked]
            lines.append(f"| {kind} | {sum(right)} of {len(asked)} |")
        chats = [conversation(seed) for seed in range(100)]
        right = [await _last_reply(client, messages) == reply for messages, reply in chats]
        lines.append(
            f"| the last turn of conversations with pictures and sounds in several turns | {sum(right)} of {len(chats)} |"
        )
        lines += ["", "| reply | written | heard | backwards | noise |", "|---|---|---|---|---|"]
        totals = np.zeros(4, int)
        for each in one_of_each():
            text, wave = await answer(client, each)
            heard = [judge.hear(sample) for sample in (wave, backwards(wave), noise_like(wave))]
            marks = [text == each.reply, *(one == each.reply for one in heard)]
            totals += marks
            lines.append(f"| {each.reply} | {' | '.join('yes' if mark else '-' for mark in marks)} |")
    lines.append(f"| of {len(REPLIES)} | {' | '.join(map(str, totals))} |")
    return "\n".join(lines) + "\n"
