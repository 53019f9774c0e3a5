"""Reads values of other systems' files: each reader returns the value in our form, or says what it must be."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

Reader = Callable[[Any], Any]
"""Returns a value in our form. Raises ``ValueError`` with the words for what it must be."""

_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
"""Texts that YAML 1.1, which other systems read, takes for booleans."""

_DTYPES = {"half": "float16", "float": "float32", "fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}
_KNOWN_DTYPES = ("auto", "float32", "bfloat16", "float16")


def flag(value: Any) -> bool:
    """Read a boolean."""
    if isinstance(value, str):
        value = _WORDS.get(value.lower(), value)
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def count(value: Any) -> int:
    """Read a number of things, from 1 on."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**53:
        raise ValueError("must be a whole number from 1 on")
    return value


def whole(value: Any) -> int:
    """Read a whole number from 0 on."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise ValueError("must be a whole number from 0 on")
    return value


def number(value: Any) -> float | int:
    """Read a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError("must be a number")
    return value


def share(value: Any) -> float:
    """Read a share of a device's memory, above 0 and up to 1."""
    if not 0 < (found := float(number(value))) <= 1:
        raise ValueError("must be a share of the memory, above 0 and up to 1")
    return found


def text(value: Any) -> str:
    """Read a text that is not empty."""
    if not isinstance(value, str) or not value:
        raise ValueError("must be a text")
    return value


def word(value: Any) -> str:
    """Read the value of an environment variable."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("must be a text or a number")
    return str(value)


def scalar(value: Any) -> Any:
    """Read a number, a boolean or a text."""
    if not isinstance(value, bool | int | float | str):
        raise ValueError("must be a number, a boolean or a text")
    return value


def devices(value: Any) -> list[int]:
    """Read a list of device numbers: ``"0,1"``, or a single number."""
    parts = str(value).split(",") if isinstance(value, str | int) and not isinstance(value, bool) else []
    numbers = [int(part) for part in map(str.strip, parts) if part.isascii() and part.isdigit() and len(part) < 4]
    if not numbers or len(numbers) != len(parts):
        raise ValueError('must be device numbers such as "0" or "0,1"')
    if len(set(numbers)) != len(numbers):
        raise ValueError("names a device twice")
    return numbers


def dtype(value: Any) -> str:
    """Read the name of a dtype, with or without ``torch.`` before it."""
    name = value.removeprefix("torch.") if isinstance(value, str) else value
    name = _DTYPES.get(name, name) if isinstance(name, str) else name
    if name not in _KNOWN_DTYPES:
        raise ValueError(f"must be one of {', '.join(_KNOWN_DTYPES)}")
    return str(name)


def quantization(value: Any) -> str:
    """Read how weights are rounded when they are loaded: the name of a scheme of stages on a GPU."""
    if value != "fp8":
        raise ValueError(
            "must be fp8, which rounds weights that are loaded; what a checkpoint stores is in its config.json"
        )
    return "float8_weight_only"


def integers(value: Any) -> list[int]:
    """Read a list of token ids."""
    if not isinstance(value, list) or not value:
        raise ValueError("must be a list of token ids")
    return [whole(each) for each in value]


def strings(value: Any) -> list[str]:
    """Read a text or a list of texts."""
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not found:
        raise ValueError("must be a text or a list of texts")
    return [text(each) for each in found]
