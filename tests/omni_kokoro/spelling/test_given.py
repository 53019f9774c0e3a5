"""A text of phonemes, cut as it comes."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_kokoro.spelling.given import LONGEST, PhonemeCutter


def cut(pieces: list[str]) -> list[str]:
    cutter = PhonemeCutter()
    return [part for piece in pieces for part in cutter.feed(piece)] + cutter.finish()


@given(st.text("aˈ .!…”)\n", max_size=60), st.integers(0, 1100), st.lists(st.integers(0, 1200), max_size=6))
def test_parts_hold_all_of_it_however_it_comes(text: str, before: int, places: list[int]) -> None:
    text = "ab c"[: before % 5] * before + text
    at = sorted(min(each, len(text)) for each in places)
    parts = cut([text[begin:end] for begin, end in zip([0, *at], [*at, len(text)], strict=True)])
    assert parts == cut([text])
    assert "".join("".join(parts).split()) == "".join(text.split())
    assert all(len(each) <= LONGEST for each in parts)


@pytest.mark.parametrize("text", ["." * 100_000, "a" * 100_000, '."' * 50_000, ".\n" * 50_000])
def test_a_text_without_ends_takes_no_longer_for_each_character(text: str) -> None:
    begin = time.process_time()
    cut([text])
    assert time.process_time() - begin < 2
