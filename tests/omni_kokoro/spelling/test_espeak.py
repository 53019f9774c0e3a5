"""espeak-ng's phonemes in Kokoro's letters."""

from __future__ import annotations

import shutil

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


def test_several_lines_of_one_run_are_joined() -> None:
    long = "word " * 400
    assert len(Espeak(language_of("af", None)).lines([long, "one"])) == 2


def test_a_text_gives_the_program_no_options_and_no_phonemes_of_its_own() -> None:
    spell = Espeak(language_of("af", None))
    assert phonemes_of(spell("--version")) == phonemes_of(spell("version")) or "vˈɜɹʒən" in phonemes_of(
        spell("--version")
    )
    assert phonemes_of(spell("[[h@l'oU]] hi"))
