"""The options that choose a pipeline, the same on every command that takes one, and the config that they mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

from omni_core.services import SHELL_COMPLETION

if TYPE_CHECKING:
    from omni_core.client.source import PipelineSource

F = TypeVar("F", bound=Callable[..., None])

SOURCE_OPTIONS = ("model", "option", "settings", "overlay")
"""The parameters that choose a pipeline, beside ``pipeline``."""

ENDPOINT_OPTIONS = {"accept": "endpoints.accept", "host_key": "endpoints.key_file", "launcher": "launcher.name"}
"""Those that set a field of the config, likewise, and the field."""


def source_of(options: Mapping[str, Any]) -> PipelineSource:
    """Return the pipeline that the options of :func:`with_source` name."""
    from omni_core.client.source import parse_options, source_class  # 80 ms, for which `--help` need not wait

    model, option, settings, overlay = (options[each] for each in SOURCE_OPTIONS)
    return source_class()(options["pipeline"], model, parse_options(option), settings, overlay)


def _completed(name: str) -> Callable[[click.Context, click.Parameter, str], list[Any]]:
    """Return the completion of a value in a shell, by a service, if one is installed."""

    def complete(context: click.Context, parameter: click.Parameter, begun: str) -> list[Any]:
        items: list[Any] = []
        with suppress(Exception):  # a traceback would spoil the line that is being typed
            service = SHELL_COMPLETION.load()
            items = service.complete(name, context, begun) if service is not None else []
        return items

    return complete


_OPTION: dict[str, Any] = {
    "multiple": True,
    "metavar": "NAME=VALUE",
    "help": "A pipeline's option; see `omni pipelines`.",
}
_SETTING: dict[str, Any] = {"multiple": True, "metavar": "STAGE.FIELD=VALUE", "help": "Override one field."}
_source: list[Callable[[Any], Any]] = [
    click.option("--model", help="A checkpoint folder or hub id.", shell_complete=_completed("model")),
    click.option("--option", shell_complete=_completed("option"), **_OPTION),
    click.option("--set", "settings", shell_complete=_completed("setting"), **_SETTING),
    click.option("--config", "overlay", metavar="FILE", help="A deploy file or a preset, laid over PIPELINE."),
    click.option("--launcher", metavar="NAME", help="What finds the machines: local, hosts, or a plugin's."),
    click.option("--accept", metavar="tcp://HOST:PORT", help="Let hosts join here: `omni hosts join`."),
    click.option("--host-key", metavar="FILE", help="The key file of the hosts (omni hosts key)."),
]


def with_source(function: F) -> F:
    """Add the options that choose a pipeline, the same on every command that takes one."""
    return click.argument("pipeline", shell_complete=_completed("pipeline"))(source_options(function))


def source_options(function: F) -> F:
    """Add those beside the argument ``PIPELINE``."""

    @wraps(function)
    def call(*arguments: Any, settings: tuple[str, ...], **options: Any) -> None:
        given = {path: options.pop(name) for name, path in ENDPOINT_OPTIONS.items()}
        settings += tuple(f"{path}={value}" for path, value in given.items() if value is not None)
        function(*arguments, settings=settings, **options)

    decorated: Any = call
    for decorator in reversed(_source):
        decorated = decorator(decorated)
    return decorated  # type: ignore[no-any-return]
