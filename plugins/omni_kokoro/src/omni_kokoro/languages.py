"""The languages of the published voices, by the first letter of a voice's name. Imports no torch."""

from __future__ import annotations

from attrs import frozen

from omni_core.api import InvalidRequestError, did_you_mean, shown


@frozen
class Language:
    """A language.

    Attributes:
        letter: with which its voices begin.
        names: codes that a request may give.
        title: for messages.
        espeak: espeak-ng's voice; ``None``: it does not pronounce this language as Kokoro does.
        misaki: what ``misaki`` needs for it, as its extra; ``None``: it has nothing of its own.
    """

    letter: str
    names: tuple[str, ...]
    title: str
    espeak: str | None
    misaki: str | None = None


LANGUAGES = (
    Language("a", ("en-us", "en"), "American English", "en-us", "en"),
    Language("b", ("en-gb",), "British English", "en-gb", "en"),
    Language("e", ("es",), "Spanish", "es"),
    Language("f", ("fr-fr", "fr"), "French", "fr-fr"),
    Language("h", ("hi",), "Hindi", "hi"),
    Language("i", ("it",), "Italian", "it"),
    Language("j", ("ja",), "Japanese", None, "ja"),
    Language("p", ("pt-br", "pt"), "Brazilian Portuguese", "pt-br"),
    Language("z", ("zh", "cmn"), "Mandarin Chinese", None, "zh"),
)

_BY_NAME = {name: each for each in LANGUAGES for name in (each.letter, *each.names)}


def language_of(voice: str, wanted: str | None) -> Language:
    """Return the language of a request.

    Args:
        voice: the name of a voice: its first letter says its language.
        wanted: a code or a letter, if the request gives one.

    Raises:
        InvalidRequestError: there is no such language, or neither says one.
    """
    if wanted is not None:
        found = _BY_NAME.get(wanted.strip().lower().replace("_", "-"))
        if found is None:
            known = did_you_mean(wanted, (each.names[0] for each in LANGUAGES), listing="the languages")
            raise InvalidRequestError(f"params.speech.language: {shown(wanted)} is not spoken{known}")
        return found
    found = _BY_NAME.get(voice[:1].lower())
    if found is None:
        raise InvalidRequestError(
            f"params.speech.language: needed, because the name of the voice {voice!r} begins with no language's letter"
        )
    return found
