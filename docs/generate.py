"""Writes the pages of docs/reference from the code that they describe: Python interface, hookspecs, contracts, conformance suites,
config, commands; the request parameters on the pages of the models, and the list of decision records.

``python docs/generate.py`` writes them, ``--check`` only says which are not current. The pages are committed, so that they can be
read without building anything. Every distribution of this repository must be installed.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, get_overloads, get_type_hints

import attrs
import click

from omni_core import hookspecs
from omni_core.cli.main import omni
from omni_core.config.schema import PipelineConfig
from omni_core.launch.prepare import ENVIRONMENT
from omni_core.plugins import load_plugins
from omni_core.references import load
from omni_core.relay.base import RelayOptions

DOCS = Path(__file__).parent
ROOT = DOCS.parent
REFERENCE = DOCS / "reference"
NOTICE = "<!-- Written by docs/generate.py. Change the code that is described, then run it. -->\n"

VARIABLES = {
    "OMNI_PLUGINS": "Plugins to load, as names or patterns with commas between; empty for none. Unset: all that are installed.",
    "OMNI_DISABLE_PLUGINS": "Plugins not to load, in the same form. It wins over `OMNI_PLUGINS`.",
    "OMNI_DEBUG": "`1`: `omni` shows the traceback of an error that is otherwise one line.",
    "OMNI_LOG_LEVEL": "The least level that is logged: of the `omni` command and of stage processes. By default `WARNING`.",
    "OMNI_LOG_FORMAT": "`text` or `json`: the log of the `omni` command. By default `text`.",
    "OMNI_CHECK_MUTATION": "`1`: look for changes of objects that stages of one process hand to each other by reference. Slow.",
    "OMP_NUM_THREADS": f"In stage processes `{ENVIRONMENT['OMP_NUM_THREADS']}`, unless it or `env_defaults` says otherwise.",
    "TOKENIZERS_PARALLELISM": f"In stage processes `{ENVIRONMENT['TOKENIZERS_PARALLELISM']}`, likewise.",
    "TMPDIR": "Where a run makes its private folder for sockets, unless `endpoints.base_path` says otherwise.",
    "CUDA_VISIBLE_DEVICES": "The GPUs that there are; `gpu` counts what is left.",
    "UCX_TLS": "The transports of the nixl relay; see [relays](../relays.md).",
    "MC_LOG_LEVEL": "How much Mooncake's engine writes; the mooncake relay sets it to `ERROR` where it is not set.",
    "XDG_STATE_HOME": "Where the history of `omni chat` is kept. By default `~/.local/state`.",
    "NO_COLOR": "Set: no colours in `omni chat`, `omni top` and `omni batch`.",
    "XDG_CACHE_HOME": "Where the random Qwen3-Omni checkpoint is kept that `omni run` makes without `--model`. By default `~/.cache`.",
}
"""Every environment variable that means something here."""

PYTHON_TEXT = (
    "`import omni_core as omni`: open a pipeline by its name and ask it, from a script, a thread, a notebook or an event loop. "
    "[From Python](../python.md) shows the common uses."
)

PYTHON = {
    "Opening a pipeline": [
        "omni_core:open",
        "omni_core:open_async",
        "omni_core.client:OpenOptions",
        "omni_core:MediaPolicy",
        "omni_core:Recording",
    ],
    "Asking it": ["omni_core:Pipe", "omni_core:AsyncPipe", "omni_core:OmniRequest"],
    "Replies": [
        "omni_core:Reply",
        "omni_core:Audio",
        "omni_core:Usage",
        "omni_core:ReplyStream",
        "omni_core:AsyncReplyStream",
        "omni_core:TextPiece",
        "omni_core:AudioPiece",
    ],
    "Errors": [
        "omni_core:OmniError",
        "omni_core:ConfigError",
        "omni_core:PluginError",
        "omni_core:StartupError",
        "omni_core:InvalidRequestError",
        "omni_core:OverloadedError",
        "omni_core:RequestFailedError",
        "omni_core:RequestTimeoutError",
        "omni_core:RequestAbortedError",
    ],
}
"""The reference page of the Python interface, by heading."""

CONTRACTS_TEXT = (
    "Every class and function that a plugin implements, is given or calls, with its methods. The pages about "
    "[stages](../stages.md), [models](../models.md), [relays](../first-relay.md) and [kernels](../kernels.md) show them in use."
)

CONTRACTS = {
    "Schedulers": [
        "omni_core.scheduling.base:Scheduler",
        "omni_core.scheduling.base:IncomingMessage",
        "omni_core.scheduling.base:OutgoingMessage",
        "omni_core.scheduling.base:MessageQueue",
        "omni_core.scheduling.loop:LoopScheduler",
        "omni_core.scheduling.simple:SimpleScheduler",
        "omni_core.scheduling.streaming:StreamingScheduler",
    ],
    "Requests and results": [
        "omni_core.protocol.messages:OmniRequest",
        "omni_core.protocol.messages:StagePayload",
        "omni_core.protocol.outputs:TextChunk",
        "omni_core.protocol.outputs:AudioChunk",
        "omni_core.protocol.outputs:TextResult",
        "omni_core.protocol.outputs:AudioResult",
        "omni_core.interface:Interface",
        "omni_core.interface:ParameterGroup",
        "omni_core.interface:Parameter",
    ],
    "Relays": [
        "omni_core.relay.base:Relay",
        "omni_core.relay.base:RelayOperation",
        "omni_core.relay.base:RelayOptions",
        "omni_relay_kit.bounded_pool:BoundedPool",
        "omni_relay_kit.pull_relay:PulledRelay",
    ],
    "Model runners": [
        "omni_core.model_runner:ModelRunner",
        "omni_core.model_runner:ARModel",
        "omni_core.model_runner:FeedbackStrategy",
        "omni_core.model_runner:ARRequest",
        "omni_core.model_runner:SamplingParams",
        "omni_core.model_runner:ForwardBatch",
        "omni_core.model_runner:ForwardOutput",
        "omni_core.model_runner:KVLayout",
        "omni_core.model_runner:PagedAttention",
        "omni_torch.model_runner:ARModelRunner",
        "omni_torch.model_runner:FeedbackARModelRunner",
        "omni_torch.autoregressive_loop:AutoregressiveLoop",
        "omni_torch.autoregressive_loop:LoopedScheduler",
        "omni_torch.autoregressive_loop:Policy",
        "omni_torch.vocoder:VocoderScheduler",
        "omni_torch.vocoder:Vocoder",
        "omni_torch.kernels:Operation",
    ],
}
"""Reference pages by heading: what authors of plugins implement or call."""

CONFORMANCE_TEXT = (
    "The suites of `omni-testing`. Subclass one, set its attributes or override its methods, and pytest runs every test of the "
    "contract on your implementation. [Testing a plugin](../testing-plugins.md) shows how."
)

CONFORMANCE = {
    "Suites": [
        "omni_testing:RelayConformance",
        "omni_testing:SchedulerConformance",
        "omni_testing:ModelRunnerConformance",
        "omni_testing:FeedbackConformance",
        "omni_testing:PipelineStructureConformance",
        "omni_testing:PipelineConformance",
        "omni_testing:ProjectionConformance",
        "omni_testing:PluginConformance",
    ]
}

PIPELINE_EXAMPLE = """\
model_path: /models/my-model
name: my-model
relay_backend: shm
restart: {limit: 3, window: 60}
retries: 1
stages:
  - name: prepare
    process: front
    factory: my_model.stages:prepare
    next: [encoder, join]
    route_fn: my_model.routing:skip_encoder_without_images
    project_payload: {encoder: "my_model.routing:pixels_only"}
  - name: encoder
    process: encoder
    factory: my_model.stages:create_encoder
    factory_args: {dtype: bfloat16}
    gpu: 0
    gpu_memory: 4GiB
    next: join
  - name: join
    process: front
    factory: my_model.stages:join
    wait_for: [prepare, encoder]
    wait_for_fn: my_model.routing:active_encoders
    merge_fn: my_model.routing:merge
    next: writer
  - name: writer
    process: writer
    factory: engine
    factory_args: {max_running: 16}
    gpu: [0, 1]
    gpu_memory: 40GiB
    replicas: 2
    affinity_key: conversation
    relay: {slot_size_mb: 128, credits: 4}
    terminal: true
"""

OVERLAY_EXAMPLE = """\
retries: 0
stages:
  writer:
    factory_args: {max_running: 8}
    relay: {credits: 2}
"""


MODEL_PAGES = {"qwen3-omni": "qwen3-omni.md", "fish-s2": "fish-s2.md"}
"""The pages with a part that describes the requests of a pipeline, between two comments."""

BEGIN, END = "<!-- begin: written by docs/generate.py -->\n", "<!-- end -->\n"


def pages() -> dict[Path, str]:
    """Every page by its file."""
    return {
        **{DOCS / file: model_page(name, DOCS / file) for name, file in MODEL_PAGES.items()},
        DOCS / "decisions.md": decisions_page(),
        REFERENCE / "python.md": contracts_page("Python interface", PYTHON_TEXT, PYTHON),
        REFERENCE / "hooks.md": hooks_page(),
        REFERENCE / "config.md": config_page(),
        REFERENCE / "cli.md": cli_page(),
        REFERENCE / "contracts.md": contracts_page("Contracts", CONTRACTS_TEXT, CONTRACTS),
        REFERENCE / "conformance.md": contracts_page("Conformance suites", CONFORMANCE_TEXT, CONFORMANCE),
    }


# --- docstrings --------------------------------------------------------------------------------------------------------
def markdown(docstring: str, language: str = "python") -> str:
    """A docstring's reStructuredText as Markdown; ``language`` is that of its literal blocks."""
    text = re.sub(r":\w+:`~[^`]*?(\w+)`|:\w+:`([^`]+)`", lambda found: f"`{found[1] or found[2]}`", docstring)
    lines, literal, written = text.replace("``", "`").splitlines(), False, []
    for number, line in enumerate(lines):
        if literal and line and not line.startswith(" "):
            written[-1:] = ["```", ""]
            literal = False
        written.append(line[4:] if literal else line)
        if line.endswith("::"):
            written[-1] = line[:-1]
            lines[number + 1] = f"    ```{language}"
            written.append("")
            literal = True
    return "\n".join([*written, "```"] if literal else written)


def prose(thing: Any) -> str:
    """The docstring of a class or a function without the descriptions of its attributes."""
    return markdown((inspect.getdoc(thing) or "").partition("Attributes:\n")[0].rstrip())


def attribute_texts(cls: type) -> dict[str, str]:
    """Return the description of each attribute from the docstrings of a class and its bases."""
    texts: dict[str, str] = {}
    for each in reversed(cls.__mro__[:-1]):
        section = inspect.cleandoc(each.__doc__ or "").partition("Attributes:\n")[2]
        for names, text in re.findall(r"^    (\w+(?:, \w+)*): (.*(?:\n {8}.*)*)", section, re.MULTILINE):
            texts |= dict.fromkeys(names.split(", "), markdown(" ".join(text.split())))
    return texts


def field_table(cls: type[Any]) -> str:
    """The fields of an attrs class.

    Raises:
        ValueError: one is not described.
    """
    texts = attribute_texts(cls)
    rows = ["| field | type | default | |", "|---|---|---|---|"]
    for attribute in attrs.fields(cls):
        if attribute.name not in texts:
            raise ValueError(f"the docstring of {cls.__name__} does not describe {attribute.name!r}")
        # As written: `attribute.type` is a string or a class, by whether something has resolved the class before.
        written = next(
            base.__annotations__[attribute.name]
            for base in cls.__mro__
            if attribute.name in vars(base).get("__annotations__", {})
        )
        kind = " or ".join(f"`{each.strip()}`" for each in str(written).split(" | "))
        text = texts[attribute.name][0].upper() + texts[attribute.name][1:]
        text = text.replace(
            " | ", "` or `"
        )  # no way to write a bar in a table's code is read alike by GitHub and mkdocs
        rows.append(f"| `{attribute.name}` | {kind} | {default(attribute)} | {text} |")
    return "\n".join(rows)


def default(attribute: attrs.Attribute[Any]) -> str:
    value: Any = attribute.default
    if value is attrs.NOTHING:
        return "required"
    return f"`{value.factory()!r}`" if hasattr(value, "factory") else f"`{value!r}`"


def constants(module: Any) -> Iterator[tuple[str, Any, str]]:
    """The documented constants of a module: name, value, docstring."""
    body = ast.parse(inspect.getsource(module)).body
    for statement, following in pairwise(body):
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        if isinstance(targets[0], ast.Name) and isinstance(following, ast.Expr):
            yield targets[0].id, getattr(module, targets[0].id), ast.literal_eval(following.value)


# --- hooks -------------------------------------------------------------------------------------------------------------
def hooks_page() -> str:
    summary, _, rest = (inspect.getdoc(hookspecs) or "").partition("\n\n")
    documented = {name: (value, text) for name, value, text in constants(hookspecs)}
    hooks = {name: each.specification for name, each in hookspecs.HOOKS.items()}
    parts = [
        "# Plugin hooks",
        f"{markdown(summary)} In the code it is `omni_core/hookspecs.py`. [Writing a plugin](../plugins.md) shows how to begin.",
        markdown(rest, "text"),
        "## API level",
        "The contract of every kind of hook has a level. The entry point of a plugin names the levels that it works with, "
        '`my-relay = "my_relay.plugin [relays-1]"`; they are read before its module is imported. '
        "One for which this core is too old or too new is not imported; `omni plugins list` says which of the two to upgrade.",
        "## Hooks",
        "\n".join(
            [
                "| hook | a component is a | level | returns |",
                "|---|---|---|---|",
                *(
                    f"| [`{name}`](#{name}) | {each.kind} | `{each.plural}-{each.level}` | `{return_type(hooks[name])}` |"
                    for name, each in hookspecs.HOOKS.items()
                ),
            ]
        ),
    ]
    for name, function in hooks.items():
        signature = str(inspect.signature(function)).replace("'", "")
        parts += [f"### {name}", f"```python\ndef {name}{signature}: ...\n```", prose(function)]
    parts.append("## Components")
    for cls in (hookspecs.Component, *subclasses(hookspecs.Component)):
        base = cls.__mro__[1]
        parts += [f"### {cls.__name__}", prose(cls)]
        if base is not object:
            parts.append(f"A `{base.__name__}` with further fields, which are given by name.")
        parts.append(field_table(cls))
    parts.append(f"`Probe = {probe_type()}`: {markdown(documented['Probe'][1])}")
    return page(parts)


def return_type(function: Any) -> str:
    return str(function.__annotations__["return"])


def subclasses(cls: type) -> list[type]:
    return sorted(cls.__subclasses__(), key=lambda each: each.__name__)


def probe_type() -> str:
    return str(hookspecs.Probe).replace("collections.abc.", "")


# --- config ------------------------------------------------------------------------------------------------------------
def config_page() -> str:
    classes = nested(PipelineConfig)
    parts = [
        "# Config",
        "A pipeline is described by a `PipelineConfig`. Plugins provide one from a function ([hooks](hooks.md#omni_pipelines)); you "
        "can also write one as YAML or JSON. Unknown fields are errors, which name the nearest known one; every error names its full "
        "path, such as `stages[thinker].tp_size`. `omni config validate` checks a config without starting anything. The classes are in "
        "`omni_core.config.schema`.",
        f"A whole file:\n\n```yaml\n{PIPELINE_EXAMPLE}```",
        "## Overrides",
        "A user changes fields of somebody else's pipeline without touching its topology: with an overlay file, then with flags, which "
        "win. In an overlay, `stages` maps names to fields. Mappings are merged key by key; everything else is replaced.",
        f"```yaml\n{OVERLAY_EXAMPLE}```",
        "```bash\nomni run my-model --config overlay.yaml --set writer.factory_args.max_running=4 --text Hello\n"
        "omni config show my-model --config overlay.yaml --provenance   # who set what\n```",
        "`name`, `next`, `terminal`, `wait_for` and `stream_to` cannot be overridden. An override of something that does not exist is "
        "an error, and so is the same path twice in one place.",
    ]
    for cls in classes:
        parts += [f"## {cls.__name__}", prose(cls), field_table(cls)]
    variables = [f"| `{name}` | {text} |" for name, text in VARIABLES.items()]
    parts += [
        "## What a relay gets",
        "A relay is built from `omni_core.relay.base.RelayOptions`: the stage's `RelayConfig`, resolved for the process that it "
        "belongs to. Stages that share a process must have equal `relay` settings.",
        prose(RelayOptions),
        field_table(RelayOptions),
        "## Environment variables",
        "\n".join(["| variable | |", "|---|---|", *variables]),
    ]
    return page(parts)


def nested(cls: type) -> list[type]:
    """A config class, and the config classes of its fields, each once."""
    found = [cls]
    for kind in get_type_hints(cls).values():
        for each in config_classes(kind):
            found += [inner for inner in nested(each) if inner not in found]
    return found


def config_classes(kind: Any) -> list[type]:
    inner = [each for argument in getattr(kind, "__args__", ()) for each in config_classes(argument)]
    return [kind, *inner] if attrs.has(kind) else inner


# --- commands ----------------------------------------------------------------------------------------------------------
def cli_page() -> str:
    parts = [
        "# Command line",
        "`omni COMMAND --help` says the same. `python -m omni_core.cli` is equivalent to `omni`. Results go to standard output, "
        "everything else to standard error.",
        "\n".join(
            [
                "| exit code | |",
                "|---|---|",
                "| 0 | done |",
                "| 1 | an error, on standard error, or with `--json` as a document on standard output; of `omni doctor` and "
                "`omni plugins check`: something needs attention |",
                "| 2 | the command line is wrong |",
                "| 130, 143 | interrupted, terminated |",
            ]
        ),
        "\n".join(
            [
                "| command | |",
                "|---|---|",
                *(
                    f"| [`omni {name}`](#omni-{name}) | {command.get_short_help_str(200)} |"
                    for name, command, _ in commands()
                ),
            ]
        ),
    ]
    for name, command, owner in commands():
        title, text, *rest = command_parts(f"omni {name}", command, 2)
        parts += [title, text if owner is None else f"{text} Comes with `{owner}`.", *rest]
    return page(parts)


def commands() -> list[tuple[str, click.Command, str | None]]:
    """Name, command, and the distribution if it is not the core: all commands of this repository's distributions."""
    projects = [*ROOT.glob("*/pyproject.toml"), *ROOT.glob("plugins/*/pyproject.toml")]
    ours = {tomllib.loads(path.read_text())["project"]["name"] for path in projects}
    owners = {component.name: record.distribution for component, record in load_plugins().components("omni_commands")}
    context = click.Context(omni)
    found = [(name, omni.get_command(context, name), owners.get(name)) for name in omni.list_commands(context)]
    return [(name, command, owner) for name, command, owner in found if command and (owner is None or owner in ours)]


def command_parts(path: str, command: click.Command, depth: int) -> Iterator[str]:
    yield f"{'#' * depth} {path}"
    yield inspect.cleandoc(command.help or "")
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from command_parts(f"{path} {name}", inner, depth + 1)
        return
    arguments = [each for each in command.params if isinstance(each, click.Argument)]
    options = [each for each in command.params if isinstance(each, click.Option)]
    names = [each.name.upper() if each.required else f"[{each.name.upper()}]" for each in arguments if each.name]
    yield f"```\n{' '.join([path, *(['[OPTIONS]'] if options else []), *names])}\n```"
    if options:
        rows = [f"| `{option_form(each)}` | {option_text(each)} |" for each in options]
        yield "\n".join(["| option | |", "|---|---|", *rows])


def option_form(option: click.Option) -> str:
    names = ", ".join(option.opts)
    return names if option.is_flag else f"{names} {option.metavar or value_name(option.type)}"


def value_name(kind: click.ParamType) -> str:
    if isinstance(kind, click.Choice):
        return " or ".join(map(str, kind.choices))
    if isinstance(kind, click.Path):
        return "PATH"
    return {"integer": "INTEGER", "float": "NUMBER", "text": "TEXT"}[kind.name.removesuffix(" range")]


def option_text(option: click.Option) -> str:
    text = option.help or ""
    return f"{text} By default `{option.default}`.".strip() if option.show_default else text


# --- contracts ---------------------------------------------------------------------------------------------------------
SECTION = re.compile(r"^(Args|Returns|Raises|Attributes|Yields):[ \t]*(.*)$", re.MULTILINE)


def contracts_page(title: str, text: str, groups: dict[str, list[str]]) -> str:
    parts = [f"# {title}", text]
    for heading, references in groups.items():
        parts.append(f"## {heading}")
        for reference in references:
            parts += contract_parts(reference)
    return page(parts)


def contract_parts(reference: str) -> Iterator[str]:
    """One class or function: where it is, its signature and docstring, then its public methods."""
    thing = load(reference)
    module, _, name = reference.partition(":")
    yield f"### {name}"
    found = f"import omni_core as omni  # omni.{name}" if module == "omni_core" else f"from {module} import {name}"
    yield f"```python\n{found}\n```"
    if not inspect.isclass(thing):
        yield f"```python\n{signature(name, thing)}\n```"
        yield described(thing, reference)
        return
    bases = [base.__name__ for base in thing.__bases__ if base.__module__.startswith("omni_")]
    if bases:
        yield f"Subclass of {' and '.join(f'`{base}`' for base in bases)}."
    yield described(thing, reference)
    for member, value in public_members(thing):
        function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if function is None:
            continue
        yield f"#### {name}.{member}"
        traits = [
            word
            for word, holds in (("abstract", is_abstract(function)), ("property", isinstance(value, property)))
            if holds
        ]
        yield f"```python\n{signature(member, function)}\n```" + (f"\n\n*{', '.join(traits)}*" if traits else "")
        text = inspect.getdoc(function)
        if text:
            yield sections(text)


def is_abstract(function: Any) -> bool:
    """True for a method that an implementation must define."""
    return bool(getattr(function, "__isabstractmethod__", False))


def public_members(cls: type) -> Iterator[tuple[str, Any]]:
    """Methods and properties in the order of their source: those of a class itself, and those of the client that it inherits.
    Tests of a suite are left out.
    """
    inherited = {
        name: value
        for base in cls.__mro__[:0:-1]
        if base.__module__.startswith("omni_core.client")
        for name, value in vars(base).items()
    }
    for member, value in {**inherited, **vars(cls)}.items():
        if member.startswith(("_", "test_")):
            continue
        if inspect.isfunction(value) or isinstance(value, (property, classmethod, staticmethod)):
            yield member, value


def described(thing: Any, reference: str) -> str:
    """The docstring with its sections as lists.

    Raises:
        ValueError: there is none.
    """
    text = inspect.getdoc(thing)
    if not text:
        raise ValueError(f"{reference} has no docstring")
    return sections(text)


def sections(docstring: str) -> str:
    """A docstring whose ``Args:``, ``Raises:`` and like sections become lists of their entries."""
    found = list(SECTION.finditer(docstring))
    parts = [markdown(docstring[: found[0].start()] if found else docstring).strip()]
    for number, each in enumerate(found):
        end = found[number + 1].start() if number + 1 < len(found) else len(docstring)
        lines = docstring[each.end() : end].strip("\n").splitlines()
        inside, after = indented_part(lines)
        entries = (
            re.findall(r"^([\w., *]+): (.*(?:\n[ \t]+.*)*)", "\n".join(inside), re.MULTILINE) if not each[2] else []
        )
        if entries:
            listed = [f"- `{names.strip()}`: {markdown(' '.join(text.split()))}" for names, text in entries]
            parts.append(f"**{each[1]}**\n\n" + "\n".join(listed))
        else:
            parts.append(f"**{each[1]}** {markdown(' '.join([each[2], *' '.join(inside).split()]))}")
        parts.append(markdown("\n".join(after)).strip())
    return "\n\n".join(part for part in parts if part)


def indented_part(lines: list[str]) -> tuple[list[str], list[str]]:
    """The lines of a section, without their indentation, and what follows it at a smaller one."""
    first = next((line for line in lines if line.strip()), "")
    margin = len(first) - len(first.lstrip())
    inside = next((n for n, line in enumerate(lines) if line.strip() and not line.startswith(" " * margin)), len(lines))
    return [line[margin:] for line in lines[:inside]], lines[inside:]


def signature(name: str, function: Any) -> str:
    """Return ``def name(parameters) -> result: ...`` on one line, or a parameter a line where that is too long."""
    begin = "async def" if inspect.iscoroutinefunction(function) else "def"
    function = next(iter(get_overloads(function)), function)  # the first one names the arguments
    found = inspect.signature(function)
    text = str(found).replace("'", "")
    text = re.sub(r"\bcollections\.abc\.|\btyping\.", "", text)
    if len(f"{begin} {name}{text}: ...") <= 120:
        return f"{begin} {name}{text}: ..."
    kinds = [each.kind for each in found.parameters.values()]
    listed = [str(each).replace("'", "") for each in found.parameters.values()]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        listed.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    inner = ",\n    ".join(listed)
    result = (
        "" if found.return_annotation is found.empty else f" -> {str(found.return_annotation).replace(chr(39), '')}"
    )
    return f"{begin} {name}(\n    {inner},\n){result}: ..."


# --- models and decisions ------------------------------------------------------------------------------------------------
def model_page(pipeline: str, path: Path) -> str:
    """The page with its generated part written anew.

    Raises:
        ValueError: the comments around that part are missing.
    """
    before, begin, rest = path.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{path} needs a line {BEGIN.strip()} and then a line {END.strip()}")
    components = [each for each, _ in load_plugins().components("omni_pipelines") if each.name == pipeline]
    return before + begin + "\n" + "\n\n".join(request_parts(components[0])) + "\n\n" + end + after


def request_parts(component: Any) -> Iterator[str]:
    """What a pipeline takes, from the interface that its component declares."""
    interface = component.interface
    inputs, outputs = " and ".join(interface.inputs), " and ".join(interface.outputs)
    rate = f" Speech has {interface.sample_rate:,} samples a second." if interface.sample_rate else ""
    yield f"In: {inputs}. Out: {outputs}.{rate}"
    for group in interface.groups:
        where = f'`params["{group.name}"]`'
        if group is interface.plain_group:
            where += ", or directly in `params`"
        yield f"**{group.help[0].upper()}{group.help[1:]}**: {where}."
        yield parameter_table(group.parameters)
    if interface.params:
        yield "**Other parameters**: directly in `params`."
        yield parameter_table(interface.params)
    if interface.metadata:
        yield "**Metadata**: `metadata`."
        yield parameter_table(interface.metadata)
    if interface.voices or interface.voices_from:
        yield f"**Voices**: {', '.join(interface.voices) or interface.voices_from}."
    if interface.limits:
        yield "**Limits**: a request beyond one of these is refused."
        rows = [f"| `{name}` | {value:,.15g} |" for name, value in interface.limits.items()]
        yield "\n".join(["| limit | default |", "|---|---|", *rows])
    yield "**Options** of the pipeline: `--option NAME=VALUE`, or `options=` in Python."
    yield "\n".join(
        ["| option | |", "|---|---|", *(f"| `{name}` | {text} |" for name, text in component.options.items())]
    )


def parameter_table(parameters: list[Any]) -> str:
    rows = ["| name | value | default | |", "|---|---|---|---|"]
    for each in parameters:
        names = ", ".join(f"`{name}`" for name in each.names)
        preset = "" if each.default is None else f"`{each.default}`"
        rows.append(f"| {names} | {each.expected} | {preset} | {each.help} |")
    return "\n".join(rows)


def decisions_page() -> str:
    rows = []
    for path in sorted((DOCS / "decisions").glob("0*.md")):
        number, _, title = path.read_text().partition("\n")[0].removeprefix("# ").partition(": ")
        rows.append(f"| {number} | [{title[0].upper()}{title[1:]}](decisions/{path.name}) |")
    text = "Each record says what was decided, in which situation, what else was considered, and what follows from it."
    return page(["# Decision records", text, "\n".join(["| | decision |", "|---|---|", *rows])])


# --- writing -----------------------------------------------------------------------------------------------------------
def page(parts: list[str]) -> str:
    title, *rest = parts  # the notice comes second: the first thing on a page has to be its title
    return "\n\n".join([title, NOTICE.rstrip(), *(part.rstrip() for part in rest if part)]) + "\n"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=textwrap.dedent(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is not current")
    check = parser.parse_args(arguments).check
    written = pages()
    stale = [path for path, text in written.items() if not path.is_file() or path.read_text() != text]
    for path in stale:
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(written[path])
        print(f"{path.parent.name}/{path.name}: {'not current; run python docs/generate.py' if check else 'written'}")
    sys.exit(1 if check and stale else 0)


if __name__ == "__main__":
    main()
