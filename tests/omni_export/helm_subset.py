"""Helm's language, as far as the charts of the command use it: enough to compare a chart with the manifests."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

from omni_export_reading import documents

from omni_export.documents import dump

_TAG = re.compile(r"(\s*)\{\{(-?) ?(.*?) ?\}\}", re.DOTALL)


class Renderer:
    """Renders the templates of a chart.

    Raises:
        AssertionError: an expression is not one of those.
    """

    def __init__(self, folder: Path, values: dict[str, Any]) -> None:
        self._folder = folder
        self._values = values

    def render(self, text: str) -> str:
        out: list[str] = []
        blocks: list[tuple[bool, Any]] = []
        end = 0
        for found in _TAG.finditer(text):
            space, dash, expression = found.groups()
            shown = all(each for each, _ in blocks)
            if shown:
                out.append(text[end : found.start()] + ("" if dash else space))
            end = found.end()
            first, _, rest = expression.partition(" ")
            if first in ("if", "with"):
                value = self._path(rest)
                blocks.append((bool(value), value))
            elif first == "end":
                blocks.pop()
            elif shown:
                out.append(self._value(expression, blocks[-1][1] if blocks else None))
        assert not blocks
        return "".join(out) + text[end:]

    def _path(self, path: str) -> Any:
        first, *names = path.removeprefix(".").split(".")
        assert first == "Values", path
        value: Any = self._values
        for name in names:
            value = value[name]
        return value

    def _value(self, expression: str, dot: Any) -> str:
        head, *filters = [each.strip() for each in expression.split("|")]
        if head.startswith("printf"):
            return "".join(self._file(name) for name in re.findall(r'Get "([^"]+)"', head)) and self._sum(head)
        if head.startswith('"'):
            return head.strip('"')
        if head.startswith(".Files.Get"):
            value: Any = self._file(head.split('"')[1])
        else:
            word, _, rest = head.rpartition(" ")
            value = dot if rest == "." else self._path(rest)
            value = dump(value).rstrip("\n") if word == "toYaml" else value
        for each in filters:
            name, *arguments = each.split()
            if name == "quote":
                value = f'"{value}"'
            elif name in ("indent", "nindent"):
                pad = " " * int(arguments[0])
                value = ("\n" if name == "nindent" else "") + "\n".join(pad + line for line in str(value).split("\n"))
            else:
                raise AssertionError(each)
        return str(value)

    def _sum(self, head: str) -> str:
        texts = "".join(self._file(name) for name in re.findall(r'Get "([^"]+)"', head))
        return hashlib.sha256(texts.encode()).hexdigest()

    def _file(self, name: str) -> str:
        return (self._folder / name).read_text()


def rendered(folder: Path, **changes: Any) -> str:
    """Return the manifests of a chart. ``changes``: of its values."""
    (values,) = documents((folder / "values.yaml").read_text())
    renderer = Renderer(folder, {**values, **changes})
    return "\n---\n".join(renderer.render(path.read_text()) for path in sorted((folder / "templates").iterdir()))
