"""espeak-ng's phonemes in Kokoro's letters."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from omni_kokoro.languages import LANGUAGES, language_of
from omni_kokoro.spelling.espeak import Espeak
from omni_kokoro.spelling.tokens import known, phonemes_of
from omni_kokoro.tiny import VOCABULARY

pytestmark = pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="espeak-ng is not installed")


@pytest.mark.parametrize(
    ("voice", "text", "phonemes"),
    [
        ("af", 'Hello, "world"!', 'həlˈO, "wˈɜɹld"!'),
        ("af", "How now; the judge chose a boy", "hˌW nˈW; ðə ʤˈʌʤ ʧˈOz ɐ bˈY".replace("ɐ", "ə")),
        ("bf", "The bath.", "ðə bˈaθ."),
        ("ff", "Le weekend.", "lə wiːkˈɛnd."),
        ("ef", "¿Qué tal?", "kˈe tˈal?"),
    ],
)
def test_a_sentence_is_in_the_letters_of_kokoro(voice: str, text: str, phonemes: str) -> None:
    assert phonemes_of(Espeak(language_of(voice, None))(text)) == phonemes


@pytest.mark.parametrize("language", [each for each in LANGUAGES if each.espeak], ids=lambda each: each.letter)
def test_almost_every_phoneme_is_known(language: object) -> None:
    text = "Papa, zero, 42, internet, chocolate, numero 1000; Maria. नमस्ते"
    tokens, missing = known(Espeak(language)(text), dict.fromkeys(VOCABULARY, 1))
    assert len(phonemes_of(tokens)) > 60
    assert missing <= {"\u032a", "\u0361", "\u0325", "\u0329", "ɚ", "ɫ"}


@pytest.mark.parametrize(
    ("voice", "words", "count"),
    [("hf", "नमस्ते भारत एक बड़ा देश है", 25), ("ff", "été à l'école", 60), ("af", "so x", 240), ("af", "0 1 2", 200)],
)
def test_a_long_run_is_said_as_its_words_are(voice: str, words: str, count: int) -> None:
    spell = Espeak(language_of(voice, None))
    said = [each.text for each in spell(words)]
    tokens = spell(" ".join([words] * count))
    assert [each.text for each in tokens] == said * count
    stress = str.maketrans("", "", "ˈˌ")  # depends on the words around
    heard, once = (phonemes_of(each).translate(stress).split() for each in (tokens, spell(words)))
    assert len(heard) == len(once) * count
    assert heard[: len(once)] == once


def test_words_keep_their_phonemes_where_nothing_is_said_of_others() -> None:
    spell = Espeak(language_of("af", None))
    one, mute, two = spell.lines(["hello -- you", "\ua878", "two"])
    assert (one, mute, two) == ("həlˈO ju", "", "tˈu")
    assert spell.lines([]) == []


def test_a_program_that_says_nothing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "espeak-ng").write_text("#!/bin/sh\nexec cat > /dev/null\n")
    (tmp_path / "espeak-ng").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(RuntimeError, match="says nothing"):
        Espeak(language_of("af", None))("hello")


def test_a_text_gives_the_program_no_options_and_no_phonemes_of_its_own() -> None:
    spell = Espeak(language_of("af", None))
    assert phonemes_of(spell("--version")) == phonemes_of(spell("version")) or "vˈɜɹʒən" in phonemes_of(
        spell("--version")
    )
    assert phonemes_of(spell("[[h@l'oU]] hi"))
