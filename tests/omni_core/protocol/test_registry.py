"""Classes that the codec sends: how they are registered, and how instances are taken apart and made again."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from omni_core.protocol import registry


def apart(instance: Any) -> tuple[Any, ...]:
    return registry.values[type(instance)](instance)


def again(instance: Any) -> Any:
    name, _ = registry.names[type(instance)]
    make, count = registry.classes[name]
    given = apart(instance)
    assert len(given) == count
    return make(*given)


@registry.message
class Two:
    first: int
    second: str = "x"


@registry.message
class One:
    only: list[int] = attrs.field(factory=list)


@registry.message
class Empty:
    pass


@registry.register
@attrs.define(kw_only=True)
class Named:
    _hidden: int
    shown: int = 1
    counted: int = attrs.field(init=False, default=5)


@pytest.mark.parametrize("instance", [Two(1, "a"), One([3]), Empty(), Named(hidden=2, shown=3)])
def test_an_instance_is_taken_apart_and_made_again(instance: Any) -> None:
    assert again(instance) == instance


def test_fields_travel_in_their_order_without_those_that_are_not_given() -> None:
    assert apart(Two(1)) == (1, "x")
    assert apart(Named(hidden=2)) == (2, 1)
    assert registry.names[Named] == (f"{__name__}.Named", ("_hidden", "shown"))


def test_a_message_is_frozen() -> None:
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        Two(1).first = 2  # type: ignore[misc]


def test_what_is_no_attrs_class_is_refused() -> None:
    class Plain:
        pass

    with pytest.raises(TypeError, match="is not an attrs class"):
        registry.register(Plain)
