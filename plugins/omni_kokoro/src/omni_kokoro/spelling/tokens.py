"""Words and marks with their phonemes, and sentences of them that the network can speak in one piece."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from attrs import frozen

_SYMBOLS = frozenset("$%€£¥&@+=")
"""Signs that are said as a word, as digits are."""

CLAUSE = frozenset(";:,—")
SENTENCE = frozenset(".!?…")

FIRST = 60
"""Phonemes of the first piece of a request, if there is a mark to cut it at: about four seconds, so that sound starts soon."""


@frozen
class Token:
    """A word or a mark.

    Attributes:
        text: as it is written; empty for the rest of a word that was cut.
        phonemes: of the network's vocabulary.
        space: one follows it.
    """

    text: str
    phonemes: str
    space: bool = False

    @property
    def spoken(self) -> str:
        """The phonemes, and the space after them."""
        return self.phonemes + " " * self.space


Spell = Callable[[str], list[Token]]
"""Returns the tokens of a sentence."""


def known(tokens: Iterable[Token], vocabulary: dict[str, int]) -> tuple[list[Token], set[str]]:
    """Return tokens without phonemes that the network has not learnt, and these."""
    found, missing = [], set[str]()
    for each in tokens:
        kept = "".join(phoneme for phoneme in each.phonemes if phoneme in vocabulary)
        missing |= {*each.phonemes} - {*kept}
        found.append(Token(each.text, kept, each.space))
    return found, missing


def pieces(tokens: Sequence[Token], most: int, first: bool) -> list[list[Token]]:
    """Cut a sentence where it is longer than the network takes, at the last end of a sentence, clause or word that fits.

    Args:
        most: phonemes of a piece.
        first: it is the first of a request, so its first piece is short.
    """
    found: list[list[Token]] = []
    rest = [each for each in tokens if each.spoken]
    while rest:
        count = _fitting(rest, most)
        short = _fitting(rest, min(FIRST, most))
        if first and not found and short < len(rest):
            at = _last(rest[:short], CLAUSE | SENTENCE)
            count = at or count
        elif count < len(rest):
            count = _last(rest[:count], SENTENCE) or _last(rest[:count], CLAUSE) or count
        if count == 0:  # one word is longer
            word = rest[0]
            found.append([Token(word.text, word.phonemes[:most])])
            rest[0] = Token("", word.phonemes[most:], word.space)
            continue
        found.append(rest[:count])
        rest = rest[count:]
    return found


def phonemes_of(tokens: Sequence[Token]) -> str:
    """Return the phonemes of a piece."""
    return "".join(each.spoken for each in tokens).rstrip()


def _fitting(tokens: Sequence[Token], most: int) -> int:
    total = 0
    for count, each in enumerate(tokens):
        if total + len(each.phonemes) > most:
            return count
        total += len(each.spoken)
    return len(tokens)


def _last(tokens: Sequence[Token], marks: frozenset[str]) -> int:
    """Return how many tokens end with the last mark; 0: there is none."""
    for count in range(len(tokens), 0, -1):
        if tokens[count - 1].phonemes and tokens[count - 1].phonemes[-1] in marks:
            return count
    return 0


def matched(words: Sequence[str], spoken: Sequence[str]) -> list[Token]:
    """Pair words with what is said of them, where a number is said in several words, and several short words in one.

    Groups are chosen so that the lengths fit best. Words that are said in one go share its phonemes by their lengths.
    """
    lengths = [sum(5 if each.isdigit() or each in _SYMBOLS else 1 for each in word) for word in words]
    if len(words) == len(spoken) and lengths == [len(word) for word in words]:
        return [Token(word, said, True) for word, said in zip(words, spoken, strict=True)]
    if not spoken:
        return []
    scale = sum(map(len, spoken)) / max(1, sum(lengths))
    best: dict[tuple[int, int], tuple[float, tuple[int, int]]] = {(0, 0): (0.0, (0, 0))}
    for row in range(len(words) + 1):
        for column in range(len(spoken) + 1):
            for of_words, of_spoken in (
                (1, 1),
                *((1, more) for more in range(2, 9)),
                *((more, 1) for more in range(2, 5)),
            ):
                before = (row - of_words, column - of_spoken)
                if before not in best:
                    continue
                wanted = scale * sum(lengths[before[0] : row])
                cost = (
                    best[before][0] + abs(wanted - sum(map(len, spoken[before[1] : column]))) + of_words + of_spoken - 2
                )
                if (row, column) not in best or cost < best[row, column][0]:
                    best[row, column] = (cost, before)
    place = (len(words), len(spoken))
    if place not in best:  # far apart: all of it is one word
        return [Token(" ".join(words), " ".join(spoken), True)]
    found: list[Token] = []
    while place != (0, 0):
        before = best[place][1]
        found = [*_group(words[before[0] : place[0]], " ".join(spoken[before[1] : place[1]])), *found]
        place = before
    return found


def _group(words: Sequence[str], said: str) -> list[Token]:
    total, begin, found = sum(map(len, words)), 0, []
    for number, word in enumerate(words):
        end = len(said) if number == len(words) - 1 else begin + max(1, round(len(said) * len(word) / total))
        found.append(Token(word, said[begin:end], number == len(words) - 1))
        begin = end
    return found
