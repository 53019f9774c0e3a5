"""The stage that pronounces: a text, whole or still being written, to sentences of phonemes with the vectors of a voice."""

from __future__ import annotations

import logging
import shutil
from collections import deque
from typing import Any

from attrs import define, field

from omni_core.api import (
    SEED,
    VOICE,
    InvalidRequestError,
    OmniRequest,
    ReasoningChunk,
    RequestTooLargeError,
    SentenceCutter,
    StagePayload,
    StreamingScheduler,
    TextChunk,
    text_to_speak,
)
from omni_kokoro.config import KokoroConfig, read_config
from omni_kokoro.interface import GROUP, MOST
from omni_kokoro.languages import Language, language_of
from omni_kokoro.spelling.espeak import MISSING, PROGRAM, Espeak
from omni_kokoro.spelling.given import Given, PhonemeCutter
from omni_kokoro.spelling.misaki import misaki
from omni_kokoro.spelling.tokens import Spell, Token, known, phonemes_of, pieces
from omni_kokoro.voices import Voices

logger = logging.getLogger(__name__)


@define(eq=False)
class _Text:
    """The text of a request so far. ``sentences``: those that are not pronounced yet; ``cut``: all of it is in sentences;
    ``may_be_empty``: another pipeline writes it.
    """

    request_id: str
    voice: list[tuple[str, float]]
    spell: Spell
    speed: float
    seed: int
    cutter: SentenceCutter | PhonemeCutter
    sentences: deque[str] = field(factory=deque)
    characters: int = 0
    spoken: int = 0
    missing: set[str] = field(factory=set)
    cut: bool = False
    may_be_empty: bool = False


class Reader(StreamingScheduler[_Text]):
    """Pronounces a sentence of each request in a turn, so that no long text keeps others waiting.

    Emits ``{"ids", "style", "speed", "seed", "words"}``: ``words`` are texts, each with its first phoneme and the number of them.
    """

    def __init__(self, config: KokoroConfig, voices: Voices, spelling: str, most: int) -> None:
        super().__init__()
        self._config, self._voices, self._spelling, self._most = config, voices, spelling, most
        self._spells: dict[str, Spell] = {}

    def new_state(self, request_id: str, request: OmniRequest | None) -> _Text:
        asked = request or OmniRequest()
        given = asked.params.get(GROUP, {})
        voice = self._voices.named(asked.metadata.get(VOICE))
        speed, seed = float(given.get("speed") or 1.0), int(given.get(SEED) or 0)
        if given.get("phonemes"):
            return _Text(request_id, voice, Given(self._config.vocabulary), speed, seed, PhonemeCutter())
        spell = self._spell(language_of(voice[0][0], given.get("language")))
        return _Text(request_id, voice, spell, speed, seed, SentenceCutter())

    def on_payload(self, state: _Text, payload: StagePayload) -> None:
        state.may_be_empty = payload.request.may_be_empty
        text = text_to_speak(payload.request)
        if text is not None:
            self._read(state, text)

    def on_chunk(self, state: _Text, chunk: Any, metadata: dict[str, Any] | None) -> None:
        if isinstance(chunk, ReasoningChunk):
            return  # nobody says what is thought only
        text = chunk.text if isinstance(chunk, TextChunk) else chunk
        if not isinstance(text, str):
            raise InvalidRequestError(f"a chunk of a text to speak must be a TextChunk, is {type(text).__name__}")
        self._read(state, text)

    def step(self, states: dict[str, _Text]) -> dict[str, BaseException]:
        failures: dict[str, BaseException] = {}
        self.unfinished = {}
        for request_id, state in states.items():
            if not state.cut and self.is_whole(request_id):
                state.sentences.extend(state.cutter.finish())
                state.cut = True
            if not state.sentences or self.is_aborted(request_id):
                continue
            try:
                self._pronounce(state, state.sentences.popleft())
            except BaseException as error:
                failures[request_id] = error
                continue
            if state.sentences:
                self.unfinished[request_id] = None
        if self.unfinished:
            self.wait = 0.0
        return failures

    def finish(self, request_id: str, state: _Text) -> dict[str, Any]:
        if not state.spoken and not state.may_be_empty:
            raise InvalidRequestError("messages: there is nothing to speak: no word that can be pronounced")
        notices = []
        if state.missing:
            notices.append(f"phonemes that this model does not know were left out: {' '.join(sorted(state.missing))}")
        return {"notices": notices}

    def _read(self, state: _Text, text: str) -> None:
        state.characters += len(text)
        if state.characters > self._most:
            raise RequestTooLargeError(
                f"the text to speak is over the limit of {self._most} characters (--option max_characters)"
            )
        state.sentences.extend(state.cutter.feed(text))

    def _pronounce(self, state: _Text, sentence: str) -> None:
        tokens, missing = known(state.spell(sentence), self._config.vocabulary)
        state.missing |= missing
        for piece in pieces(tokens, self._config.most, first=not state.spoken):
            phonemes = phonemes_of(piece)
            if not any(each.isalpha() for each in phonemes):
                continue  # marks alone
            ids = [self._config.vocabulary[each] for each in phonemes]
            spoken = {
                "ids": ids,
                "style": self._voices.style(state.voice, len(ids)),
                "speed": state.speed,
                "seed": state.seed + state.spoken,
                "words": _places(piece, len(ids)),
            }
            self.emit(state.request_id, spoken, target="speak")
            state.spoken += 1

    def _spell(self, language: Language) -> Spell:
        found = self._spells.get(language.letter)
        if found is None:
            found = misaki(language) if self._spelling == "misaki" else Espeak(language)
            self._spells[language.letter] = found
        return found


def _places(tokens: list[Token], length: int) -> list[list[Any]]:
    """Return the words of a piece: text, first phoneme, number of phonemes."""
    found: list[list[Any]] = []
    begin = 0
    for each in tokens:
        if any(letter.isalnum() for letter in each.text) and each.phonemes:
            found.append([each.text, begin, min(begin + len(each.phonemes), length) - begin])
        begin += len(each.spoken)
    return found


def create_reader(
    model_path: str, voices: str | None = None, spelling: str = "espeak", max_characters: int = MOST
) -> Reader:
    """Return the stage.

    Raises:
        ConfigError: the voices cannot be read.
    """
    config = read_config(model_path)
    if spelling == "espeak" and shutil.which(PROGRAM) is None:
        logger.warning("no text can be spoken: %s", MISSING)
    return Reader(config, Voices(model_path, voices, 2 * config.style), spelling, max_characters)
