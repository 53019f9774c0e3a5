"""A sentence as runs of words, marks, and words whose pronunciation is given: ``[Kokoro](/kˈOkəɹO/)``."""

from __future__ import annotations

import re
import unicodedata

from attrs import frozen

_GIVEN = re.compile(r"\[([^\[\]]+)\]\(/([^/]*)/\)")

_MARKS = {each: each for each in ';:,.!?—…"()“”'}
_MARKS |= {
    "–": "—",
    "«": "“",
    "»": "”",
    "„": "“",
    "。": ".",
    "，": ",",
    "、": ",",
    "！": "!",
    "？": "?",
    "；": ";",
    "：": ":",
}
_MARKS |= {"।": ".", "॥": ".", "[": "(", "]": ")", "{": "(", "}": ")", "「": "“", "」": "”"}
"""Marks, and the ones that the network knows for them."""

_INSIDE = frozenset(".,:")
"""Marks that belong to a word between two letters or digits: 3.14, 10:30, example.com."""

_SHORTENED = re.compile(r"\b(Dr|Mr|Mrs|Ms|Prof|St|Jr|Sr|vs|etc|No|[A-Z])\.(?=\s)")

_SAID = frozenset("'’-/%$€£¥+=@#&*°")
_KINDS = frozenset("LMNZ")


@frozen
class Run:
    """A part of a sentence: ``words`` to be pronounced, a ``mark``, or a word with ``phonemes``."""

    words: str = ""
    mark: str = ""
    phonemes: str = ""
    space: bool = False


def runs(text: str) -> list[Run]:
    """Return the parts of a sentence. What nobody can say, such as an emoji, is left out."""
    found: list[Run] = []
    end = 0
    for given in _GIVEN.finditer(text):
        found += _plain(text[end : given.start()])
        end = given.end()
        found.append(Run(given[1], phonemes=given[2].strip(), space=text[end : end + 1].isspace()))
    return found + _plain(text[end:])


def _plain(text: str) -> list[Run]:
    text = _SHORTENED.sub(r"\1", unicodedata.normalize("NFC", text)).replace("...", "…").replace(" - ", " — ")
    found, words = list[Run](), ""

    def said() -> None:
        nonlocal words
        if any(each.isalnum() for each in words):
            found.append(Run(" ".join(words.split()), space=words[-1].isspace()))
        words = ""

    for index, each in enumerate(text):
        around = text[index - 1 : index] + text[index + 1 : index + 2]
        if each in _MARKS and not (each in _INSIDE and len(around) == 2 and around.isalnum()):
            said()
            found.append(Run(mark=_MARKS[each], space=text[index + 1 : index + 2].isspace()))
        elif each in _INSIDE or each in _SAID or unicodedata.category(each)[0] in _KINDS:
            words += each
        else:
            words += " "
    said()
    return found
