"""Reading pipeline configs: strict, and every problem named with its full path (attrs and cattrs)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from math import isfinite
from operator import eq
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar

import attrs
import cattrs
from cattrs.cols import list_structure_factory, mapping_structure_factory
from cattrs.errors import ClassValidationError, ForbiddenExtraKeysError, IterableValidationError
from cattrs.gen import make_dict_structure_fn

from omni_core.config.documents import Document, parse_yaml
from omni_core.config.schema import FIELD_CLASSES, PipelineConfig, StageConfig
from omni_core.errors import ConfigError, did_you_mean
from omni_core.interface import Interface, Parameter, ParameterGroup

T = TypeVar("T")

_CLASSES: tuple[type, ...] = (
    Parameter,
    ParameterGroup,
    Interface,
    *FIELD_CLASSES.values(),
    StageConfig,
    PipelineConfig,
)
"""Each after those of its fields."""


CONFIG_SUFFIXES = (".yaml", ".yml", ".json")
"""Ends of the names of files with configs."""


def is_file(name: str) -> bool:
    """Return whether a name is that of a file, by its end."""
    return name.endswith(CONFIG_SUFFIXES)


def expanded(path: str | Path) -> Path:
    """Return a path without ``~``.

    Raises:
        ConfigError: ``~NAME`` names no user of this machine.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ConfigError(f"{path}: this machine has no user {Path(path).parts[0].removeprefix('~')!r}") from None


def structure(values: Any, cls: type[T] = PipelineConfig, path: str = "") -> T:  # type: ignore[assignment]
    """Make a pipeline config, or another of its classes, from plain data.

    Raises:
        ConfigError: one line per problem, each with its path, such as ``stages[decoder].tp_size``; ``path`` is that of ``values``.
    """
    try:
        return _converter.structure(values, cls)
    except Exception as error:
        problems = list(_problems(error, path, values))
        raise ConfigError("\n".join(problems)) from None


def unstructure(config: PipelineConfig) -> dict[str, Any]:
    """Return plain data for a config, in field order, without the fields that have their default values."""

    def changed(attribute: attrs.Attribute[Any], value: Any) -> bool:
        default: Any = attribute.default
        if hasattr(default, "factory"):
            default = default.factory()
        return bool(value != default)

    values: dict[str, Any] = attrs.asdict(config, filter=changed)
    return values


def read_yaml(path: str | Path) -> Any:
    """Read a YAML (or JSON) document; see :meth:`Document.read`."""
    return Document.read(path).values


def parse_assignment(option: str, text: str, form: str) -> tuple[str, Any]:
    """Parse ``KEY=VALUE``, whose value is read as YAML: a number, true, a text, ``[a, list]``.

    Raises:
        ConfigError: not of that ``form``; ``option`` is the flag that the message names.
    """
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise ConfigError(f"{option} {text!r}: must be of the form {form}")
    return key, parse_yaml(value, f"{option} {text!r}")[0] if value else ""


def _is_instance(kind: type) -> Callable[[Any, Any], Any]:
    def check(value: Any, _: Any) -> Any:
        if kind is float and isinstance(value, float) and not isfinite(value):
            raise TypeError(f"must be a finite number, is {value!r}")
        if isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
            return value
        if kind is float and type(value) is int:
            return float(value)
        advice = "; write it in quotes" if kind is str and isinstance(value, int | float) else ""
        raise TypeError(f"must be {kind.__name__}, is {value!r}{advice}")

    return check


def _is_any_of(kinds: type | UnionType, expected: str, *, listed: bool = False) -> Callable[[Any, Any], Any]:
    """Return a check for ``None`` or a value of ``kinds``, or with ``listed`` a list of them. A boolean is no number."""

    def check(value: Any, _: Any) -> Any:
        values = value if listed and isinstance(value, list) else [value]
        if value is None or all(isinstance(each, kinds) and not isinstance(each, bool) for each in values):
            return value
        raise TypeError(f"must be {expected}, or null, is {value!r}")

    return check


def _is_list_of_texts(value: Any, _: Any) -> list[str]:
    if isinstance(value, list | tuple) and all(isinstance(each, str) for each in value):
        return list(value)
    raise TypeError(f"must be a list of texts, is {value!r}")


def _or_auto(otherwise: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda value, kind: value if value == "auto" else otherwise(value, kind)


_UNIONS = {
    int | list[int] | Literal["auto"] | None: _or_auto(
        _is_any_of(int, "a GPU number, a list of them, auto", listed=True)
    ),
    str | list[str] | None: _is_any_of(str, "a stage name, a list of them", listed=True),
    str | list[str | None] | None: _is_any_of(str | None, "the name of a host, a list of them", listed=True),
    str | float | None: _is_any_of(str | int | float, 'a size such as "20GiB", a share such as 0.5'),
    int | float | None: _is_any_of(int | float, "a number"),
    list[str]: _is_list_of_texts,
}
"""The checks of fields that may have values of several types, and of lists, by their annotation."""


def _make_converter() -> cattrs.Converter:
    converter = cattrs.Converter(forbid_extra_keys=True)
    converter.register_structure_hook_factory(
        lambda kind: getattr(kind, "__origin__", None) is dict,
        lambda kind: _needs(dict, "mapping", mapping_structure_factory(kind, converter)),
    )
    converter.register_structure_hook_factory(
        lambda kind: getattr(kind, "__origin__", None) is list,
        lambda kind: _needs(list | tuple, "list", list_structure_factory(kind, converter)),
    )
    for kind in (str, int, bool, float):
        converter.register_structure_hook(kind, _is_instance(kind))
    for union, check in _UNIONS.items():
        converter.register_structure_hook_func(partial(eq, union), check)
    for cls in _CLASSES:
        generated: Callable[[Any, Any], Any] = make_dict_structure_fn(cls, converter, _cattrs_forbid_extra_keys=True)
        converter.register_structure_hook(cls, _needs(dict, "mapping", generated, cls))
    return converter


def _needs(
    kinds: type | UnionType, word: str, generated: Callable[[Any, Any], Any], cls: type | None = None
) -> Callable[[Any, Any], Any]:
    """Return a hook that structures values of these kinds only; an instance of ``cls`` is taken as it is."""

    def check(value: Any, kind: Any) -> Any:
        if cls is not None and isinstance(value, cls):
            return value
        if not isinstance(value, kinds):
            raise TypeError(f"must be a {word}, is {value!r}")
        return generated(value, kind)

    return check


_converter = _make_converter()


def _problems(error: BaseException, path: str, values: Any) -> Iterator[str]:
    """Yield cattrs' tree of errors as lines with paths; list items that have a name are called by it."""
    if isinstance(error, IterableValidationError):
        for child, place in error.group_exceptions()[0]:
            item = values[int(place.index)] if isinstance(values, list) else None
            name = item.get("name", place.index) if isinstance(item, dict) else place.index
            is_key = isinstance(values, dict)
            yield from _problems(child, f"{path}.{name}" if is_key else f"{path}[{name}]", item)
    elif isinstance(error, ClassValidationError):
        located, others = error.group_exceptions()
        for child, note in located:
            step = f"{path}.{note.name}" if path else note.name
            yield from _problems(child, step, values.get(note.name) if isinstance(values, dict) else None)
        for other in others:
            yield from _problems(other, path, values)
    elif isinstance(error, ForbiddenExtraKeysError):
        known = [attribute.name for attribute in attrs.fields(error.cl)]
        for key in sorted(error.extra_fields):
            yield f"{path}.{key}: unknown field{did_you_mean(key, known)}".lstrip(".")
    elif isinstance(error, KeyError):
        yield f"{path.removesuffix(str(error.args[0])).rstrip('.')}.{error.args[0]}: required field is missing".lstrip(
            "."
        )
    else:
        yield f"{path or 'config'}: {error}"
