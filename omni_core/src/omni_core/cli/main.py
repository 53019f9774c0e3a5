"""The ``omni`` group: finds commands lazily, ours by module and plugins' by their components, and prints errors as one line."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from omni_core import __version__
from omni_core.cli.logs import group_log_options
from omni_core.elsewhere import FLAGS
from omni_core.errors import ConfigError, OmniError, PluginError, RequestFailedError, did_you_mean

if TYPE_CHECKING:
    from omni_core.hookspecs import Component

COMMANDS = {
    "run": ("omni_core.cli.run:run", "Run a pipeline for one request."),
}
"""The core's own commands: where each is, and one line about it. One of the same name that a plugin provides is used instead."""

SECTIONS = ("Run", "Serve", "Operate", "Prepare", "Develop")
"""The first sections of ``omni --help``, in this order; others follow."""

_FIELD = re.compile(
    r"^stages\[([^\]]+)\]\.(?!name|next|terminal|wait_for\b|stream_to)([A-Za-z_.]+):(?! unknown field)", re.MULTILINE
)
"""A line about one field of a stage that can be overridden."""


class LazyGroup(click.Group):
    """A group whose commands are imported when they are used. ``--help`` imports none of them.

    Plugins add commands to ``omni`` by their names, and to a group of it by ``GROUP NAME``: ``config explain``.
    """

    @property
    def _prefix(self) -> str:
        return "" if self.name == "omni" else f"{self.name} "

    @property
    def _summaries(self) -> dict[str, str]:
        """A line about each command of this group."""
        own = {name: command.get_short_help_str(200) for name, command in self.commands.items()}
        if not self._prefix:
            own |= {name: summary for name, (_, summary) in COMMANDS.items()}
        return own | {each.name.removeprefix(self._prefix): each.summary for each in _plugin_components(self._prefix)}

    def main(self, args: Sequence[str] | None = None, *others: Any, **extra: Any) -> Any:
        """Run a command. With ``--json``, a deliberate error is a JSON document on standard output."""
        given = list(sys.argv[1:] if args is None else args)
        if "--json" not in given or os.environ.get("OMNI_DEBUG") == "1":
            return super().main(given, *others, **extra)
        try:
            code = super().main(given, *others, **{**extra, "standalone_mode": False})
        except (OmniError, click.ClickException, OSError) as error:
            if isinstance(error, BrokenPipeError):
                raise
            click.echo(json.dumps({"error": error_document(error)}, default=str))
            code = getattr(error, "exit_code", 1)
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that was named; Ctrl-C is a line and an exit code, with ``--json`` too."""
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            if ours := FLAGS.get(error.option_name):
                message = f"No such option {error.option_name!r}; here it is {ours}"
                raise click.NoSuchOption(error.option_name, message, ctx=error.ctx) from None
            raise
        except (KeyboardInterrupt, click.Abort):
            click.echo("Interrupted.", err=True)
            ctx.exit(130)

    def list_commands(self, context: click.Context) -> list[str]:
        return list(self._summaries)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        from omni_core.plugins import PluginFault, isolated, load_plugins
        from omni_core.references import load

        if name in self.commands:
            return self.commands[name]
        registry, known = load_plugins(), self.list_commands(context)
        name = f"{self._prefix}{name}"
        if name not in registry.names("omni_commands"):
            if name in COMMANDS:
                own: click.Command = load(COMMANDS[name][0])
                return own
            unknown = f"no such command {name!r}" + did_you_mean(name.removeprefix(self._prefix), known)
            from omni_core.plugins.advice import comes_with

            if advice := comes_with("commands", name, records=registry.records):
                unknown = f"the command {name!r} comes with {advice}"
            context.fail("; ".join([unknown, *registry.suspects("omni_commands")]))
        component, record = next(each for each in registry.components("omni_commands") if each[0].name == name)
        try:
            with isolated():
                found: click.Command = load(registry.get("omni_commands", name).target)
        except PluginFault as fault:
            if isinstance(fault.__cause__, PluginError):
                raise fault.__cause__ from None
            raise PluginError(
                f"the command {name!r} of plugin {record.title} cannot be imported from {component.target}: {fault}"
            ) from fault
        return found

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        if self._prefix:
            with formatter.section("Commands"):
                formatter.write_dl(list(self._summaries.items()))
            return
        found = dict.fromkeys(COMMANDS, SECTIONS[0])
        found |= {each.name: getattr(each, "section", "Others") for each in _plugin_components("")}
        for section in dict.fromkeys((*SECTIONS, *found.values())):
            if rows := [(name, summary) for name, summary in self._summaries.items() if found[name] == section]:
                with formatter.section(section):
                    formatter.write_dl(rows)


def _plugin_components(prefix: str) -> Iterator[Component]:
    """Each command that a plugin adds to a group."""
    from omni_core.plugins import load_plugins

    for component, _ in load_plugins().components("omni_commands"):
        if component.name.startswith(prefix) and " " not in component.name.removeprefix(prefix):
            yield component


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="omni")
@group_log_options
def omni() -> None:
    """Serve models that take text, images, audio and video and answer with text and speech."""
    folder = os.environ.get("TMPDIR")
    if folder and not (os.path.isdir(folder) and os.access(folder, os.W_OK)):
        raise ConfigError(f"TMPDIR={folder} is not a folder that can be written; make it, set another one, or unset it")


def main(arguments: list[str] | None = None) -> Any:
    """Run the console script.

    A deliberate error, or one of the operating system (a full disk, no permission), is a line on standard error and exit code 1;
    ``OMNI_DEBUG=1`` shows its traceback.
    """
    if "_OMNI_COMPLETE" in os.environ:
        from omni_core.services import SHELL_COMPLETION

        with suppress(OmniError):  # it may improve click's scripts
            SHELL_COMPLETION.load()
    try:
        return omni.main(args=arguments, prog_name="omni", standalone_mode=True)
    except (OmniError, OSError) as error:
        if os.environ.get("OMNI_DEBUG") == "1":
            raise
        hint = "; --log-level info shows its traceback" if type(error) is RequestFailedError else ""
        click.echo(f"Error: {described(error)}{hint}", err=True)
        _drop_output()
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


def error_document(error: Exception) -> dict[str, Any]:
    """Return an error as ``--json`` shows it: its type, its message, and the attributes that a caller may act on."""
    message = error.format_message() if isinstance(error, click.ClickException) else described(error)
    document = {"type": getattr(error, "error_type", type(error).__name__), "message": message}
    for name in ("stage", "request_id", "retry_after"):
        if getattr(error, name, None) is not None:
            document[name] = getattr(error, name)
    return document


def _drop_output() -> None:
    """Flush standard output; what cannot be written (a full disk) is dropped, or the interpreter would fail again at its end."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def described(error: Exception) -> str:
    """Return the message of an error, with the flag for each field of a stage that it names: ``--set decoder.gpu_memory=...``."""
    text = _FIELD.sub(r"\g<0> (--set \1.\2=...)", str(error))
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename is not None else ""
        text = f"{where}{error.strerror or error} (OMNI_DEBUG=1 shows where)"
    try:
        os.getcwd()
    except FileNotFoundError:
        return f"{text}; the working directory has been deleted: change to one that exists"
    return text
