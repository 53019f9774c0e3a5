"""The types of options name the options that there are."""

from __future__ import annotations

from omni_fish_s2.interface import OPTIONS
from omni_fish_s2.options import Options


def test_every_option_has_a_type() -> None:
    assert sorted(Options.__annotations__) == sorted(OPTIONS)
