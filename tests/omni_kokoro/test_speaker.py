"""The stage that makes sound: order, errors, words."""

from __future__ import annotations

from typing import Any

import numpy as np

from omni_core.api import IncomingMessage, OmniRequest, StagePayload
from omni_kokoro.sentence import Sentence, Spoken
from omni_kokoro.speaker import Speaker


class Network:
    """Speaks 600 samples of a phoneme; knows no phoneme 666."""

    def __init__(self) -> None:
        self.passes: list[list[int]] = []

    def speak(self, sentences: list[Sentence]) -> list[Spoken]:
        self.passes.append([each.ids[0] for each in sentences])
        if any(666 in each.ids for each in sentences):
            raise ValueError("666")
        counts = [len(each.ids) + 2 for each in sentences]
        return [Spoken(np.zeros(600 * count, np.float32), np.ones(count, np.int64)) for count in counts]


def put(speaker: Speaker, request_id: str, *sentences: list[int], words: Any = ()) -> None:
    for ids in sentences:
        chunk = {"ids": ids, "style": np.zeros(16, np.float32), "speed": 1.0, "seed": 0, "words": [*words]}
        speaker.inbox.put(IncomingMessage(request_id, "stream_chunk", chunk, None, "phonemes", OmniRequest()))
    payload = StagePayload(request_id, OmniRequest(), {"notices": ["n"]})
    speaker.inbox.put(IncomingMessage(request_id, "new_request", payload, None, "phonemes", OmniRequest()))
    speaker.inbox.put(IncomingMessage(request_id, "stream_done", None, None, "phonemes", OmniRequest()))


def run(speaker: Speaker) -> dict[str, list[Any]]:
    while speaker.turn() and speaker.unfinished:
        continue
    found: dict[str, list[Any]] = {}
    for each in speaker.outbox.drain():
        found.setdefault(each.request_id, []).append(each)
    return found


def test_first_sentences_are_spoken_before_later_ones() -> None:
    network = Network()
    speaker = Speaker(network, 1)
    put(speaker, "long", [1], [2], [3])
    put(speaker, "short", [4])
    run(speaker)
    assert network.passes == [[1], [4], [2], [3]]


def test_sentences_of_several_requests_share_a_pass() -> None:
    network = Network()
    speaker = Speaker(network, 2)
    for name, ids in (("a", [1]), ("b", [2]), ("c", [3])):
        put(speaker, name, ids)
    run(speaker)
    assert network.passes == [[1, 2], [3]]


def test_a_sentence_that_fails_fails_its_request_alone() -> None:
    speaker = Speaker(Network(), 8)
    put(speaker, "good", [1])
    put(speaker, "bad", [666])
    found = run(speaker)
    assert found["bad"][-1].type == "error"
    assert found["good"][-1].type == "result"
    assert len(found["good"][-1].data.samples) == 1800


def test_words_have_the_times_of_their_phonemes_in_the_whole_sound() -> None:
    speaker = Speaker(Network(), 8)
    put(speaker, "r", [1, 2, 3, 4, 5], [1, 2], words=[["ab", 0, 2]])
    found = run(speaker)["r"]
    chunks, result = [each.data for each in found[:-1]], found[-1].data
    assert [each.start for each in chunks] == [0.0, 0.175]
    times = [(each.text, each.start, each.end) for each in result.words]
    assert times == [("ab", 0.025, 0.075), ("ab", 0.2, 0.25)]
    assert [word for each in chunks for word in each.words] == result.words
    assert np.array_equal(np.concatenate([each.samples for each in chunks]), result.samples)
    assert result.notices == ["n"]
    assert result.usage == {"completion_audio_tokens": 11}
