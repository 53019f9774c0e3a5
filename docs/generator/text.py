"""Markdown from docstrings, fields and signatures."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, get_overloads

import attrs

NOTICE = "<!-- Written by docs/generate.py. Change the code that is described, then run it. -->\n"

SECTION = re.compile(r"^(Args|Returns|Raises|Attributes|Yields):[ \t]*(.*)$", re.MULTILINE)


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


def page(parts: list[str]) -> str:
    title, *rest = parts  # the notice comes second: the first thing on a page has to be its title
    return "\n\n".join([title, NOTICE.rstrip(), *(part.rstrip() for part in rest if part)]) + "\n"
