"""Schemas of strict tools: a call is passed on only if its arguments match.

The keywords are those that OpenAI's strict schemas are made of. Others are ignored, among them ``pattern`` and ``format``: a client's
regular expression could keep the server busy for ever.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from omni_core.api import shown
from omni_serve.errors import invalid
from omni_serve.ignored import check_unknown

_STEPS = 10_000
"""Schemas that are looked at for the arguments of one call; beyond, they do not match."""

_DEPTH = 32
"""The depth of a schema, and of references in it."""

_TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "integer": lambda value: (
        not isinstance(value, bool) and isinstance(value, int | float) and float(value).is_integer()
    ),
}

_BOUNDS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "minimum": ("number", lambda value, bound: value >= bound),
    "maximum": ("number", lambda value, bound: value <= bound),
    "exclusiveMinimum": ("number", lambda value, bound: value > bound),
    "exclusiveMaximum": ("number", lambda value, bound: value < bound),
    "minLength": ("string", lambda value, bound: len(value) >= bound),
    "maxLength": ("string", lambda value, bound: len(value) <= bound),
    "minItems": ("array", lambda value, bound: len(value) >= bound),
    "maxItems": ("array", lambda value, bound: len(value) <= bound),
}
"""Keywords with a number, the type of values that they are for, and when these match."""

_NOTES = ("title", "description", "default", "examples", "$schema", "$comment")
_KNOWN = (
    *("type", "enum", "const", "anyOf", "$ref", "$defs", "definitions"),
    *("properties", "required", "additionalProperties", "items"),
    *_BOUNDS,
    *_NOTES,
)


class StrictSchema:
    """Checks arguments against the ``parameters`` of a strict tool.

    Raises:
        ApiError: 400, the schema is malformed.
    """

    def __init__(self, schema: Mapping[str, Any], where: str) -> None:
        self._schema, self._left = schema, 0
        self._check(schema, where, _DEPTH)
        if schema.get("type") != "object":
            raise invalid(f"{where}: a strict schema must be of type 'object'", where, "invalid_value")

    def accepts(self, arguments: str) -> bool:
        """Return whether the JSON text of a call's arguments matches."""
        self._left = _STEPS
        return self._matches(self._schema, json.loads(arguments), _DEPTH)

    def _check(self, schema: Any, where: str, depth: int) -> None:
        if not isinstance(schema, Mapping) or not depth:
            raise invalid(f"{where}: must be a JSON schema, at most {_DEPTH} deep", where, "invalid_value")
        for key, value in schema.items():
            at = f"{where}.{key}"
            if key not in _KNOWN:
                check_unknown(key, _KNOWN, where)
            elif key not in _NOTES and not self._is_valid(key, value):
                raise invalid(f"{at}: {shown(value)} is not allowed", at, "invalid_value")
            elif key in ("properties", "$defs", "definitions"):
                for name, each in value.items():
                    self._check(each, f"{at}.{name}", depth - 1)
            elif key == "items" or (key == "additionalProperties" and not isinstance(value, bool)):
                self._check(value, at, depth - 1)
            elif key == "anyOf":
                for index, each in enumerate(value):
                    self._check(each, f"{at}[{index}]", depth - 1)

    def _is_valid(self, key: str, value: Any) -> bool:
        """Return whether a keyword has a value of its form; schemas in it are for :meth:`_check`."""
        if key == "type":
            names = value if isinstance(value, list) and value else [value]
            return all(isinstance(each, str) and each in _TYPES for each in names)
        if key in ("enum", "anyOf"):
            return isinstance(value, list) and bool(value)
        if key == "required":
            return isinstance(value, list) and all(isinstance(each, str) for each in value)
        if key in ("properties", "$defs", "definitions"):
            return isinstance(value, Mapping)
        if key == "$ref":
            return isinstance(value, str) and self._referred(value) is not None
        return key not in _BOUNDS or _TYPES["number"](value)

    def _referred(self, reference: str) -> Mapping[str, Any] | None:
        """Return the schema that ``#`` or ``#/$defs/NAME`` means; ``None``: there is none. Nothing is fetched."""
        if reference == "#":
            return self._schema
        head, _, rest = reference.partition("/")
        group, _, name = rest.partition("/")
        known = self._schema.get(group) if head == "#" and group in ("$defs", "definitions") else None
        found = known.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(known, Mapping) else None
        return found if isinstance(found, Mapping) else None

    def _matches(self, schema: Mapping[str, Any], value: Any, depth: int) -> bool:
        self._left -= 1
        if self._left < 0 or not depth:
            return False
        types = schema.get("type", [])
        if types and not any(_TYPES[each](value) for each in ([types] if isinstance(types, str) else types)):
            return False
        if "enum" in schema and not any(_equal(value, each) for each in schema["enum"]):
            return False
        if "const" in schema and not _equal(value, schema["const"]):
            return False
        if "$ref" in schema and not self._matches(self._referred(schema["$ref"]) or {}, value, depth - 1):
            return False
        if "anyOf" in schema and not any(self._matches(each, value, depth - 1) for each in schema["anyOf"]):
            return False
        for key, (kind, holds) in _BOUNDS.items():
            if key in schema and _TYPES[kind](value) and not holds(value, schema[key]):
                return False
        if isinstance(value, list) and "items" in schema:
            return all(self._matches(schema["items"], each, depth) for each in value)
        return not isinstance(value, dict) or self._object_matches(schema, value, depth)

    def _object_matches(self, schema: Mapping[str, Any], value: dict[str, Any], depth: int) -> bool:
        if any(name not in value for name in schema.get("required", ())):
            return False
        known, others = schema.get("properties", {}), schema.get("additionalProperties", True)
        for name, each in value.items():
            if name in known:
                if not self._matches(known[name], each, depth):
                    return False
            elif others is False or (others is not True and not self._matches(others, each, depth)):
                return False
        return True


def _equal(one: Any, other: Any) -> bool:
    """Return whether two values of JSON are equal; ``true`` is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    return bool(one == other)
