"""Numbers in English words, as SmolVLM's processor writes those of frames by num2words."""

from __future__ import annotations

_BELOW_TWENTY = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


def num2words(number: int) -> str:
    """Return a number from 0 to 9,999 in words.

    Raises:
        ValueError: it is another one.
    """
    if not 0 <= number < 10_000:
        raise ValueError(f"{number} is not from 0 to 9999")
    if number < 20:
        return _BELOW_TWENTY[number]
    if number < 100:
        tens, rest = divmod(number, 10)
        return _TENS[tens - 2] + (f"-{_BELOW_TWENTY[rest]}" if rest else "")
    size, name = (1000, "thousand") if number >= 1000 else (100, "hundred")
    many, rest = divmod(number, size)
    joint = ", " if rest >= 100 else " and "
    return f"{_BELOW_TWENTY[many]} {name}" + (joint + num2words(rest) if rest else "")
