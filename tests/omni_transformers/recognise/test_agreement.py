"""Windows of a sound that agree: with a recogniser that knows what is said when, and mishears a word that a window cuts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import combinations_with_replacement, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_core.api import Segment, Transcript, TranscriptChunk, Word
from omni_testing.outputs import check_transcript
from omni_transformers.recognise.agreement import Agreement, Window
from omni_transformers.recognise.hypotheses import Hypothesis, pieces_of, place_behind
from omni_transformers.recognise.live_buffer import LiveBuffer

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


def run(
    agreement: Agreement, samples: np.ndarray, cuts: Sequence[int], recognise: Callable[[Window], Hypothesis]
) -> tuple[list[TranscriptChunk], Transcript]:
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
    if agreement.times != "none":
        assert "".join(each.text for each in agreement.segments).strip() == agreement.text
    return told, result


def agreement(times: str = "none", most: float = 30.0, behind: float = math.inf) -> Agreement:
    return Agreement(RATE, RATE, round(most * RATE), behind, times)


TIMES = ("none", "segment", "word")


@pytest.mark.parametrize("most", [30.0, 4.0])
@pytest.mark.parametrize(("times", "known"), [*combinations_with_replacement(TIMES, 2)])
def test_the_text_is_what_is_said(times: str, known: str, most: float) -> None:
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


def test_a_silence_closes_a_window_and_the_next_one_begins_after_it() -> None:
    words = spoken(TEXT, {6: 5.0})
    recogniser = Recogniser(words)
    samples = sound_of(words, words[-1].end + 0.3)
    _, result = run(agreement(), samples, range(100, len(samples), 100), recogniser)
    assert result.text == TEXT
    closed = next(each for each in recogniser.asked if each.closes)
    assert (closed.begin, closed.end) == (0, 4000)  # the first second without a sound ends there
    after = recogniser.asked[recogniser.asked.index(closed) + 1]
    assert (after.begin, after.end) == (6700, 8000)  # nothing was asked for in between


def test_silence_asks_for_nothing() -> None:
    recogniser = Recogniser([])
    told, result = run(agreement(), np.full(60_000, 0.001, np.float32), range(0, 60_000, 999), recogniser)
    assert (recogniser.asked, told, result.text) == ([], [], "")


def test_noise_without_words_keeps_windows_short() -> None:
    recogniser = Recogniser([])
    samples = np.full(20_000, 0.1, np.float32)
    assert run(agreement(), samples, [], recogniser)[1].text == ""
    assert max(each.end - each.begin for each in recogniser.asked) == 2000


def test_late_hypotheses_are_left_out_and_no_sound_is() -> None:
    words = spoken(TEXT * 5)
    samples = sound_of(words, words[-1].end + 0.3)
    late, all_ = Recogniser(words, "segment"), Recogniser(words, "segment")
    _, result = run(agreement(behind=0), samples, range(0, len(samples), 5000), late)
    assert result.text == run(agreement(), samples, [], all_)[1].text
    assert len(late.asked) < len(all_.asked) / 3
    _, result = run(agreement(behind=0), samples, [], late := Recogniser(words, "segment"))
    assert "".join(result.text.split()) == "".join((TEXT * 5).split())
    assert late.asked[0].end == 30_000
    assert len(late.asked) < 6
    assert not [each for each in late.asked[:-1] if each.closes]  # segments say where each is divided


def test_what_a_limit_cut_is_not_agreed_on() -> None:
    machine = agreement()
    machine.hear(np.full(3000, 0.1, np.float32))
    for number, (text, final) in enumerate([("a b c", ""), ("a b b b", ""), ("a b b b", ""), ("a b c", "a b")]):
        window = machine.due() or Window(0, 3000, False, False)
        written = Transcript(text, finish_reason="length" if 0 < number < 3 else "stop")
        machine.take(window, Hypothesis.of(written, 0.0))
        assert machine.text == final


def test_samples_are_dropped_that_no_window_needs() -> None:
    machine = agreement()
    words = spoken(TEXT * 9)
    run(machine, sound_of(words, 120.0), range(0, 120_000, 1000), Recogniser(words, "word"))
    assert machine.heard == 120_000
    assert sum(map(len, machine._sound._parts)) < 30_000


@pytest.mark.parametrize(
    ("known", "words", "place"),
    [
        ("", "a b", (0, 0)),
        ("a b", "a b c", (2, 0)),
        ("a b.", "A, b c", (2, 0)),
        ("a b c", "a x c d", (3, 1)),
        ("a b c", "a c d", (2, 1)),
        ("a c", "a b c d", (3, 1)),
        ("a b", "", (0, 2)),
    ],
)
def test_a_hypothesis_goes_on_behind_what_is_final(known: str, words: str, place: tuple[int, int]) -> None:
    assert place_behind(known.split(), words.split()) == place


def test_languages_without_spaces_are_compared_by_characters() -> None:
    assert pieces_of("你好 world。再见") == ["你", "好", " world。", "再", "见"]
    assert pieces_of(" Hello  you ") == [" Hello", "  you"]
    machine = agreement()
    machine.hear(np.full(2000, 0.1, np.float32))
    for text in ("你好", "你好吗"):
        window = machine.due()
        assert window is not None
        machine.take(window, Hypothesis.of(Transcript(text), 0.0))
    assert machine.text == "你好"


def test_the_longest_silence_is_where_a_window_is_divided() -> None:
    sound = LiveBuffer(RATE)
    samples = np.full(5000, 0.1, np.float32)
    samples[1000:1200] = samples[3000:3500] = 0
    sound.add(samples)
    assert sound.quiet_place(0, 5000) == 3250
    assert sound.quiet_place(0, 2000) == 1100
    samples[4000:4100] = 0.05
    quiet = LiveBuffer(RATE)
    quiet.add(samples[3500:])
    assert quiet.quiet_place(0, 1500) == 550
