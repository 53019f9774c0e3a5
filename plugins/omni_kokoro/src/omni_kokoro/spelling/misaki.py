"""Pronunciation by the package misaki, which Kokoro was trained with: an extra."""

from __future__ import annotations

import importlib
import re
from typing import Any

from omni_core.api import ConfigError
from omni_kokoro.languages import Language
from omni_kokoro.spelling.espeak import Espeak
from omni_kokoro.spelling.tokens import Spell, Token, matched

_MARKS = re.compile(r'([;:,.!?—…"()“”])')


def misaki(language: Language) -> Spell:
    """Return what pronounces sentences of a language: misaki where it has one of its own, else espeak-ng.

    Raises:
        ConfigError: it is not installed.
    """
    if language.misaki is None:
        return Espeak(language)
    try:
        module = importlib.import_module(f"misaki.{language.misaki}")
        if language.misaki == "en":
            return _English(module, language)
        made = module.JAG2P() if language.misaki == "ja" else module.ZHG2P()
    except ImportError as error:
        raise ConfigError(
            f"misaki cannot pronounce {language.title} here ({error}): pip install 'omni-kokoro[misaki]' 'misaki[{language.misaki}]' "
            "(Python 3.12 or older)"
        ) from error
    return lambda text: _unaligned(text, made(text)[0])


class _English:
    def __init__(self, module: Any, language: Language) -> None:
        spell = Espeak(language)

        def unknown(token: Any) -> tuple[str | None, int | None]:
            return spell.lines([token.text])[0], 2

        self._made = module.G2P(trf=False, british=language.letter == "b", fallback=unknown, unk="")

    def __call__(self, text: str) -> list[Token]:
        _, tokens = self._made(text)
        return [Token(each.text, each.phonemes or "", bool(each.whitespace)) for each in tokens]


def _unaligned(text: str, phonemes: str) -> list[Token]:
    """Return tokens of a text whose words are not told apart: Japanese, Chinese."""
    parts = [each for each in _MARKS.split(phonemes) if each.strip()]
    words = [each for each in _MARKS.split(text) if each.strip()]
    if len(words) != len(parts):
        words = parts
    found: list[Token] = []
    for number, (word, said) in enumerate(zip(words, parts, strict=True)):
        space = said.endswith(" ") or (number + 1 < len(parts) and parts[number + 1].startswith(" "))
        if _MARKS.fullmatch(said):
            found.append(Token("", said, space))
        else:
            *before, last = matched(word.split(), said.split())
            found += [*before, Token(last.text, last.phonemes, space)]
    return found
