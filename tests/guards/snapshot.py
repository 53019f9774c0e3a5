"""The names that users of omni meet: components, keys of files, commands and their options, the server's interface, metrics, variables.

``python tests/guards/snapshot.py --write FILE`` writes it, ``--diff FILE`` prints one line for each entry that was added or removed since
and exits with 1 if there is one. It asks what is installed; modules are found by what they define, so that they may move.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import importlib
import importlib.util
import json
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, get_type_hints

import attrs
import click

SUITES = ("omni_testing",)
"""Packages whose variables and counters no user meets."""


@cache
def sources() -> dict[str, str]:
    """Return the source of every module of every importable package of omni, by the module's name; nothing is imported."""
    found = {}
    for package in pkgutil.iter_modules():
        if package.name.startswith("omni_") and package.ispkg:
            spec = importlib.util.find_spec(package.name)
            for folder in spec.submodule_search_locations or () if spec else ():
                for path in sorted(Path(folder).rglob("*.py")):
                    parts = [package.name, *path.relative_to(folder).with_suffix("").parts]
                    found[".".join(parts).removesuffix(".__init__")] = path.read_text()
    return found


def located(definition: str) -> Any:
    """Return what a pattern finds in one module only; its group is the name: ``^def (create_app)``."""
    found = [
        (name, match[1]) for name, text in sources().items() if (match := re.search(definition, text, re.MULTILINE))
    ]
    if len(found) != 1:
        raise LookupError(f"{definition!r} is in {found or 'no module'}: correct it in {__file__}")
    return getattr(importlib.import_module(found[0][0]), found[0][1])


@cache
def components() -> list[tuple[str, Any, str]]:
    """Return kind, component and state of everything that plugins provide, also those of sources that are not installed."""
    from omni_core.hookspecs import HOOKS
    from omni_core.plugins import load_plugins

    records, found = load_plugins().records, []
    for record in records:
        for hook, some in record.components.items():
            found += [(HOOKS[hook].kind, each, record.status.value) for each in some]
    known = {record.module for record in records}
    for name in sources():
        if name.endswith(".plugin") and name.count(".") == 1 and name not in known and not name.startswith(SUITES):
            module = importlib.import_module(name)
            for hook in HOOKS:
                if hasattr(module, hook):
                    found += [(HOOKS[hook].kind, each, "not installed") for each in getattr(module, hook)()]
    return found


def component_entries() -> Iterator[str]:
    parameters = located(r"^def (parameters)\(reference")
    for kind, each, _ in components():
        yield f"{kind} {each.name}"
        yield from (f"{kind} {each.name} with {key}" for key in ("probe", "conformance") if getattr(each, key))
        for key in ("operation", "device", "dtypes", "priority", "preference", "architectures", "across_hosts"):
            if getattr(each, key, None):
                yield f"{kind} {each.name} {key} = {getattr(each, key)}"
        if kind in ("scheduler", "model runner", "feedback strategy"):
            for name, default in (parameters(each.target) or {}).items():
                yield f"{kind} {each.name} takes {name}" + ("" if default is None else f" = {default}")
            for part in (*getattr(each, "parameters", ()), *getattr(each, "metadata", ())):
                yield f"{kind} {each.name} reads {part.name}"
        if kind == "pipeline":
            yield from (f"pipeline {each.name} option {name}" for name in each.options)
            yield from (f"pipeline {each.name} preset {name}" for name in presets(each))
            if each.interface is not None:
                yield from flattened(f"pipeline {each.name} offers", attrs.asdict(each.interface))


def presets(component: Any) -> list[str]:
    """Return the names of the presets of a pipeline."""
    if component.presets is None:
        return []
    package, _, folder = component.presets.partition(":")
    return [each.name for each in files(package).joinpath(folder).iterdir() if each.name.endswith(".yaml")]


def flattened(path: str, value: Any) -> Iterator[str]:
    """Yield a line for each leaf that says something; items of lists are called by their names, help texts left out."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key not in ("help", "name", "warmup"):
                yield from flattened(f"{path} {key}", inner)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for each in value:
            yield f"{path} {each['name']}"
            yield from flattened(f"{path} {each['name']}", each)
    elif value not in (None, [], False) and not path.endswith(" multiple_of"):
        yield f"{path} = {value!r}"


def key_entries() -> Iterator[str]:
    yield from class_keys("", located(r"^class (PipelineConfig)\b"))
    yield from (f"file {each}" for each in located(r"^(KEYS) = tuple\(dict"))
    for path, definition in {
        "stages[].autoscale": r"^class (AutoscaleSettings)\b",
        "capsules": r"^class (Options):\s+\"{3}The settings of a config: what is recorded",
    }.items():
        try:
            yield from class_keys(f"{path}.", located(definition))
        except LookupError as error:  # then its keys are among the differences
            print(error, file=sys.stderr)
    admission = next((text for text in sources().values() if "``config.admission``" in text), "")
    yield from (f"admission: {each}" for each in re.findall(r"admission\.(\w+)", admission))
    parameters = located(r"^def (parameters)\(reference")
    for kind, each, _ in components():
        module = each.target.partition(":")[0]
        if kind in ("relay", "launcher"):
            for name in re.findall(r"\.read_settings\((\w+)\)", sources()[module]):
                for key, default in (parameters(f"{module}:{name}") or {}).items():
                    yield f"{kind} {each.name} settings.{key}" + ("" if default is None else f" = {default}")


def class_keys(prefix: str, cls: type) -> Iterator[str]:
    """Yield the path of each field of a config class and of the classes of its fields, with its default."""
    kinds = get_type_hints(cls)
    for each in attrs.fields(cls):
        default = each.default
        if isinstance(default, attrs.Factory):  # type: ignore[arg-type]
            default = f"{getattr(default.factory, '__name__', default.factory)}()"
        yield f"{prefix}{each.name}" + ("" if default is attrs.NOTHING else f" = {default}")
        for inner in config_classes(kinds[each.name]):
            yield from class_keys(f"{prefix}{each.name}{'[]' if 'list' in str(kinds[each.name]) else ''}.", inner)


def config_classes(kind: Any) -> list[type]:
    inner = [each for argument in getattr(kind, "__args__", ()) for each in config_classes(argument)]
    return [kind, *inner] if attrs.has(kind) and kind.__name__ != "Interface" else inner


def command_entries() -> Iterator[str]:
    from omni_core.cli.main import omni

    yield from of_command("omni", omni)
    for kind, each, _ in components():
        if kind == "command" and "--" in each.name:
            yield f"omni {each.name}"


def of_command(path: str, command: click.Command) -> Iterator[str]:
    """Yield a command, its arguments and options, and those of the commands in it."""
    yield path
    context = click.Context(command)
    for each in command.params:
        if isinstance(each, click.Argument):
            yield f"{path} {each.make_metavar(context)}"
        elif isinstance(each, click.Option):
            kind = "" if each.is_flag else f" {each.make_metavar(context)}"
            more = "".join(
                f" {name}={value}"
                for name, value in (("default", shown_default(each)), ("env", each.envvar), ("hidden", each.hidden))
                if value
            )
            yield f"{path} {'/'.join([*each.opts, *each.secondary_opts])}{kind}{more}"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            if "--" in name:
                continue
            try:
                inner = command.get_command(context, name)
            except Exception as error:  # a command of a plugin that cannot be imported is an entry of its own
                yield f"{path} {name} cannot be loaded: {type(error).__name__}"
                continue
            assert inner is not None
            yield from of_command(f"{path} {name}", inner)


def shown_default(option: click.Option) -> str:
    default = option.default
    if callable(default) or "Sentinel" in type(default).__name__ or (option.is_flag and not default):
        return ""
    return "" if default is None or default == () else str(default)


class NoPipe:
    """The part of a pipeline that an application needs to be made."""

    def __init__(self) -> None:
        schema = sys.modules[located(r"^class (PipelineConfig)\b").__module__]
        interface = located(r"^class (Interface)\b")(roles={"text": "a"}, inputs=["text"], outputs=["text"])
        stage = schema.StageConfig(name="a", factory="a:b", process="a", terminal=True)
        self.config = schema.PipelineConfig(model_path="", name="p", stages=[stage], interface=interface)

    def health(self) -> dict[str, object]:
        return {}


def server_entries() -> Iterator[str]:
    create_app, create_admin_app = located(r"^def (create_app)\("), located(r"^def (create_admin_app)\(")
    settings = located(r"^class (Settings):\s+\"{3}The settings of a served")(
        keys={"k": "secret secret"}, docs=True, page=True
    )
    app = create_app(NoPipe(), settings)
    for kind, each in (("server", app), ("admin", create_admin_app(app.state.server))):
        for route in each.routes:
            methods = sorted(getattr(route, "methods", None) or ["WEBSOCKET"])
            yield f"{kind} {' '.join(methods)} {route.path}"
    document = app.openapi()
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            where = f"openapi {method.upper()} {path}"
            for each in operation.get("parameters", ()):
                yield f"{where} {each['in']} {each['name']}"
            for kind, content in operation.get("requestBody", {}).get("content", {}).items():
                yield f"{where} takes {kind} {content.get('schema', {}).get('$ref', '').rpartition('/')[2]}"
            for status, answer in operation["responses"].items():
                yield f"{where} answers {status} {' '.join(answer.get('content', ()))}"
    for name, schema in document["components"]["schemas"].items():
        for key, value in schema.get("properties", {}).items():
            required = " (required)" if key in schema.get("required", ()) else ""
            yield f"schema {name}.{key}{required}"
            yield from (f"schema {name}.{key} = {each}" for each in value.get("enum", ()))
    yield from (f"setting {each}" for each in class_keys("", type(settings)))


def metric_entries() -> Iterator[str]:
    metrics, admission = located(r"^class (Metrics):"), type("Admission", (), {"running": 0, "waiting": 0})()
    counters = {"steps": 1.0, "waiting": 1.0, "running": 1.0, "restarts": 1.0, "edge.b.bytes": 1.0}
    counters |= {"edge.b.messages": 1.0, "edge.b.seconds": 1.0}
    made = metrics("p", admission)
    made.exposition({"a": {"a": counters, "process": {"restarts": 1.0}}}, True)
    for collector in made.registry._collector_to_names:
        for family in collector.collect():
            labels = getattr(collector, "_labelnames", ()) or sorted(
                {key for each in family.samples for key in each.labels}
            )
            yield f"metric {family.type} {family.name} {' '.join(labels)}".rstrip()
    yield from sorted(asyncio.run(demo_counters()))
    for name, text in sources().items():
        for node in ast.walk(ast.parse(text)) if not name.startswith(SUITES) else ():
            if isinstance(node, ast.FunctionDef) and node.name in ("statistics", "as_counters"):
                for inner in ast.walk(node):
                    for key in inner.keys if isinstance(inner, ast.Dict) else ():
                        if isinstance(key, ast.Constant) and isinstance(key.value, str):
                            yield f"counter in statistics {key.value}"


async def demo_counters() -> set[str]:
    """Return the counters of the demo after a request, by what they belong to."""
    import omni_core

    found = set()
    async with omni_core.open_async("demo") as pipe:
        await pipe.chat("Hello.")
        for unit, parts in (await pipe.statistics()).items():
            for part, numbers in parts.items():
                for name in numbers:
                    if ".le." not in name:
                        found.add(f"counter {unit if part == unit else f'{unit} {part}'} {name}")
    return found


def variable_entries() -> Iterator[str]:
    for name, text in sources().items():
        if not name.startswith(SUITES):
            yield from re.findall(r"\bOMNI_[A-Z][A-Z_]+\b", text)


def python_entries() -> Iterator[str]:
    import omni_core

    yield from omni_core.__all__
    for name in ("Pipe", "AsyncPipe", "Reply", "ReplyStream", "AsyncReplyStream", "Audio", "Usage", "OmniRequest"):
        yield from (f"{name}.{each}" for each in dir(getattr(omni_core, name)) if not each.startswith("_"))


SECTIONS: dict[str, Callable[[], Iterator[str]]] = {
    "components": component_entries,
    "keys": key_entries,
    "commands": command_entries,
    "server": server_entries,
    "metrics": metric_entries,
    "variables": variable_entries,
    "python": python_entries,
}


def snapshot() -> dict[str, list[str]]:
    """Return the entries of every section, and the states of the plugins' components, which are not compared."""
    found = {name: sorted(set(entries())) for name, entries in SECTIONS.items()}
    return found | {"states": sorted(f"{kind} {each.name}: {state}" for kind, each, state in components())}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", type=Path, metavar="FILE")
    what.add_argument("--diff", type=Path, metavar="FILE")
    given, now = parser.parse_args(), snapshot()
    if given.write:
        given.write.write_text(json.dumps(now, indent=1, ensure_ascii=False) + "\n")
        print({name: len(entries) for name, entries in now.items()})
        return 0
    before, differences = json.loads(given.diff.read_text()), 0
    for name in SECTIONS:
        lines = [f"- {name}: {each}" for each in before[name] if each not in now[name]]
        lines += [f"+ {name}: {each}" for each in now[name] if each not in before[name]]
        differences += len(lines)
        print("".join(f"{line}\n" for line in lines), end="")
    print(f"{differences} differences", file=sys.stderr)
    return int(differences > 0)


if __name__ == "__main__":
    sys.exit(main())
