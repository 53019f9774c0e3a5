"""Texts in turns: no text is lost, no turn is longer than the limit, and a text that fits stays whole."""

from __future__ import annotations

import pytest
from fish_cases import TWO_SPEAKERS
from hypothesis import given
from hypothesis import strategies as st

from omni_fish_s2.text import MOST_SPEAKERS, SPEAKER_TAG, split_text


def test_a_short_text_stays_as_it_is() -> None:
    assert split_text("  Two sentences. Both short!\n", 512) == ["  Two sentences. Both short!\n"]


@pytest.mark.parametrize(
    ("text", "most", "parts"),
    [
        ("One. Two! Three?", 8, ["One. Two!", "Three?"]),
        ("One. Two! Three four five.", 12, ["One. Two!", "Three four", "five."]),
        ("今天很好。明天也好。", 16, ["今天很好。", "明天也好。"]),
        ("a, b; c and d", 5, ["a, b; c", "and d"]),
        ("Pneumonoultramicroscopic", 7, ["Pneumo", "noultr", "amicro", "scopic"]),
        ("Before.<|speaker:0|>Hello.<|speaker:1|> Yes. ", 60, ["Before.\n<|speaker:0|>Hello.\n<|speaker:1|> Yes."]),
        ("<|speaker:3|>First one. Second one.", 24, ["<|speaker:3|>First one.", "<|speaker:3|>Second one."]),
    ],
)
def test_splitting(text: str, most: int, parts: list[str]) -> None:
    assert split_text(text, most) == parts


def test_at_most_five_turns_of_speakers_in_one_go() -> None:
    text = "".join(f"<|speaker:{n % 3}|>Hi." for n in range(12))
    parts = split_text(text, 512)
    assert [len(SPEAKER_TAG.findall(part)) for part in parts] == [MOST_SPEAKERS, MOST_SPEAKERS, 2]


def test_turns_that_are_too_long_together_are_apart() -> None:
    assert len(split_text(TWO_SPEAKERS, 90)) == 2
    assert len(split_text(TWO_SPEAKERS, 40)) == 5


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=300), st.integers(24, 80))
def test_nothing_is_lost_and_nothing_too_long(text: str, most: int) -> None:
    parts = split_text(text, most)
    for part in parts:
        size = len(part.encode())
        joints = part.count(" ") + part.count("\n")
        assert size <= most + joints, (part, size)
    assert "".join("".join(parts).split()) == "".join(text.split()) or SPEAKER_TAG.search(text)
