"""The end of a message about an unknown name."""

from __future__ import annotations

from omni_core.errors import did_you_mean


def test_the_nearest_name_is_offered() -> None:
    assert did_you_mean("lift", ["left", "right"]) == "; did you mean 'left'?"


def test_all_names_are_listed_where_none_is_near() -> None:
    assert did_you_mean("colour", iter(["left", "right"])) == "; there are: left, right"
    assert did_you_mean(7, [], listing="it takes") == "; it takes: none"
