"""Deploy files: what a file, the files and presets that it is based on, and the environment say about one deployment.

A file has the fields of a pipeline (``stages`` as a mapping from names to fields) and these keys: ``pipeline``, ``base``, ``options``,
``relays`` and ``platforms``. One whose ``stages`` are a list describes a whole pipeline, without ``pipeline``, ``base`` and ``options``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import attrs
from attrs import frozen

from omni_cli.deploy.override_layers import ENVIRONMENT, Layer
from omni_cli.deploy.platforms import PLATFORMS
from omni_core.api import (
    ConfigError,
    OmniError,
    PipelineComponent,
    PipelineConfig,
    PluginRegistry,
    did_you_mean,
    expanded,
)
from omni_core.runtime_api import (
    CONFIG_SUFFIXES,
    SETTING_VARIABLE,
    Document,
    Override,
    is_file,
    message_of,
    normalize,
    parse_yaml,
    value_of,
)

SOURCE = ("pipeline", "model_path", "options")
"""Keys that choose the pipeline and what it is made from."""

_FIELDS = tuple(attribute.name for attribute in attrs.fields(PipelineConfig))
KEYS = tuple(dict.fromkeys((*SOURCE, "base", "relays", "platforms", *_FIELDS)))
"""The keys of a file."""

_WHOLE = tuple(each for each in KEYS if each not in ("pipeline", "options", "base"))
_SECTION = tuple(each for each in KEYS if each not in ("pipeline", "model_path", "base", "platforms"))
"""The keys of a file that describes a whole pipeline, and of a section of ``platforms``."""

_SECTIONS = (
    *("options", "relays", "platforms", "stages", "runtime_overrides", "env_defaults", "endpoints", "hosts"),
    *("restart", "defaults", "limits", "server", "admission"),
)
"""Keys that are mappings: an empty one says nothing, also if it is written as null."""


@frozen
class DeployFile:
    """A file and those that it is based on.

    Attributes:
        documents: from the innermost base to the file itself, each with the name of its layer.
        problems: a line for each key that is wrong; what it says is left out of ``documents``.
    """

    documents: Sequence[tuple[str, Document]]
    problems: Sequence[str] = ()

    @property
    def name(self) -> str:
        return self.documents[-1][1].name

    @property
    def platforms(self) -> list[str]:
        """The platforms for which it says something."""
        return [
            name for name in PLATFORMS if any(name in each.values.get("platforms", {}) for _, each in self.documents)
        ]

    @property
    def whole(self) -> Document | None:
        """The document that describes a whole pipeline, if there is one: the innermost."""
        document = self.documents[0][1]
        return document if _is_whole(document) else None

    @property
    def stages(self) -> list[str]:
        """The names of the stages of a whole pipeline."""
        listed = self.whole.values["stages"] if self.whole is not None else []
        return [str(each.get("name")) for each in listed if isinstance(each, dict)]

    def layers(self, platform: str) -> list[Layer]:
        """Return the layers of the files, then those of their sections for ``platform``."""
        found = []
        for name, document in self.documents:
            keys = [key for key in document.values if key not in ("base", "platforms")]
            if document is self.whole:
                keys = [key for key in keys if key == "relays"]
            found.append(_layer(name, document, keys, ()))
        for name, document in self.documents:
            section = document.values.get("platforms", {}).get(platform)
            if section:
                found.append(_layer(f"platform {platform} of {name}", document, section, ("platforms", platform)))
        return [each for each in found if each.overrides]


@frozen
class SourceValues:
    """The values of the keys in :data:`SOURCE` that the layers choose, and where each was written, by path."""

    pipeline: str | None
    model: str | None
    options: dict[str, Any]
    origins: dict[str, str]
    problems: Sequence[str] = ()

    def explained(self, error: Exception, pipeline: str) -> Exception:
        """Return an error of the pipeline's function with the place of the option that it names."""
        named = re.search(r"^--option (\w+)|keyword argument '(\w+)'", str(error))
        name = "" if named is None else named[1] or named[2]
        origin = self.origins.get(f"options.{name}", "")
        if not isinstance(error, OmniError):
            if not self.options:
                return error
            what = f"pipeline {pipeline!r} does not take these options, {self.options}"
            return ConfigError(f"{origin}: options.{name}: {what}: {message_of(error, with_type=True)}".lstrip(": "))
        if str(error).startswith("--model ") and "--model" not in self.origins.get("model_path", "--model"):
            return type(error)(f"{self.origins['model_path']}: model_path: {str(error).removeprefix('--model ')}")
        if not origin or "option" in origin:
            return error
        return type(error)(f"{origin}: options.{str(error).removeprefix('--option ')}")


def source_values(layers: Iterable[Layer]) -> SourceValues:
    """Return what layers, from low to high, say about the pipeline and what it is made from; a value of a wrong type is a problem."""
    found: dict[str, Any] = {"pipeline": None, "model_path": None, "options": {}}
    origins, problems = dict[str, str](), list[str]()
    for override in (each for layer in layers for each in layer.overrides if each.parts[0] in SOURCE):
        first, *rest = override.parts
        if bool(rest) != (first == "options") or not (rest or isinstance(override.value, str)):
            expected = "a mapping" if first == "options" else "a text"
            problems.append(f"{override.origin}: {first}: must be {expected}, is {override.path} = {override.value!r}")
            continue
        target, name = (found, first) if not rest else (found["options"], rest[-1])
        for key in rest[:-1]:
            target = target.setdefault(key, {})
            if not isinstance(target, dict):
                problems.append(f"{override.origin}: {override.path}: {key!r} is {target!r}, which has no parts")
                break
        else:
            target[name] = override.value
            origins[override.path] = override.origin
    return SourceValues(found["pipeline"], found["model_path"], found["options"], origins, problems)


def read_deploy(path: str | Path | Mapping[str, Any], registry: PluginRegistry) -> DeployFile:
    """Read a deploy file or a preset with everything that it is based on; a base that cannot be read is a problem.

    Args:
        path: a file, the name of a preset (``PIPELINE/NAME``), or what a file would hold.

    Raises:
        ConfigError: the file itself cannot be read.
    """
    documents, problems = list[tuple[str, Document]](), list[str]()
    chain: list[Path] = []
    here: str | Path | Mapping[str, Any] | None = path
    while here is not None:
        try:
            document = _read(here, registry, chain)
        except ConfigError as error:
            if not documents:
                raise
            where = "" if str(error).startswith(f"{here}:") else f"{documents[-1][1].origin('base')}: base: "
            problems.append(f"{where}{error}")
            break
        documents.append((f"base {document.name}" if documents else document.name, document))
        here = document.values.get("base")
        if here is not None and not isinstance(here, str):
            problems.append(f"{document.origin('base')}: base: must be a file or a preset, is {here!r}")
            break
        if here is not None and is_file(here):
            here = document.folder / here if not here.startswith("~") else here
    documents.reverse()
    checked = []
    for number, (name, document) in enumerate(documents):
        document, found = _checked(document, is_whole=not number and _is_whole(document))
        checked.append((name, document))
        problems += found
    return DeployFile(checked, problems)


def presets(component: PipelineComponent) -> dict[str, Path]:
    """Return the deploy files that a pipeline's distribution ships, by name."""
    if component.presets is None:
        return {}
    module, _, folder = normalize(component.presets).partition(":")
    found = (each for each in (files(module) / folder).iterdir() if each.name.endswith(".yaml"))
    return {each.name.removesuffix(".yaml"): Path(str(each)) for each in sorted(found, key=lambda each: each.name)}


def preset_names(registry: PluginRegistry) -> Iterator[str]:
    """Yield ``PIPELINE/NAME`` of every preset that is installed."""
    for component, _ in registry.components("omni_pipelines"):
        if isinstance(component, PipelineComponent):
            yield from (f"{component.name}/{name}" for name in presets(component))


def environment_layer(names: Iterable[str], environment: Mapping[str, str] | None = None) -> Layer:
    """Return what variables such as ``OMNI_SET__DECODER__GPU=1`` set. ``__`` stands for the dots of a path.

    Case does not matter: a name in capitals means the one of ``names`` (stages and fields) that it equals otherwise, or one in small
    letters. Names of environment variables, below ``env`` and ``env_defaults``, are kept. It is a problem if a value is no valid YAML,
    or a variable is nearly one of these and would set nothing.
    """
    known = {name.casefold().replace("-", "_"): name for name in names}
    overrides, problems = list[Override](), list[str]()
    for variable, text in (os.environ if environment is None else environment).items():
        nearly = re.fullmatch(r"omni_*set(_*)(.*)", variable, re.IGNORECASE)
        if not variable.startswith(SETTING_VARIABLE):
            if nearly and (nearly[1] or nearly[2].lower().startswith(tuple(known))):
                problems.append(
                    f"{variable}: sets nothing; did you mean {SETTING_VARIABLE}{nearly[2]}, with __ for the dots of a path?"
                )
            continue
        parts: list[str] = []
        for part in variable.removeprefix(SETTING_VARIABLE).split("__"):
            kept = bool({"env", "env_defaults"} & {*parts})
            name = part.lower() if part.isupper() and not kept else part
            parts.append(name if parts and parts != ["stages"] else known.get(name.casefold(), name))
        path = tuple(parts)
        try:
            overrides.append(
                Override(path, value_of(path, parse_yaml(text, variable)[0] if text else "", text), variable)
            )
        except ConfigError as error:
            problems.append(str(error))
    return Layer(ENVIRONMENT, overrides, problems)


def leaves(parts: tuple[str, ...], value: Any, origin: Callable[[tuple[str, ...]], str]) -> Iterator[Override]:
    """Descend into mappings, so that a layer changes single arguments and leaves their neighbours; an empty one says nothing."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves((*parts, str(key)), inner, origin)
    else:
        yield Override(parts, value, origin(parts))


def origins_of(document: Document) -> dict[str, str]:
    """Return where a document that describes a whole pipeline says each value, by path."""
    found = {}
    for place in document.lines:
        path = [str(each) for each in place]
        if place[0] == "stages" and len(place) > 1:
            stage = document.values["stages"][place[1]]
            path = [str(stage.get("name", place[1])) if isinstance(stage, dict) else str(place[1]), *path[2:]]
        found[".".join(path)] = document.origin(*place)
    return found


def whole_values(document: Document) -> dict[str, Any]:
    """Return the fields of the pipeline that a document describes."""
    return {key: value for key, value in document.values.items() if key not in ("relays", "platforms")}


def _read(here: str | Path | Mapping[str, Any], registry: PluginRegistry, chain: list[Path]) -> Document:
    """Read one file, preset or mapping. ``chain``: those that have been read, to which it is added."""
    if isinstance(here, Mapping):
        document = Document("config", Path(), dict(here))
    else:
        name = str(here)
        file = _file(name, registry)
        document = Document.read(file, None if is_file(name) else name)
        chain.append(file.resolve())
        if chain[-1] in chain[:-1]:
            raise ConfigError(f"{' -> '.join(map(str, chain))} is a cycle")
    if not isinstance(document.values, dict | None):
        raise ConfigError(f"{document.name}: must be a mapping of keys to values; there are: {', '.join(KEYS)}")
    return attrs.evolve(document, values=document.values or {})


def _file(name: str, registry: PluginRegistry) -> Path:
    if is_file(name):
        return expanded(name)
    pipeline, _, preset = name.partition("/")
    components = [component for component, _ in registry.components("omni_pipelines") if component.name == pipeline]
    shipped = presets(components[0]) if components and isinstance(components[0], PipelineComponent) else {}
    if preset not in shipped:
        listing = [f"{pipeline}/{each}" for each in shipped] or list(preset_names(registry))
        raise ConfigError(
            f"{name} is neither a file ({', '.join(CONFIG_SUFFIXES)}) nor a preset{did_you_mean(name, listing)}"
        )
    return shipped[preset]


def _layer(name: str, document: Document, keys: Iterable[str], around: tuple[str, ...]) -> Layer:
    values = document.values
    for each in around:
        values = values[each]
    found = []
    for key in keys:
        if key == "model_path" and str(values[key]).startswith("."):
            found.append(Override((key,), str(document.folder / values[key]), document.origin(key)))
        else:
            said = leaves((key,), values[key], lambda parts: document.origin(*around, *parts))
            found += [each for each in said if each.value is not None or not _is_section(each.parts)]
    return Layer(name, found)


def _is_section(parts: tuple[str, ...]) -> bool:
    """Return whether a path is that of a mapping, which may be written with nothing below it."""
    if parts[0] == "stages":
        return len(parts) == 2 or (len(parts) == 3 and parts[2] in ("factory_args", "env", "project_payload"))
    return parts in (("defaults", "params"), ("defaults", "metadata"), ("launcher", "settings"))


def _is_whole(document: Document) -> bool:
    return isinstance(document.values.get("stages"), list)


def _checked(document: Document, *, is_whole: bool) -> tuple[Document, list[str]]:
    """Return a document without the keys that are wrong, and a line for each of these."""
    values, problems = _valid(document, (), _WHOLE if is_whole else KEYS)
    if "platforms" in values:
        sections = {}
        for name, section in values["platforms"].items():
            where = document.origin("platforms", name)
            if name not in PLATFORMS:
                problems.append(f"{where}: platforms: no platform is called {name!r}{did_you_mean(name, PLATFORMS)}")
            elif not isinstance(section, dict | None):
                problems.append(f"{where}: platforms.{name}: must be a mapping, is {section!r}")
            else:
                sections[name], found = _valid(document, ("platforms", name), _SECTION)
                problems += found
        values["platforms"] = sections
    return attrs.evolve(document, values=values), problems


def _valid(document: Document, around: tuple[str, ...], known: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    values, problems, kept = document.values, [], {}
    for each in around:
        values = values[each]
    for key, value in (values or {}).items():
        where = document.origin(*around, key)
        if key not in known:
            hint = did_you_mean(key, known)
            if key in KEYS:
                hint = (
                    "; not in a section of `platforms`"
                    if around
                    else "; `stages` is a list, which describes a whole pipeline"
                )
            problems.append(f"{where}: {'.'.join(map(str, (*around, key)))}: unknown key{hint}")
        elif key in ("options", "relays", "platforms", "runtime_overrides") and not isinstance(value, dict | None):
            problems.append(f"{where}: {key}: must be a mapping, is {value!r}")
        elif key == "stages" and not isinstance(value, dict | None) and known is not _WHOLE:
            problems.append(
                f"{where}: stages: must map names to fields; only a pipeline's own file can add or remove stages"
            )
        elif value is not None or key not in (*SOURCE, "base", *_SECTIONS):
            kept[key] = value
        for name, preset in value.items() if key == "relays" and isinstance(value, dict) else ():
            if preset == {}:
                problems.append(f"{where}: relays.{name}: is empty; give it a field, such as backend")
    return kept, problems
