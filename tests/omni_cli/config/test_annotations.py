"""Annotations as checks of plain data: what each accepts, and that it is read without an import."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from omni_cli.config.annotations import kinds
from omni_cli.deploy.signatures import source_tree

ALIASES = """
from pathlib import Path as Folder
from typing import Literal, Callable

Names = list[str]
Mode: object = Literal["fast", "small", 2]
Function = Callable[[int], int]
"""
SOURCE = """
from __future__ import annotations
from typing import Annotated, Any, Optional, Union
import typing
from type_aliases import Folder, Function, Mode, Names, Missing
import torch

raise RuntimeError("never imported")

def build(
    plain, integer: int, number: float, text: str, switch: bool, nothing: None, either: int | str | None, optional: Optional[int],
    union: Union[int, bool], literal: typing.Literal["a", "b"], names: Names, mode: Mode, pairs: dict[str, list[int]],
    mapping: typing.Mapping[str, object], some: tuple[int, ...], two: tuple[int, str], anything: Any, foreign: torch.dtype,
    unknown: Missing, quoted: "int | None", annotated: Annotated[int, "why"], folder: Folder, function: Function | None,
    switch_or_type: bool | type[int], *rest: int, keyword: int = 1, broken: "(" = 1, **more: int,
): ...

class Base:
    def __init__(self, depth: int): ...
    @classmethod
    def made(cls, width: int): ...

class Child(Base): ...

@frozen
class Fields:
    size: int
    name: str = "x"
    made: int = field(converter=int)

@changed
def wrapped(a: int): ...
"""


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "typed_parts.py").write_text(SOURCE)
    (tmp_path / "type_aliases.py").write_text(ALIASES)
    monkeypatch.syspath_prepend(str(tmp_path))
    source_tree.cache_clear()


@pytest.mark.parametrize(
    ("parameter", "name", "accepted", "refused"),
    [
        ("plain", "anything", [1, None, [object()]], []),
        ("integer", "an integer", [0, -3], [True, 1.0, "1", None, [1]]),
        ("number", "a number", [1, 0.5, float("inf")], [True, "1", None]),
        ("text", "a text", ["", "x"], [1, None, ["x"]]),
        ("switch", "true or false", [True, False], [0, "true", None]),
        ("nothing", "null", [None], [0, ""]),
        ("either", "an integer or a text or null", [1, "x", None], [1.5, True, []]),
        ("optional", "an integer or null", [1, None], ["x"]),
        ("union", "an integer or true or false", [1, True], [1.5, None]),
        ("literal", "one of a, b", ["a"], ["c", None, 1]),
        ("names", "a list, each a text", [[], ["a"], ("a",)], ["a", [1], {"a": 1}]),
        ("mode", "one of fast, small, 2", ["fast", 2], ["slow", 2.0, True]),
        ("pairs", "a mapping, each value a list, each an integer", [{}, {"a": [1]}], [{"a": 1}, [1]]),
        ("mapping", "a mapping", [{"a": object()}], [[], "a"]),
        ("some", "a list, each an integer", [[1, 2]], [["a"], 1]),
        ("two", "a list", [[1, "a"]], [1]),
        ("anything", "anything", [1, None], []),
        ("foreign", "anything", ["float32", 3], []),
        ("unknown", "anything", [3], []),
        ("quoted", "an integer or null", [1, None], ["x"]),
        ("annotated", "an integer", [1], ["x"]),
        ("folder", "a text", ["/tmp"], [1]),
        ("function", "null", [None], ["f", 1]),
        ("switch_or_type", "true or false", [True], [1, "int"]),
        ("keyword", "an integer", [1], ["x"]),
        ("broken", "anything", ["x"], []),
    ],
)
def test_what_an_annotation_accepts(parameter: str, name: str, accepted: list[Any], refused: list[Any]) -> None:
    found = kinds("typed_parts:build")
    assert found is not None
    kind = found[parameter]
    assert kind.name == name
    assert [value for value in accepted if not kind.accepts(value)] == []
    assert [value for value in refused if kind.accepts(value)] == []
    assert not {"rest", "more"} & found.keys()
    assert not {"typed_parts", "type_aliases"} & sys.modules.keys()


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("typed_parts:Child", {"self": "anything", "depth": "an integer"}),
        ("typed_parts:Child.made", {"cls": "anything", "width": "an integer"}),
        ("typed_parts:Fields", {"size": "an integer", "name": "a text"}),
        ("typed_parts:wrapped", {}),
        ("typed_parts:nothing", None),
        ("math:sin", None),
    ],
)
def test_every_callable_is_read(reference: str, expected: dict[str, str] | None) -> None:
    found = kinds(reference)
    assert (None if found is None else {name: each.name for name, each in found.items()}) == expected
