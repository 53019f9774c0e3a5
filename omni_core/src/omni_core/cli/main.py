"""The ``omni`` group: finds commands lazily, ours by module and plugins' by their components, and prints errors as one line."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from omni_core import __version__
from omni_core.errors import OmniError

_COMMANDS = {
    "run": ("omni_core.cli.run:run", "Run a pipeline: one request, or a chat."),
    "pipelines": ("omni_core.cli.pipelines:pipelines", "List the installed pipelines."),
    "plugins": ("omni_core.cli.plugins:plugins", "What is installed, what is broken, and why."),
    "config": ("omni_core.cli.config:config", "Show, check and draw a pipeline's config."),
    "plan": ("omni_core.cli.plan:plan", "Show which process and device each stage gets, and whether it fits."),
    "top": ("omni_core.cli.top:top", "Watch a running pipeline."),
    "profile": ("omni_core.cli.profile:profile", "Record where a running pipeline's time goes."),
    "hosts": ("omni_core.cli.hosts:hosts", "Let pipelines of other hosts run stages on this one."),
    "doctor": ("omni_core.cli.doctor:doctor", "Look at this machine and say what to do."),
}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are used. ``--help`` imports none of them."""

    def list_commands(self, context: click.Context) -> list[str]:
        from omni_core.plugins import load_plugins

        return [*_COMMANDS, *(name for name in load_plugins().names("omni_commands") if name not in _COMMANDS)]

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        from omni_core.plugins import load_plugins
        from omni_core.references import load

        if name in _COMMANDS:
            command: click.Command = load(_COMMANDS[name][0])
            return command
        registry = load_plugins()
        if name not in registry.names("omni_commands"):
            if suspects := registry.suspects():
                context.fail("; ".join([f"No such command {name!r}", *suspects]))
            return None
        found: click.Command = load(registry.get("omni_commands", name).target)
        return found

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        from omni_core.plugins import load_plugins

        rows = [(name, summary) for name, (_, summary) in _COMMANDS.items()]
        rows += [
            (component.name, component.summary)
            for component, _ in load_plugins().components("omni_commands")
            if component.name not in _COMMANDS
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="omni")
def omni() -> None:
    """Serve models that take text, images, audio and video and answer with text and speech."""


def main(arguments: list[str] | None = None) -> Any:
    """The console script. A deliberate error is a line on stderr and exit code 1; OMNI_DEBUG=1 shows its traceback."""
    try:
        return omni.main(args=arguments, prog_name="omni", standalone_mode=True)
    except OmniError as error:
        if os.environ.get("OMNI_DEBUG") == "1":
            raise
        click.echo(f"Error: {error}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
