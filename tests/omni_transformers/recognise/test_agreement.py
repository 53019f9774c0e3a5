"""Windows of a sound that agree: with a recogniser that knows what is said when, and mishears a word that a window cuts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_core.api import Segment, Transcript, TranscriptChunk, Word
from omni_testing.outputs import check_transcript
from omni_transformers.recognise.agreement import Agreement, Window
from omni_transformers.recognise.hypotheses import Hypothesis

RATE = 1000
TEXT = "It was the best of times. It was the worst of times, it was the age of wisdom. It was the age of foolishness."


def spoken(text: str, pauses: dict[int, float] | None = None, word: float = 0.4) -> list[Word]:
    """Return the words of a text, ``word`` seconds each, with silences before some of them."""
    found, at = list[Word](), 0.0
    for number, each in enumerate(text.split()):
        at += (pauses or {}).get(number, 0.0)
        found.append(Word(each, at, at + word * 0.5))
        at += word
    return found


def sound_of(words: Sequence[Word], seconds: float) -> np.ndarray:
    samples = np.zeros(round(seconds * RATE), np.float32)
    for each in words:
        samples[round(each.start * RATE) : round(each.end * RATE)] = 0.1
    return samples


class Recogniser:
    """Writes what is said in a window; of a word that is cut, half.

    Attributes:
        times: that it tells.
        asked: the windows.
    """

    def __init__(self, words: Sequence[Word], times: str = "none") -> None:
        self.words, self.times = words, times
        self.asked: list[Window] = []

    def __call__(self, window: Window) -> Hypothesis:
        self.asked.append(window)
        begin, end = window.begin / RATE, window.end / RATE
        found = [each for each in self.words if each.end > begin + 0.01 and each.start < end - 0.01]
        texts = [each.text if each.end <= end else each.text[:1] + "?" for each in found]
        words = [
            Word(text, max(each.start, begin) - begin, min(each.end, end) - begin)
            for each, text in zip(found, texts, strict=True)
        ]
        parts: list[list[Word]] = [[]]
        for one in words:
            parts[-1].append(one)
            if one.text.endswith("."):
                parts.append([])
        segments = [Segment(" ".join(w.text for w in part), part[0].start, part[-1].end) for part in parts if part]
        return Hypothesis.of(
            Transcript(
                " ".join(texts), None, segments if self.times != "none" else [], words if self.times == "word" else []
            ),
            begin,
        )


def run(agreement: Agreement, samples: np.ndarray, cuts: Sequence[int], recognise: Callable[[Window], Hypothesis]):
    """Return the chunks and the transcript of a sound that comes in pieces."""
    chunks: list[TranscriptChunk | None] = []

    def go_on() -> None:
        while (window := agreement.due()) is not None:
            assert 0 <= window.begin < window.end <= agreement.heard
            assert window.end - window.begin <= agreement.most
            assert len(agreement.samples(window)) == window.end - window.begin
            chunks.append(agreement.take(window, recognise(window)))

    for piece in np.split(samples, cuts):
        agreement.hear(piece)
        go_on()
    agreement.end()
    go_on()
    chunks.append(agreement.finish())
    told = [each for each in chunks if each is not None]
    result = Transcript(
        agreement.text, None, agreement.segments, agreement.words, agreement.heard / RATE if agreement.heard else None
    )
    check_transcript(told, result, agreement.times)
    assert "".join(each.text for each in agreement.segments) == (
        agreement.text if agreement.times != "none" else ""
    ) or not agreement.text.startswith(" ")
    return told, result


def agreement(times: str = "none", most: float = 30.0, behind: float = math.inf) -> Agreement:
    return Agreement(RATE, RATE, round(most * RATE), behind, times)


@pytest.mark.parametrize("times", ["none", "segment", "word"])
@pytest.mark.parametrize("known", ["none", "segment", "word"])
@pytest.mark.parametrize("most", [30.0, 4.0])
def test_the_text_is_what_is_said(times: str, known: str, most: float) -> None:
    if ("none", "segment", "word").index(times) > ("none", "segment", "word").index(known):
        pytest.skip("it tells no such times")
    words = spoken(TEXT, {6: 0.5, 17: 0.3})
    samples = sound_of(words, words[-1].end + 0.3)
    _, result = run(agreement(times, most), samples, range(100, len(samples), 100), Recogniser(words, known))
    assert result.text == TEXT
    if times == "word":
        assert [each.text for each in result.words] == TEXT.split()
        assert [each.start for each in result.words] == pytest.approx([each.start for each in words])
    if times != "none":
        assert "".join(each.text for each in result.segments).strip() == TEXT
        assert all(one.end <= other.start + 0.01 for one, other in pairwise(result.segments))


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_every_cut_of_the_sound_gives_the_same(data: st.DataObject) -> None:
    pauses = data.draw(st.dictionaries(st.integers(0, 23), st.floats(0.1, 4.0), max_size=4))
    words = spoken(TEXT, pauses, data.draw(st.sampled_from([0.2, 0.45])))
    samples = sound_of(words, words[-1].end + data.draw(st.floats(0.0, 3.0)))
    times = data.draw(st.sampled_from(["none", "segment", "word"]))
    most = data.draw(st.sampled_from([3.0, 5.0, 30.0]))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(samples)), max_size=12)))
    made = [
        run(agreement(times, most), samples, each, Recogniser(words, times))
        for each in (cuts, range(0, len(samples), 37))
    ]
    assert made[0] == made[1]
