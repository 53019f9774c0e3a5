"""YAML for people: block style, texts of several lines as they are, keys in the order in which they were written."""

from __future__ import annotations

from collections.abc import Iterable
from io import StringIO
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.scalarstring import LiteralScalarString


def dump(*documents: Any) -> str:
    """Return plain data as YAML documents."""
    yaml = YAML()
    yaml.width = 100_000
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.representer.ignore_aliases = lambda data: True
    texts = []
    for document in documents:
        stream = StringIO()
        yaml.dump(_shown(document), stream)
        texts.append(stream.getvalue())
    return "---\n".join(texts)


def commented(lines: Iterable[str]) -> str:
    """Return lines as comments."""
    return "".join(f"# {line}\n" for line in lines)


def _shown(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _shown(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(each) for each in value]
    return LiteralScalarString(value) if isinstance(value, str) and "\n" in value else value
