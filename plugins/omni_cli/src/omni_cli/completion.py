"""Completion in a shell of what a command says about a pipeline: its name, its options, its stages and their fields.

Nothing is downloaded, and no checkpoint is made: where a pipeline needs one to be described, an empty folder takes its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import attrs
import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class

from omni_cli.deploy.files import preset_names
from omni_cli.deploy.source import LayeredSource
from omni_core.api import PipelineComponent, PipelineConfig, RelayConfig, RestartConfig, StageConfig, load_plugins

_FIXED = {"name", "next", "terminal", "wait_for", "stream_to"}
_PARTS: dict[str, type] = {"relay": RelayConfig, "restart": RestartConfig}
_MAPPINGS = {"factory_args", "project_payload"}
_VALUES = {
    "dtype": ("bfloat16", "float16", "float32"),
    "processes": ("separate", "one"),
    "gpu": ("auto", "0"),
    "gpu_memory": ("80GiB", "24GiB"),
}


class SpacelessBash(BashComplete):
    """Bash's completion without a space after ``NAME=``, where the value follows."""

    source_template = BashComplete.source_template.replace(
        "    return 0\n", "    [[ ${COMPREPLY[0]} == *[=.] ]] && compopt -o nospace\n    return 0\n", 1
    )


add_completion_class(SpacelessBash, "bash")


def pipeline(context: click.Context, begun: str) -> list[CompletionItem]:
    """Complete the name of a pipeline; where none begins so, that of a preset, a file or a folder."""
    components = [component for component, _ in load_plugins().components("omni_pipelines")]
    found = [CompletionItem(each.name, help=each.summary) for each in components if each.name.startswith(begun)]
    if "/" in begun:
        found += [CompletionItem(name) for name in preset_names(load_plugins()) if name.startswith(begun)]
    return found or [CompletionItem(begun, type="file")]


def model(context: click.Context, begun: str) -> list[CompletionItem]:
    """Complete a checkpoint: a folder, or a model in the cache of the hub."""
    from omni_cli.machine_facts import hub

    facts = hub()
    found = [name for name in (facts["models"] if facts else ()) if begun and name.startswith(begun)]
    return [*map(CompletionItem, found)] or [CompletionItem(begun, type="dir")]


def option(context: click.Context, begun: str) -> list[CompletionItem]:
    """Complete ``NAME=`` of an option of the pipeline, or one of the values that it may have."""
    component = _component(context)
    if component is None:
        return []
    name, equals, _ = begun.partition("=")
    if equals:
        values = _VALUES.get(name, ()) if name in component.options else ()
        return _items({f"{name}={each}": "" for each in values}, begun)
    return _items({f"{name}=": text for name, text in component.options.items()}, begun)


def setting(context: click.Context, begun: str) -> list[CompletionItem]:
    """Complete ``STAGE.`` and ``STAGE.FIELD=`` of the pipeline."""
    if "=" in begun:
        return []
    stage, dot, rest = begun.partition(".")
    stages = _stages(context)
    if not dot:
        return _items({f"{name}.": "a stage" for name in stages}, begun)
    part = rest.partition(".")[0] if "." in rest else ""
    if part in _MAPPINGS and stage in stages:
        return _items({f"{stage}.{part}.{name}=": "" for name in stages[stage].get(part, ())}, begun)
    if part:
        fields = [each.name for each in attrs.fields(_PARTS[part])] if part in _PARTS else []
        return _items({f"{stage}.{part}.{name}=": "" for name in fields}, begun)
    names = [each.name for each in attrs.fields(StageConfig) if each.name not in _FIXED]
    ends = {name: "." if name in {*_MAPPINGS, *_PARTS} else "=" for name in names}
    return _items({f"{stage}.{name}{end}": "" for name, end in ends.items()}, begun)


def _items(texts: Mapping[str, str], begun: str) -> list[CompletionItem]:
    return [CompletionItem(text, help=help_text or None) for text, help_text in texts.items() if text.startswith(begun)]


def _named(context: click.Context) -> str:
    """Return the pipeline of a command line whose last option has no value yet: then click leaves arguments unread."""
    words = [word for word in context.args if not word.startswith("-")]
    return context.params.get("pipeline") or next(iter(words), "")


def _component(context: click.Context) -> PipelineComponent | None:
    name = _named(context)
    for component, _ in load_plugins().components("omni_pipelines"):
        if component.name == name and isinstance(component, PipelineComponent):
            return component
    return None


def _stages(context: click.Context) -> dict[str, dict[str, Iterable[Any]]]:
    """Return the stages of the pipeline, each with the keys of its mappings."""
    name, checkpoint = _named(context), context.params.get("model")
    for config in _configs(name, checkpoint):
        return {
            stage.name: {
                part: getattr(stage, part) or () for part in _MAPPINGS if isinstance(getattr(stage, part), dict)
            }
            for stage in config.stages
        }
    component = _component(context)
    roles = component.interface.roles if component is not None and component.interface is not None else {}
    return {stage: {} for stage in roles.values()}


def _configs(name: str, checkpoint: str | None) -> Iterator[PipelineConfig]:
    """Yield the pipeline's config if it can be had without a download."""
    known = name in load_plugins().names("omni_pipelines")
    if not LayeredSource(name).exists():  # a hub id
        return
    with suppress(Exception), TemporaryDirectory() as empty:
        Path(empty, "config.json").write_text("{}")
        if known and not (checkpoint and Path(checkpoint).is_dir()):
            checkpoint = empty
        yield LayeredSource(name, checkpoint if known else None).resolve().config


class Completion:
    """The service ``shell-completion`` (:class:`omni_core.services.ShellCompletion`)."""

    @staticmethod
    def complete(parameter: str, context: click.Context, begun: str) -> list[CompletionItem]:
        """Complete a parameter by its function here."""
        functions = {"model": model, "option": option, "pipeline": pipeline, "setting": setting}
        return functions[parameter](context, begun)
