"""Reading and writing pipeline configs: strict, and every problem named with its full path (attrs and cattrs)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from io import StringIO
from operator import eq
from pathlib import Path
from types import UnionType
from typing import Any, Literal

import attrs
import cattrs
from cattrs.errors import ClassValidationError, ForbiddenExtraKeysError, IterableValidationError
from cattrs.gen import make_dict_structure_fn
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from omni_core.config.schema import EndpointsConfig, PipelineConfig, RelayConfig, RestartConfig, StageConfig
from omni_core.errors import ConfigError, did_you_mean
from omni_core.interface import Interface, Parameter, ParameterGroup

_CLASSES = (
    Parameter,
    ParameterGroup,
    Interface,
    EndpointsConfig,
    RestartConfig,
    RelayConfig,
    StageConfig,
    PipelineConfig,
)
"""Each after those of its fields."""


def expanded(path: str | Path) -> Path:
    """Return a path without ``~``.

    Raises:
        ConfigError: ``~NAME`` names no user of this machine.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ConfigError(f"{path}: this machine has no user {Path(path).parts[0].removeprefix('~')!r}") from None


def structure(values: Any) -> PipelineConfig:
    """Make a pipeline config from plain data.

    Raises:
        ConfigError: one line per problem, each with its path, such as ``stages[decoder].tp_size``.
    """
    try:
        return _converter.structure(values, PipelineConfig)
    except Exception as error:
        problems = list(_problems(error, "", values))
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
    """Read a YAML (or JSON) document. Duplicate keys are errors; ``no`` and ``12:30`` stay text (YAML 1.2).

    Raises:
        ConfigError: the file cannot be read or parsed.
    """
    try:
        return _yaml(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    except YAMLError as error:
        raise ConfigError(f"{path} is no valid YAML: {error}") from error


def parse_assignment(option: str, text: str, form: str) -> tuple[str, Any]:
    """Parse ``KEY=VALUE``, whose value is read as YAML: a number, true, a text, ``[a, list]``.

    Raises:
        ConfigError: not of that ``form``; ``option`` is the flag that the message names.
    """
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise ConfigError(f"{option} {text!r}: must be of the form {form}")
    try:
        return key, _yaml(value) if value else ""
    except YAMLError as error:
        raise ConfigError(f"{option} {text!r}: the value is no valid YAML: {error}") from error


def _yaml(text: str) -> Any:
    return YAML(typ="safe", pure=True).load(text)


def load_config(path: str | Path) -> PipelineConfig:
    """Read a whole pipeline from a YAML or JSON file, structured but not yet validated."""
    return structure(read_yaml(path))


def dump_json(config: PipelineConfig) -> str:
    """Return the config as JSON, which is also YAML; :func:`load_config` reads it back equal."""
    return json.dumps(unstructure(config), indent=2)


def dump_yaml(config: PipelineConfig) -> str:
    """Return the config as YAML; :func:`load_config` reads it back equal."""
    yaml, stream = YAML(typ="safe", pure=True), StringIO()
    yaml.default_flow_style, yaml.sort_base_mapping_type_on_output = False, False  # type: ignore[assignment]
    yaml.dump(unstructure(config), stream)
    return stream.getvalue()


def _is_instance(kind: type) -> Callable[[Any, Any], Any]:
    def check(value: Any, _: Any) -> Any:
        if isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
            return value
        if kind is float and type(value) is int:
            return float(value)
        raise TypeError(f"must be {kind.__name__}, is {value!r}")

    return check


def _is_any_of(kinds: type | UnionType, expected: str, *, listed: bool = False) -> Callable[[Any, Any], Any]:
    """Return a check for ``None`` or a value of ``kinds``, or with ``listed`` a list of them. A boolean is no number."""

    def check(value: Any, _: Any) -> Any:
        values = value if listed and isinstance(value, list) else [value]
        if value is None or all(isinstance(each, kinds) and not isinstance(each, bool) for each in values):
            return value
        raise TypeError(f"must be {expected}, or null, is {value!r}")

    return check


def _or_auto(otherwise: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda value, kind: value if value == "auto" else otherwise(value, kind)


_UNIONS = {
    int | list[int] | Literal["auto"] | None: _or_auto(
        _is_any_of(int, "a GPU number, a list of them, auto", listed=True)
    ),
    str | list[str] | None: _is_any_of(str, "a stage name, a list of them", listed=True),
    str | float | None: _is_any_of(str | int | float, 'a size such as "20GiB", a share such as 0.5'),
    int | float | None: _is_any_of(int | float, "a number"),
}
"""The checks of fields that may have values of several types, by their annotation."""


def _make_converter() -> cattrs.Converter:
    converter = cattrs.Converter(forbid_extra_keys=True)
    for kind in (str, int, bool, float):
        converter.register_structure_hook(kind, _is_instance(kind))
    for union, check in _UNIONS.items():
        converter.register_structure_hook_func(partial(eq, union), check)
    for cls in _CLASSES:
        generated = make_dict_structure_fn(cls, converter, _cattrs_forbid_extra_keys=True)
        converter.register_structure_hook(cls, _needs_mapping(cls, generated))
    return converter


def _needs_mapping(cls: type, generated: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def check(value: Any, kind: Any) -> Any:
        if isinstance(value, cls):
            return value
        if not isinstance(value, dict):
            raise TypeError(f"must be a mapping, is {value!r}")
        return generated(value, kind)

    return check


_converter = _make_converter()


def _problems(error: BaseException, path: str, values: Any) -> Iterator[str]:
    """Yield cattrs' tree of errors as lines with paths; list items that have a name are called by it."""
    if isinstance(error, IterableValidationError):
        for child, place in error.group_exceptions()[0]:
            item = values[int(place.index)] if isinstance(values, list) else None
            name = item.get("name", place.index) if isinstance(item, dict) else place.index
            yield from _problems(child, f"{path}[{name}]", item)
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
        yield f"{path}.{error.args[0]}: required field is missing".lstrip(".")
    else:
        yield f"{path or 'config'}: {error}"
