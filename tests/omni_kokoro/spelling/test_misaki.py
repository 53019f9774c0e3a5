"""Pronunciation by misaki, with a stand-in for the package."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest

from omni_core.api import ConfigError
from omni_kokoro.languages import language_of
from omni_kokoro.spelling import misaki as spelling
from omni_kokoro.spelling.misaki import misaki
from omni_kokoro.spelling.tokens import Token, phonemes_of


class English:
    """Knows one word, and asks for the other."""

    def __init__(self, trf: bool, british: bool, fallback: Any, unk: str) -> None:
        self.british, self.fallback = british, fallback

    def __call__(self, text: str) -> tuple[str, list[Any]]:
        first = types.SimpleNamespace(text="Hello", phonemes="hələʊ" if self.british else "həlˈO", whitespace=" ")
        other = types.SimpleNamespace(text="Kokoro", phonemes=None, whitespace="")
        other.phonemes = self.fallback(other)[0]
        return "", [first, other, types.SimpleNamespace(text="!", phonemes="!", whitespace="")]


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        "en": {"G2P": English},
        "ja": {"JAG2P": lambda: lambda text: ("kˈoɲɲi, sˈekai.", None)},
        "zh": {"ZHG2P": lambda: lambda text: ("ni↓xau↓", None)},
    }
    monkeypatch.setitem(sys.modules, "misaki", types.ModuleType("misaki"))
    for name, members in given.items():
        module = types.ModuleType(f"misaki.{name}")
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, f"misaki.{name}", module)
    spell = types.SimpleNamespace(lines=lambda texts: ["kˈOkəɹO"])
    monkeypatch.setattr(spelling, "Espeak", lambda language: spell)


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(("voice", "first"), [("af", "həlˈO"), ("bf", "hələʊ")])
def test_english_has_its_words_and_asks_espeak_for_unknown_ones(voice: str, first: str) -> None:
    found = misaki(language_of(voice, None))("Hello Kokoro!")
    assert found == [Token("Hello", first, True), Token("Kokoro", "kˈOkəɹO"), Token("!", "!")]


@pytest.mark.usefixtures("package")
def test_japanese_and_chinese_keep_their_marks() -> None:
    assert phonemes_of(misaki(language_of("jf", None))("こんにちは、世界。")) == "kˈoɲɲi, sˈekai."
    assert phonemes_of(misaki(language_of("zf", None))("你好")) == "ni↓xau↓"


def test_without_it_the_error_says_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "misaki.ja", None)
    with pytest.raises(ConfigError, match=r"'misaki\[ja\]'"):
        misaki(language_of("jf", None))
