"""YAML and JSON documents as plain data, with the line of every value, so that a message can name it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attrs import field, frozen
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from omni_core.errors import ConfigError

MOST_VALUES = 100_000
"""Values of a document, each alias counted as what it stands for."""

MOST_TEXT = 16 * 2**20
"""Characters of a document. No more are read, so that a device or a file of weights is refused at once."""

DEEPEST = 100

Place = tuple[str | int, ...]
"""Keys and indices from the top of a document: ``("stages", "decoder", "gpu")``."""


@frozen
class Document:
    """A file's content.

    Attributes:
        name: the file's name, for messages.
        folder: where relative paths in it begin.
        values: plain data: mappings with texts as keys, lists, texts, numbers, booleans and ``None``.
        lines: the line, from 1 on, of each key and list item.
    """

    name: str
    folder: Path
    values: Any
    lines: dict[Place, int] = field(factory=dict, repr=False)

    @classmethod
    def read(cls, path: str | Path, name: str | None = None) -> Document:
        """Read a YAML or JSON file. Duplicate keys are errors; ``no`` and ``12:30`` stay text (YAML 1.2).

        Raises:
            ConfigError: the file cannot be read or parsed, or holds what is no plain data.
        """
        name = name or str(path)
        try:
            with Path(path).open(encoding="utf-8") as file:
                text = file.read(MOST_TEXT + 1)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{name} cannot be read: {error}") from error
        if len(text) > MOST_TEXT:
            raise ConfigError(f"{name} has more than {MOST_TEXT} characters, which no config has; name another file")
        values, lines = parse_yaml(text, name)
        return cls(name, Path(path).parent, values, lines)

    def origin(self, *place: str | int) -> str:
        """Return ``FILE:LINE`` of a value, or of the nearest one around it."""
        while place and place not in self.lines:
            place = place[:-1]
        return f"{self.name}:{self.lines.get(place, 1)}" if self.lines else self.name


def parse_yaml(text: str, name: str) -> tuple[Any, dict[Place, int]]:
    """Return the plain data of a YAML text, and the line of each value.

    Raises:
        ConfigError: it is no valid YAML, has more than one document, or holds what is no plain data; ``name`` is its file.
    """
    yaml = YAML(typ="safe", pure=True)
    try:
        node = yaml.compose(text)
        lines = {} if node is None else dict(_lines(node, (), ()))
        values = None if node is None else yaml.constructor.construct_document(node)
    except _TooLargeError as error:
        raise ConfigError(f"{name}: {error}") from None
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = name if mark is None else f"{name}:{mark.line + 1}"
        what = ", ".join(each for each in (error.context, error.problem) if each)
        raise ConfigError(f"{where}: no valid YAML: {what}") from error
    except YAMLError as error:
        raise ConfigError(f"{name}: no valid YAML: {str(error).splitlines()[0]}") from error
    except RecursionError:
        raise ConfigError(f"{name}: no valid YAML: it is nested too deeply") from None
    except Exception as error:  # the constructors of tags raise whatever they meet
        raise ConfigError(f"{name}: no valid YAML: {error}") from error
    document = Document(name, Path(), values, lines)
    wrong = [f"{document.origin(*place)}: {problem}" for place, problem in _not_plain(values, ())]
    if wrong:
        raise ConfigError("\n".join(wrong))
    return values, lines


class _TooLargeError(Exception):
    """A document is nested in itself, or stands for more values than a config may have."""


def _lines(node: Node, place: Place, around: tuple[int, ...]) -> Iterator[tuple[Place, int]]:
    """Yield the line of every key and item below ``node``, which lies in the nodes ``around``."""
    count, open_nodes = 0, [(node, place, around)]
    while open_nodes:
        node, place, around = open_nodes.pop()
        count += 1
        if id(node) in around:
            raise _TooLargeError(f"line {node.start_mark.line + 1}: an alias stands for a value that contains it")
        if count > MOST_VALUES or len(place) > DEEPEST:
            raise _TooLargeError(f"it has more than {MOST_VALUES} values, or is nested more than {DEEPEST} deep")
        inside = (*around, id(node))
        if isinstance(node, MappingNode):
            for key, value in node.value:
                inner = (*place, key.value if isinstance(key, ScalarNode) else "?")
                yield inner, key.start_mark.line + 1
                open_nodes.append((value, inner, inside))
        elif isinstance(node, SequenceNode):
            for index, item in enumerate(node.value):
                yield (*place, index), item.start_mark.line + 1
                open_nodes.append((item, (*place, index), inside))


def _not_plain(value: Any, place: Place) -> Iterator[tuple[Place, str]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                yield (*place, str(key)), f"the key {key!r} must be a text; write it in quotes"
            else:
                yield from _not_plain(inner, (*place, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _not_plain(inner, (*place, index))
    elif value is not None and not isinstance(value, str | int | float):
        yield place, f"{value!r} is a {type(value).__name__}; a text is written in quotes"
