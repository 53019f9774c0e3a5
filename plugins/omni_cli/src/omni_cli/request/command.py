"""Commands that make requests, ``run``, ``chat`` and ``batch``: the flags that they share, those that a pipeline declares included."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import click

from omni_cli.request.generation import Generation
from omni_cli.request.media import MediaFile
from omni_cli.request.parameter_flags import GIVEN, SectionOption, parameter_flags
from omni_core.runtime_api import assign, log_options

if TYPE_CHECKING:
    from omni_cli.deploy.source import LayeredSource

Function = TypeVar("Function", bound=Callable[..., Any])

MESSAGE, REPLY, PIPELINE = "Message", "Reply", "Pipeline"
"""Sections of a command's help."""

ARGUMENTS = "omni_cli.arguments"
"""Key of ``click.Context.meta``: the arguments of the command as they were given."""

_FLAGS = "omni_cli.flags"


def section_option(section: str, *names: str, **attributes: Any) -> Callable[[Function], Function]:
    """Add an option that ``--help`` lists under ``section``."""
    return click.option(*names, cls=SectionOption, section=section, **attributes)


_shared: list[Callable[[Any], Any]] = [
    log_options,
    section_option(MESSAGE, "--system", help="A system message."),
    section_option(
        MESSAGE,
        "--reference",
        multiple=True,
        type=MediaFile("audio"),
        help="A recording of the voice; may be repeated.",
    ),
    section_option(
        MESSAGE, "--reference-text", multiple=True, help="The words of the recording; one for each --reference."
    ),
    section_option(REPLY, "--no-speech", is_flag=True, help="Text only."),
    section_option(REPLY, "--timeout", type=click.FloatRange(0, min_open=True), help="Give up after so many seconds."),
    section_option(
        REPLY, "--param", multiple=True, metavar="KEY=VALUE", help="A parameter of the request: GROUP.NAME or NAME."
    ),
    section_option(REPLY, "--metadata", multiple=True, metavar="KEY=VALUE", help="A key of the request's metadata."),
]


def with_request(function: Function) -> Function:
    """Add the options that every request of a command has; :func:`generation` reads them."""
    for decorator in reversed(_shared):
        function = decorator(function)
    return function


def generation(context: click.Context, options: dict[str, Any]) -> Generation:
    """Return what the options of :func:`with_request` and the pipeline's own flags say about every request.

    Raises:
        click.UsageError: something is given twice, or a text without its recording.
    """
    given = context.meta.get(GIVEN, {})
    assign(given, options)
    params, metadata = given.get("params", {}), given.get("metadata", {})
    modalities = ["text"] if options["no_speech"] else None
    return Generation(params, modalities, metadata, options["timeout"], _references(options))


def _references(options: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the voices to speak with. The pipeline decides whether a recording needs its text."""
    files, texts = options["reference"], options["reference_text"]
    if len(texts) > len(files):
        raise click.UsageError(f"--reference-text: {len(texts)} texts, {len(files)} recordings; add --reference FILE")
    references: list[dict[str, Any]] = [{"path": str(path.absolute())} for path in files]
    for reference, text in zip(references, texts, strict=False):
        reference["text"] = text
    return references


def _source(name: str, model: str | None = None, overlay: str | None = None) -> LayeredSource:
    from omni_cli.deploy.source import LayeredSource  # 100 ms, for which `omni run --help` need not wait

    return LayeredSource(name, model, overlay=overlay)


class RequestCommand(click.Command):
    """A command whose flags include those that the named pipeline declares."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [*super().get_params(ctx), *ctx.meta.get(_FLAGS, [])]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[ARGUMENTS] = [*args]
        (name, model, overlay), interface = self._pipeline_in(args), None
        with suppress(
            *([Exception] if ctx.resilient_parsing else [])
        ):  # completion guesses from what is on this machine
            if name is not None and (not ctx.resilient_parsing or _source(name).exists()):
                interface = _source(name, model, overlay).interface()
        taken = {flag for each in super().get_params(ctx) for flag in each.opts}
        ctx.meta[_FLAGS] = [] if interface is None else list(parameter_flags(interface, taken))
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if name is None or error.possibilities:
                raise
            hint = "declares no parameters; use --param" if interface is None else "has others; see its --help"
            message = f"No such option {error.option_name}: {name} {hint}."
            raise click.NoSuchOption(error.option_name, message, ctx=ctx) from None

    def _pipeline_in(self, args: list[str]) -> tuple[str | None, str | None, str | None]:
        """Find the pipeline's name, its model and the overlay among arguments whose flags are not all known yet."""
        probe = click.Context(self, resilient_parsing=True, ignore_unknown_options=True)
        options: list[click.Parameter] = [each for each in self.params if isinstance(each, click.Option)]
        parser = click.Command(None, params=options, add_help_option=False).make_parser(probe)
        given, rest, _ = parser.parse_args([*args])
        before = [each.name for each in self.params if isinstance(each, click.Argument)].index("pipeline")
        names = [each for each in rest if not each.startswith("-")][before:]
        name = next((each for each in names if _source(each).exists()), names[0] if names else None)
        return name, given.get("model"), given.get("overlay")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {MESSAGE: [], REPLY: []}
        for each in self.get_params(ctx):
            record = each.get_help_record(ctx)
            if record is not None and isinstance(each, click.Option):
                sections.setdefault(getattr(each, "section", PIPELINE), []).append(record)
        for heading, rows in sections.items():
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)
        if not ctx.meta.get(_FLAGS):
            formatter.write_paragraph()
            formatter.write_text(f"`omni {self.name} {self._arguments()} --help` adds the parameters of that pipeline.")

    def _arguments(self) -> str:
        return " ".join(
            each.make_metavar(click.Context(self)) for each in self.params if isinstance(each, click.Argument)
        )
