"""References: the parameters of what they name, read from sources without an import."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from omni_cli.deploy.signatures import definition, parameters, source_tree

SOURCE = """
from lazy_parts import Base
from other_parts import make as build, Fields
SIZE = 4

def plain(model_path, /, device="cpu", *rest, size=SIZE, **more): ...

class Child(Base):
    def method(self, x): ...

class Other(Fields): ...
broken = object()
raise RuntimeError("never imported")
"""
OTHER = """
class Base:
    def __init__(self, depth: int, *, width=None): ...
    @classmethod
    def from_checkpoint(cls, path, dtype="float32"): ...

class Fields:
    size: int
    name: str = "x"

def make(a, b=1): ...

@make
def wrapped(a): ...
"""


LAZY = """
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from other_parts import Base
def __getattr__(name): ...
"""


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some_parts.py").write_text(SOURCE)
    (tmp_path / "other_parts.py").write_text(OTHER)
    (tmp_path / "lazy_parts.py").write_text(LAZY)
    (tmp_path / "no_parts.py").write_text("def (")
    (tmp_path / "in_circles.py").write_text("from in_circles import f\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    source_tree.cache_clear()


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("some_parts:plain", {"model_path": None, "device": "'cpu'", "size": "SIZE"}),
        ("some_parts.build", {"a": None, "b": "1"}),
        ("some_parts:Child", {"depth": None, "width": "None"}),
        ("some_parts:Child.from_checkpoint", {"path": None, "dtype": "'float32'"}),
        ("some_parts:Child.method", {"x": None}),
        ("other_parts:Fields", {"size": None, "name": "'x'"}),
        ("some_parts:broken", None),
        ("some_parts:nothing", None),
        ("no_parts:f", None),
        ("in_circles:f", None),
        ("nowhere.at_all:f", None),
        ("math:sin", None),
    ],
)
def test_parameters_are_read_through_imports_and_base_classes(
    reference: str, expected: dict[str, str | None] | None
) -> None:
    assert parameters(reference) == expected
    assert "some_parts" not in sys.modules


def test_a_definition_is_found_where_it_is() -> None:
    found = definition("some_parts:build")
    assert found is not None
    assert (found[0], found[1].name) == ("other_parts", "make")
