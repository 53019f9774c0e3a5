"""The stage that aligns: the sound passes at once, the words of each part follow it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from omni_core.api import AudioChunk, AudioResult, IncomingMessage, OmniRequest, StagePayload, Word
from omni_transformers.align.stage import Aligner

RATE = 10


class Shares:
    """Gives the words of a text equal shares of its sound; of ``mumble``, it finds none."""

    def words(self, text: str, samples: np.ndarray, rate: int) -> list[Word] | None:
        if text == "break":
            raise RuntimeError("told to break")
        said, share = text.split(), len(samples) / rate / max(1, len(text.split()))
        found = [Word(each, number * share, (number + 1) * share) for number, each in enumerate(said)]
        return None if text == "mumble" else found


def asked(times: str | None = "word") -> OmniRequest:
    return OmniRequest(None, {} if times is None else {"timestamps": times})


def sound(count: int) -> AudioChunk:
    return AudioChunk(np.arange(count, dtype=np.float32), RATE)


def fed(aligner: Aligner, name: str, request: OmniRequest, *chunks: Any) -> None:
    for chunk in chunks:
        aligner.inbox.put(IncomingMessage(name, "stream_chunk", chunk, source="speech", request=request))


def ended(aligner: Aligner, name: str, request: OmniRequest, samples: int) -> None:
    result = AudioResult(np.zeros(samples, np.float32), RATE, notices=["cut"], usage={"completion_audio_tokens": 3})
    payload = StagePayload(name, request, result)
    aligner.inbox.put(IncomingMessage(name, "new_request", payload, source="speech", request=request))
    aligner.inbox.put(IncomingMessage(name, "stream_done", source="speech"))


def told(aligner: Aligner) -> Iterator[tuple[str, Any]]:
    """Yield what a turn has put out."""
    aligner.inbox.put(IncomingMessage("", "stream_done"))  # so that the turn does not wait
    aligner.turn()
    for message in aligner.outbox.drain():
        data = message.data
        if isinstance(data, AudioChunk):
            yield message.request_id, (len(data.samples), [(each.text, each.start, each.end) for each in data.words])
        else:
            yield message.request_id, data


def test_the_sound_passes_at_once_and_the_words_of_each_part_follow() -> None:
    aligner, request = Aligner(Shares()), asked()
    fed(aligner, "a", request, sound(4), sound(2), {"said": "one two"}, sound(4))
    assert [*told(aligner)] == [
        ("a", (4, [])),
        ("a", (2, [])),
        ("a", (4, [])),
        ("a", (0, [("one", 0, 0.3), ("two", 0.3, 0.6)])),
    ]
    fed(aligner, "a", request, {"said": "three"}, {"said": "!"})
    ended(aligner, "a", request, 10)
    assert [*told(aligner)] == [("a", (0, [("three", 0.6, 1.0)]))]
    [(_, (_, words)), (_, result)] = told(aligner)
    assert (words, [each.text for each in result.words]) == ([("!", 1.0, 1.0)], ["one", "two", "three", "!"])
    assert (len(result.samples), result.notices, result.usage) == (10, ["cut"], {"completion_audio_tokens": 3})


def test_a_voice_that_tells_no_parts_is_aligned_at_the_end() -> None:
    aligner, request = Aligner(Shares(), ["text", "speech"]), asked()
    fed(aligner, "a", request, {"text": "one "}, sound(2), {"text": "two"}, sound(2))
    ended(aligner, "a", request, 4)
    assert [data for _, data in told(aligner)] == [(2, []), (2, [])], "the text may go on"
    aligner.inbox.put(IncomingMessage("a", "stream_done", source="text"))
    [words, (_, result)] = told(aligner)
    assert words == ("a", (0, [("one", 0, 0.2), ("two", 0.2, 0.4)]))
    assert [each.text for each in result.words] == ["one", "two"]


@pytest.mark.parametrize("times", [None, "none"])
def test_who_does_not_ask_gets_the_sound_alone(times: str | None) -> None:
    aligner, request = Aligner(Shares()), asked(times)
    fed(aligner, "a", request, sound(4), {"said": "one"})
    ended(aligner, "a", request, 4)
    [passed, (_, result)] = told(aligner)
    assert (passed, result.words) == (("a", (4, [])), [])


def test_words_that_cannot_be_aligned_are_named() -> None:
    aligner, request = Aligner(Shares()), asked()
    fed(aligner, "a", request, sound(2), {"said": "mumble"})
    ended(aligner, "a", request, 2)
    [_, (_, result)] = told(aligner)
    assert result.words == []
    assert result.notices == ["cut", "the words of 'mumble' have no times: they cannot be aligned with their sound"]


def test_one_part_is_aligned_in_a_turn_and_a_failure_is_that_of_its_request() -> None:
    aligner, request = Aligner(Shares()), asked()
    fed(aligner, "a", request, sound(2), {"said": "one"}, sound(2), {"said": "two"})
    fed(aligner, "b", request, sound(2), {"said": "break"})
    first = [*told(aligner)]
    assert [name for name, _ in first] == ["a", "a", "b", "a"]
    [(name, error)] = told(aligner)
    assert (name, str(error)) == ("b", "told to break")
    assert [*told(aligner)] == [("a", (0, [("two", 0.2, 0.4)]))]
