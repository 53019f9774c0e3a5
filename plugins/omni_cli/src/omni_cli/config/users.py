"""The reader of a value of a config: the factory or part, the field, the request parameter or the flag, with its line of documentation."""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Iterable
from typing import Any

import attrs
import click
from attrs import frozen

from omni_cli.config.server import flags
from omni_cli.deploy.parameters import parameters_of
from omni_cli.deploy.signatures import definition, source_tree
from omni_core.api import Parameter, PipelineConfig, RelayConfig, StageConfig, load_plugins
from omni_core.runtime_api import FIELD_CLASSES, with_parts


@frozen
class User:
    """The reader of a value: what it is, one line about the value, and the default where there is none."""

    name: str
    help: str = ""
    default: str | None = None


def user_of(path: str, config: PipelineConfig, serve: click.Command | None) -> User | None:
    """Return the reader of a value; ``None`` if there is none that could be told. ``serve``: ``omni serve``, where it is installed."""
    first, *rest = path.split(".")
    stage = next((each for each in config.stages if each.name == first), None)
    if stage is not None and rest:
        return argument(stage, rest[1]) if rest[0] == "factory_args" and len(rest) > 1 else _field(StageConfig, rest)
    if first == "options":
        return User(f"the function of {config.resolved_name}") if rest else None
    if first == "relays":
        return _field(RelayConfig, rest[1:]) if len(rest) > 1 else None
    if first == "server" and rest and serve is not None:
        option = flags(serve).get(rest[0])
        return (
            None
            if option is None
            else User(f"omni serve {max(option.opts, key=len)}", option.help or "", _text(default_of(option)))
        )
    if first == "defaults" and len(rest) > 1:
        return _parameter(config, rest)
    return _field(PipelineConfig, [first, *rest])


def settable(config: PipelineConfig) -> list[str]:
    """Return the paths of the fields of a config and of its stages."""
    fields = [(f"{stage.name}.", each) for stage in config.stages for each in attrs.fields(StageConfig)]
    fields += [("", each) for each in attrs.fields(PipelineConfig)]
    inner = [f"{before}{each.name}.{part.name}" for before, each in fields for part in _parts_of(each.name)]
    return [*(f"{before}{each.name}" for before, each in fields), *inner]


def _parts_of(name: str) -> Iterable[attrs.Attribute[Any]]:
    return attrs.fields(FIELD_CLASSES[name]) if name in FIELD_CLASSES else ()


def default_of(option: click.Option) -> Any:
    """Return the value that a flag has where it is not given; ``None``: none."""
    if option.multiple or option.is_flag:
        return [] if option.multiple else False
    return option.default if isinstance(option.default, str | int | float) else None


def argument(stage: StageConfig, name: str) -> User | None:
    """Return the part of a stage that takes an argument; ``None`` if none does, as far as their sources show it."""
    values = {key: value for key, value in attrs.asdict(stage, recurse=False).items() if key != "relay"}
    reference, default = parameters_of(values, load_plugins()).get(name, (None, None))
    found = None if reference is None else definition(reference)
    if found is None:
        return None
    text = _documented(ast.get_docstring(found[1]), name)
    return User(f"{reference}({name})", text, None if default is None else _constant(found[0], default))


def _text(value: Any) -> str | None:
    return None if value is None or value is False or value == [] else str(value)


def _constant(module: str, text: str, most: int = 8) -> str:
    """Return the value of a default that is the name of a constant, as its source; any other default as it is."""
    try:
        return json.dumps(ast.literal_eval(text))
    except (ValueError, TypeError, SyntaxError):
        tree = source_tree(module) if most and text.isidentifier() else None
    body: list[ast.stmt] = tree.body if tree is not None else []
    for node in body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if text in [ast.unparse(each) for each in targets]:
                return _constant(module, ast.unparse(node.value), most - 1)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                if text == (alias.asname or alias.name):
                    return _constant(node.module, alias.name, most - 1)
    return text


def _field(cls: type, path: list[str]) -> User | None:
    name, *rest = path
    if name in FIELD_CLASSES and rest:
        return _field(FIELD_CLASSES[name], rest)
    if name not in {attribute.name for attribute in attrs.fields(cls)}:
        return None
    if rest and not str(getattr(attrs.fields(cls), name).type).startswith("dict"):
        return None  # a value, with nothing below it
    default = getattr(attrs.fields(cls), name).default
    plain = default is not attrs.NOTHING and not hasattr(default, "factory") and not rest
    return User(f"{cls.__name__}.{name}", _documented(inspect.getdoc(cls), name), _text(default) if plain else None)


def _parameter(config: PipelineConfig, path: list[str]) -> User | None:
    kind, *rest = path
    if config.interface is None:
        return None
    interface = with_parts(config.interface, config.stages, load_plugins())
    known: list[Parameter] = interface.metadata if kind == "metadata" else interface.params
    name = "request"
    for group in interface.groups if kind == "params" and len(rest) > 1 else ():
        if rest[0] in (group.name, group.role):
            known, name = group.parameters, f"request, params.{group.name}"
    found = next((each for each in known if rest[-1] in each.names), None)
    return None if found is None else User(name, found.help, _text(found.default))


def _documented(docstring: str | None, name: str) -> str:
    """Return the line about an argument or attribute in a docstring, up to its first full stop."""
    match = re.search(rf"^\s+(?:\w+, )*{name}(?:, \w+)*: (.+(?:\n\s{{5,}}\S.*)*)", docstring or "", re.MULTILINE)
    text = re.sub(r":\w+:`([^`]*)`", r"\1", " ".join((match[1] if match else "").replace("``", "").split()))
    return re.split(r"(?<=[a-z)\]])\. ", text)[0].rstrip(".")
