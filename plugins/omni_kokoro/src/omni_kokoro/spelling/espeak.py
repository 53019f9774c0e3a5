"""Pronunciation by espeak-ng, a program of its own: its licence (GPL-3.0) does not reach what only runs it."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence

from omni_core.api import ConfigError, InvalidRequestError
from omni_kokoro.languages import Language
from omni_kokoro.spelling.text import Run, runs
from omni_kokoro.spelling.tokens import Token, matched

PROGRAM = "espeak-ng"

INSTALL = "apt-get install espeak-ng, dnf install espeak-ng, or brew install espeak-ng"

MISSING = f"{PROGRAM} is not installed ({INSTALL}); phonemes can be given (params.speech.phonemes), or --option spelling=misaki"

_SECONDS = 30.0
_BETWEEN = "zqxzqx zqx"
"""Is said after each line, so that it is known what belongs to one of which nothing is said."""

_WORDS, _BYTES, _LETTERS = 100, 700, 150
"""Of a line, and letters of a word in it. The program drops words of more than 299 in 800 characters, and cuts after 999 bytes, also
within a letter."""

_TIE = "^"
_SWITCH = re.compile(r"\([a-z^-]+\)")
_SYLLABIC = re.compile("(\\S)\u0329")

_SHARED = [("a^ɪ", "I"), ("a^ʊ", "W"), ("e^ɪ", "A"), ("ɔ^ɪ", "Y"), ("t^ʃ", "ʧ"), ("d^ʒ", "ʤ")]
"""Diphthongs and affricates that are one letter in the network's vocabulary."""

_ENGLISH = [*_SHARED, ("ə^l", "ᵊl"), ("ʲo", "jo"), ("ʲə", "jə"), ("ʲ", ""), ("ɚ", "əɹ"), ("r", "ɹ"), ("x", "k")]
_ENGLISH += [("ç", "k"), ("ɐ", "ə"), ("ɬ", "l"), ("\u0303", ""), ("ʔn\u0329", "ʔn"), ("ʔˌn\u0329", "ʔn")]

_AMERICAN = [("o^ʊ", "O"), ("e", "A"), ("ɜːɹ", "ɜɹ"), ("ɜː", "ɜɹ"), ("ɪ^ə", "iə"), ("ɪə", "iə"), ("ː", "")]
_BRITISH = [("e^ə", "ɛː"), ("i^ə", "ɪə"), ("iə", "ɪə"), ("ə^ʊ", "Q"), ("e", "A")]
_AFTER = [("o", "ɔ"), ("ɾ", "T"), ("ʔ", "t"), (_TIE, "")]

_OTHER = [*_SHARED, ("d^z", "ʣ"), ("o^ʊ", "O"), ("ə^ʊ", "Q"), ("s^s", "S"), ("t^s", "ʦ"), (_TIE, ""), ("-", "")]


class Espeak:
    """Pronounces sentences of one language.

    Raises:
        ConfigError: the program is not installed.
    """

    def __init__(self, language: Language) -> None:
        self._program = shutil.which(PROGRAM)
        if self._program is None:
            raise ConfigError(MISSING)
        if language.espeak is None:
            raise InvalidRequestError(
                f"{PROGRAM} does not pronounce {language.title} as Kokoro does: install 'omni-kokoro[misaki]' and "
                f"'misaki[{language.misaki}]', and give --option spelling=misaki; or give phonemes (params.speech.phonemes)"
            )
        self._language = language

    def __call__(self, text: str) -> list[Token]:
        """Return the tokens of a sentence.

        Raises:
            RuntimeError: the program failed.
        """
        parts = runs(text)
        lines = [list(_lines(each.words)) if each.words and not each.phonemes else [] for each in parts]
        said = iter(self.lines([line for each in lines for line in each]))
        found: list[Token] = []
        for each, written in zip(parts, lines, strict=True):
            if written:
                tokens = [token for line in written for token in matched(line.split(), next(said).split())]
                found += _spaced(tokens, each)
            else:
                found.append(Token(each.words, each.mark or each.phonemes, each.space))
        return found

    def lines(self, texts: Sequence[str]) -> list[str]:
        """Return the phonemes of texts without marks, each of at most a line of the program; empty where it says nothing."""
        if not texts:
            return []
        said = self._run([line for text in texts for line in (text, _BETWEEN)])
        if not said:
            raise RuntimeError(f"{PROGRAM} says nothing: are the data of {self._language.title} installed?")
        between, found = said[-1], [""]
        for line in said:
            if line == between:
                found.append("")
            else:  # it may make several lines of one
                found[-1] = f"{found[-1]} {line}".lstrip()
        return [self._letters(each) for each in found[: len(texts)]]

    def _run(self, texts: Sequence[str]) -> list[str]:
        command = [str(self._program), "-q", "--ipa", f"--tie={_TIE}", "-v", str(self._language.espeak)]
        given = "".join(f"{each}\n" for each in texts)
        done = subprocess.run(command, input=given, capture_output=True, encoding="utf-8", timeout=_SECONDS)
        if done.returncode:
            raise RuntimeError(f"{PROGRAM} ended with {done.returncode}: {done.stderr.strip()[:200]}")
        return [line.strip() for line in done.stdout.splitlines() if line.strip()]

    def _letters(self, ipa: str) -> str:
        ipa = _SWITCH.sub("", ipa).replace("_:", "")
        english = self._language.espeak in ("en-us", "en-gb")
        if not english:
            return _replaced(ipa, _OTHER)
        ipa = _SYLLABIC.sub(r"ᵊ\1", _replaced(ipa, _ENGLISH)).replace("\u0329", "")
        return _replaced(_replaced(ipa, _BRITISH if self._language.espeak == "en-gb" else _AMERICAN), _AFTER)


def _lines(words: str) -> Iterator[str]:
    """Cut a run of words to lines that the program reads whole."""
    line: list[str] = []
    size = 0
    for word in words.split():
        for part in (word[at : at + _LETTERS] for at in range(0, len(word), _LETTERS)):
            length = len(part.encode("utf-8")) + 1
            if line and (len(line) == _WORDS or size + length > _BYTES):
                yield " ".join(line)
                line, size = [], 0
            line.append(part)
            size += length
    if line:
        yield " ".join(line)


def _replaced(text: str, pairs: Sequence[tuple[str, str]]) -> str:
    for old, new in pairs:
        text = text.replace(old, new)
    return text


def _spaced(tokens: list[Token], run: Run) -> list[Token]:
    """Return tokens, the last of which has a space only where the text has."""
    return [*tokens[:-1], *(Token(each.text, each.phonemes, run.space) for each in tokens[-1:])]
