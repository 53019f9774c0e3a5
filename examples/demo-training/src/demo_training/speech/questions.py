"""Makes training prompts: the documented ones with misspellings, and others outside the closed set."""

from __future__ import annotations

import re

import numpy as np

from omni_demo.speech.phrases import PICTURE_PROMPTS, SOUND_PROMPTS, TOPICS

KNOWN = {prompt: topic.reply for topic in TOPICS for prompt in topic.prompts}

_THINGS = (
    "dog", "cat", "horse", "bird", "fish", "tree", "flower", "house", "car", "train", "ship", "plane", "book",
    "film", "song", "game", "city", "river", "mountain", "lake", "moon", "sun", "star", "planet", "ocean", "forest",
    "king", "queen", "president", "doctor", "teacher", "price", "recipe", "cake", "bread", "coffee", "tea",
    "weather", "news", "time", "date", "year", "month", "hour", "minute", "number", "letter", "word", "language",
    "music", "computer", "phone", "internet", "robot", "engine", "money", "bank", "job", "football", "match",
    "winner", "team", "player", "actor", "painter", "poem", "history", "science", "math", "physics", "chemistry",
    "biology",
)  # fmt: skip
_NAMES = (
    "London", "Berlin", "Rome", "Madrid", "Tokyo", "Cairo", "Peter", "Anna", "Einstein", "Mozart", "Shakespeare",
    "Napoleon", "Japan", "Canada", "Brazil", "Africa",
)  # fmt: skip
_DOINGS = (
    "sing", "dance", "cook", "drive", "swim", "fly", "run", "sleep", "read", "write", "paint", "draw", "play",
    "work", "travel", "pay", "buy", "sell", "open", "close",
)  # fmt: skip
_NUMBERS = (
    "three", "five", "six", "eight", "nine", "ten", "eleven", "twelve", "twenty", "thirty", "hundred",
)  # fmt: skip
_FRAMES = (
    "What is a {thing}?", "What is the {thing}?", "Where is {name}?", "Who is {name}?", "Tell me about {name}.",
    "Tell me about the {thing}.", "What colour is the {thing}?", "How many {thing}s are in a {other}?", "Is the {thing} {other}?",
    "What is {number} plus {number2}?", "How much is {number} and {number2}?", "Can you {doing}?", "Please {doing} for me.",
    "How long is a {thing}?", "Do you know a {thing}?", "Do you like the {thing}?", "Who made the {thing}?", "{thing} {other}",
    "Which country is {name} in?", "What is the capital of {name}?", "Why is the {thing} so {other}?", "I want a {thing}.",
    "Where can I buy a {thing}?", "When does the {thing} {doing}?", "My {thing} can {doing}.", "Translate {thing} to {other}.",
    "Write a {thing} about {name}.", "Explain the {thing}.", "Count to {number}.", "{name}", "{doing}!", "Say {thing}.",
    "What is your {thing}?", "How old are you?", "Where do you live?", "Are you a {thing}?", "Is {name} in {name2}?",
)  # fmt: skip


def simple(text: str) -> str:
    """Return a prompt without case and punctuation, for comparison."""
    return re.sub(r"[^a-z0-9 ]", "", text.lower()).strip()


def spelt(prompt: str, random: np.random.Generator) -> str:
    """Return a prompt with the misspellings of fast typing."""
    kind = random.random()
    if kind < 0.5:
        return prompt
    text = prompt
    if kind < 0.85:
        text = text.lower()
    if kind > 0.6:
        text = text.rstrip(".!?")
    if random.random() < 0.1:
        text = text.rstrip(".!?") + ", please" + str(random.choice(["", ".", "?"]))
    return text


def something_else(random: np.random.Generator) -> str:
    """Return a text that no topic answers."""
    while True:
        text = _made_up(random)
        if simple(text) not in _KNOWN_SIMPLE:
            return spelt(text, random)


def _made_up(random: np.random.Generator) -> str:
    kind = random.random()
    if kind < 0.55:
        return _framed(random)
    if kind < 0.8:
        return _replaced(random)
    if kind < 0.9:
        return str(random.choice(_MEDIA_PROMPTS)) if random.random() < 0.5 else _gibberish(random)
    count = int(random.integers(1, 8 if random.random() < 0.7 else 17))
    return " ".join(_thing(random) if random.random() < 0.6 else str(random.choice(_KNOWN_WORDS)) for _ in range(count))


def _framed(random: np.random.Generator) -> str:
    frame = str(random.choice(_FRAMES))
    name, name2 = (str(random.choice(_NAMES)) for _ in range(2))
    number, number2 = (str(random.choice(_NUMBERS)) for _ in range(2))
    return frame.format(
        thing=_thing(random), other=_thing(random), name=name, name2=name2, number=number, number2=number2,
        doing=str(random.choice(_DOINGS)),
    )  # fmt: skip


def _replaced(random: np.random.Generator) -> str:
    """Return a documented prompt in which one or two long words were replaced."""
    words = str(random.choice(list(KNOWN))).split()
    long = [index for index, word in enumerate(words) if len(simple(word)) > 3] or [len(words) - 1]
    for index in random.choice(long, size=min(len(long), int(random.integers(1, 3))), replace=False):
        tail = words[index][len(words[index].rstrip(".!?")) :]
        words[index] = _thing(random) + tail
    return " ".join(words)


def _thing(random: np.random.Generator) -> str:
    """Return a noun, or a word that does not exist; no topic contains it."""
    return str(random.choice(_THINGS)) if random.random() < 0.6 else _gibberish(random)


def _gibberish(random: np.random.Generator) -> str:
    letters = random.choice(list("aeiou"), size=4), random.choice(list("bcdfghklmnprstvw"), size=4)
    return "".join(b + a for a, b in zip(*letters, strict=True))[: int(random.integers(2, 9))]


_KNOWN_SIMPLE = {simple(prompt) for prompt in KNOWN}
_KNOWN_WORDS = sorted({word for prompt in KNOWN for word in simple(prompt).split()})
_MEDIA_PROMPTS = (*PICTURE_PROMPTS, *SOUND_PROMPTS)
