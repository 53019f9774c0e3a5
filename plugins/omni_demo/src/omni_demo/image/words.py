"""The words that the model knows, and prompts as numbers. Imports no torch."""

from __future__ import annotations

import re

from omni_core.api import InvalidRequestError, RequestTooLargeError

COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "black")
SHAPES = ("circle", "square", "triangle", "star")
RELATIONS = {
    "left": ("left of", "to the left of", "on the left of"),
    "right": ("right of", "to the right of", "on the right of"),
    "above": ("above", "over", "on top of"),
    "below": ("below", "under", "beneath", "underneath"),
}
"""The phrases of each relation, of the first object to the second."""

OTHERS = (
    "a an the is and draw paint show me picture image with of into to in at it"
    " make colour color change turn recolour remove delete erase"
)
VOCABULARY = (
    "",
    *COLOURS,
    *SHAPES,
    *sorted(
        {word for phrases in RELATIONS.values() for phrase in phrases for word in phrase.split()} | set(OTHERS.split())
    ),
)
"""Every word by its number; number 0 pads."""

LONGEST = 24
"""Words of a prompt."""

_NUMBERS = {word: number for number, word in enumerate(VOCABULARY)}


def numbers_of(text: str) -> list[int]:
    """Return the numbers of the words of a text; case and punctuation do not matter.

    Raises:
        InvalidRequestError: a word that the model does not know, or more than :data:`LONGEST` words.
    """
    words = re.findall(r"[^\W_]+", text.lower())
    if unknown := [word for word in words if word not in _NUMBERS]:
        raise InvalidRequestError(
            f"prompt: the model does not know the word {unknown[0]!r:.80}; it draws {', '.join(SHAPES)} in {', '.join(COLOURS)},"
            f" one or two, {', '.join(phrases[0] for phrases in RELATIONS.values())} each other"
        )
    if len(words) > LONGEST:
        raise RequestTooLargeError(f"prompt: {len(words)} words; the longest has {LONGEST}")
    return [_NUMBERS[word] for word in words]
