"""The end of a message about an unknown name."""

from __future__ import annotations

from omni_core.errors import did_you_mean, shown


def test_the_nearest_name_is_offered() -> None:
    assert did_you_mean("lift", ["left", "right"]) == "; did you mean 'left'?"


def test_all_names_are_listed_where_none_is_near() -> None:
    assert did_you_mean("colour", iter(["left", "right"])) == "; there are: left, right"
    assert did_you_mean(7, [], listing="it takes") == "; it takes: none"


def test_the_work_for_a_long_name_is_bounded() -> None:
    names = [f"name-{number}" for number in range(1000)]
    message = did_you_mean("name-1" * 10**6, names)
    assert message.startswith("; there are: name-0, ")
    assert message.endswith(", name-99 and 900 more")
    for value in ("x" * 10**6, ["x" * 10**6] * 10**3, {"x" * 10**6: 1}, {1: {2: {3: "x" * 10**6}}}, 10**4000):
        assert len(shown(value)) < 1500
    assert shown("lift") == "'lift'"
