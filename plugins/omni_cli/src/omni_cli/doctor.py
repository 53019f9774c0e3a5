"""``omni doctor``: what this machine and this installation have, what is wrong, and what to do about it."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import attrs
import click

from omni_cli import machine_facts
from omni_cli.plugins import clashes
from omni_cli.requirements import ours, unmet
from omni_core import __version__
from omni_core.api import HOOKS, PipelineConfig, PluginRegistry, SchedulerComponent, gib, load_plugins
from omni_core.runtime_api import Defect, PluginStatus, works

_LIBRARIES = ("torch", "transformers", "safetensors", "numpy", "msgpack")
_SHOWN_MODELS = 6


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def doctor(as_json: bool) -> None:
    """Look at this machine and the installation, and say what to do. Exits with 1 if something needs attention."""
    registry = load_plugins()
    answers = [
        (f"{HOOKS[hook].kind} {component.name}", answer)
        for hook, component, _, answer in registry.check()
        if answer is not None
    ]
    facts = machine_facts.machine()
    to_do = [*machine_facts.advice(facts), *_about(registry)]
    to_do += [f"{name}: {answer}" for name, answer in answers if isinstance(answer, Defect)]
    to_do += [line for each in ours() for line in unmet(each)]
    report = {
        "omni_core": __version__,
        "machine": facts,
        "libraries": {name: _version(name) for name in _LIBRARIES},
        "pipelines": registry.names("omni_pipelines"),
        "plugins": [
            {"name": each.name, "status": each.status.value, "distribution": each.distribution, "version": each.version}
            for each in registry.records
        ],
        "warnings": {name: answer for name, answer in answers if works(answer)},
        "not_usable": {name: answer for name, answer in answers if not (works(answer) or isinstance(answer, Defect))},
        "to_do": to_do,
    }
    if as_json:
        click.echo(json.dumps(report, indent=2))
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 200
        for line in lines(report):
            for row in textwrap.wrap(line, width, subsequent_indent=" " * 17 if line.startswith("  ") else "  ") or [
                ""
            ]:
                click.echo(row)
    sys.exit(1 if to_do else 0)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _about(registry: PluginRegistry) -> Iterator[str]:
    """Yield what to do about the plugins and what pipelines need, a line each."""
    for record in registry.records:
        if record.status is PluginStatus.BROKEN:
            yield f"plugin {record.name} is broken ({record.reason}); see: omni plugins show {record.name}"
        elif record.status is PluginStatus.INCOMPATIBLE:
            yield f"plugin {record.name}: {record.reason}"
        yield from (f"plugin {record.name}: {line}" for line in record.warnings)
    yield from clashes(registry)
    default = attrs.fields(PipelineConfig).relay_backend.default
    relay = dict(_usable(registry, "omni_relays")).get(str(default))
    if default not in registry.names("omni_relays"):
        yield (
            f"the default relay {default!r} is not installed, which pipelines of several processes need; "
            f"try: pip install omni-relay-{default}"
        )
    elif relay:
        yield f"the default relay {default!r} cannot work here, which pipelines of several processes need: {relay}"
    runners = [component.name for component, _ in registry.components("omni_model_runners")]
    engines = [each for each, _ in registry.components("omni_schedulers") if isinstance(each, SchedulerComponent)]
    if runners and not any(each.runs_model_runners for each in engines):
        yield f"no engine is installed, which {', '.join(runners)} need; try: pip install omni-torch"
    if not registry.names("omni_pipelines"):
        yield "no pipeline is installed; try: pip install omni-qwen3"


def _usable(registry: PluginRegistry, hook: str) -> Iterator[tuple[str, str]]:
    """Yield the components of a hook, each with the reason why it cannot work, or an empty string."""
    for each, component, _, answer in registry.check():
        if each == hook:
            yield component.name, "" if works(answer) or answer is None else str(answer)


def lines(report: dict[str, Any]) -> Iterator[str]:
    """Yield the report as a person reads it."""
    facts = report["machine"]
    yield f"omni-core {report['omni_core']}, Python {facts['python']}, {facts['platform']}"
    yield ""
    yield "Machine"
    yield f"  processors     {facts['cores']}"
    yield f"  memory         {_of(facts['memory_available'], facts['memory'], 'free')}"
    yield f"  shared memory  {_size(facts['shared_memory_free'])} free"
    yield from _gpu_lines(facts)
    yield ""
    yield "Checkpoints"
    yield from _hub_lines(facts["hub"])
    yield ""
    yield "Packages"
    for name, installed in report["libraries"].items():
        yield f"  {name:<14} {installed or 'not installed'}{_build(facts) if name == 'torch' and installed else ''}"
    yield f"  pipelines      {', '.join(report['pipelines']) or 'none'}"
    loaded = [f"{each['distribution']} {each['version']}" for each in report["plugins"] if each["status"] == "loaded"]
    yield f"  plugins        {', '.join(loaded) or 'none'}"
    for each in report["plugins"]:
        if each["status"] != "loaded":
            yield f"  {each['distribution']} {each['version']}: {each['status']}"
    if report["warnings"]:
        yield from ("", "Works, with a limit")
        yield from _answers(report["warnings"])
    if report["not_usable"]:
        yield from ("", "Optional, not usable on this machine")
        yield from _answers(report["not_usable"])
    yield ""
    for line in report["to_do"]:
        yield f"To do: {line}"
    if not report["to_do"]:
        yield "Nothing needs attention."


def _gpu_lines(facts: dict[str, Any]) -> Iterator[str]:
    for number, gpu in enumerate(facts["gpus"]):
        free = None if None in (gpu["memory"], gpu["memory_used"]) else gpu["memory"] - gpu["memory_used"]
        yield f"  GPU {number}          {gpu['name']}, {_of(free, gpu['memory'], 'free')}, compute {gpu['compute_capability']}"
    visible = facts["gpus_visible"]
    if facts["gpus"]:
        yield f"  driver         {facts['driver']}, for CUDA up to {facts['driver_cuda'] or '(not known)'}"
        if visible is not None and len(visible) != len(facts["gpus"]):
            yield f"  visible here   {len(visible)} of {len(facts['gpus'])} (CUDA_VISIBLE_DEVICES)"
    elif visible:
        yield f"  GPUs           {', '.join(map(gib, visible))}; nvidia-smi, which would say more, is not here"
    else:
        yield f"  GPUs           {'not known' if visible is None else 'none'}"


def _hub_lines(hub: dict[str, Any] | None) -> Iterator[str]:
    if hub is None:
        yield "  huggingface-hub is not installed: only local checkpoint folders can be used"
        return
    models = hub["models"]
    more = f" and {len(models) - _SHOWN_MODELS} more" if len(models) > _SHOWN_MODELS else ""
    yield f"  cache          {hub['cache']}, {_size(hub['cache_free'])} free (HF_HOME, HF_HUB_CACHE)"
    yield f"  downloaded     {', '.join(models[:_SHOWN_MODELS]) or 'nothing'}{more}"
    yield f"  hub            {hub['endpoint']}{', offline (HF_HUB_OFFLINE)' if hub['offline'] else ''}"
    yield f"  token          {'there' if hub['token'] else 'none; gated models need one: hf auth login, or HF_TOKEN'}"


def _answers(answers: dict[str, str]) -> Iterator[str]:
    """Yield components with their answer, those with the same one together."""
    names: dict[str, list[str]] = {}
    for name, answer in answers.items():
        names.setdefault(answer, []).append(name)
    for answer, found in names.items():
        kinds: dict[str, list[str]] = {}
        for each in found:
            kind, _, name = each.rpartition(" ")
            kinds.setdefault(kind, []).append(name)
        yield "  " + "; ".join(f"{kind} {', '.join(each)}" for kind, each in kinds.items())
        yield f"      {answer}"


def _build(facts: dict[str, Any]) -> str:
    cuda = facts["torch"] and facts["torch"]["cuda"]
    return f" (CUDA {cuda})" if cuda else " (without CUDA)"


def _size(nbytes: int | None) -> str:
    return "not known" if nbytes is None else gib(nbytes)


def _of(part: int | None, whole: int | None, word: str) -> str:
    return _size(whole) if part is None else f"{_size(whole)}, {gib(part)} {word}"
