"""The types of options name the options that there are."""

from __future__ import annotations

from omni_qwen3.interface import OPTIONS
from omni_qwen3.options import Options, TextOptions


def test_every_option_has_a_type() -> None:
    assert sorted(Options.__annotations__) == sorted(OPTIONS)
    assert sorted(TextOptions.__annotations__) == sorted(
        name for name in OPTIONS if "chunk" not in name and name != "aligner"
    )
