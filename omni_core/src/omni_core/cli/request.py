"""The parts of a request that are given on the command line: a message on standard input, parameters and metadata."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import click

message_argument = click.argument("message", nargs=-1)
"""The words of a message behind the pipeline; :func:`given_text` joins them."""

MOST_INPUT = 16 * 2**20
"""Bytes of a message from standard input."""


def given_text(options: Mapping[str, Any]) -> str | None:
    """Return the message of ``MESSAGE`` or ``--text``; ``None``: neither is given.

    Raises:
        click.UsageError: both are.
    """
    words, text = options["message"], options["text"]
    if words and text is not None:
        raise click.UsageError("the message is given twice: as MESSAGE and by --text")
    return " ".join(words) if words else text


def standard_input() -> str:
    """Read the message from standard input.

    Raises:
        click.UsageError: it is empty, too long, or no text.
    """
    given = sys.stdin.buffer.read(MOST_INPUT + 1) if sys.stdin is not None else b""
    if len(given) > MOST_INPUT:
        raise click.UsageError(f"the message on standard input is longer than {MOST_INPUT >> 20} MiB")
    try:
        text = given.decode().removesuffix("\n")  # which a shell adds
    except UnicodeDecodeError as error:
        raise click.UsageError(f"the message on standard input is not UTF-8 text: {error}") from None
    if not text.strip():
        raise click.UsageError('nothing to answer: standard input is empty; give a message: omni run PIPELINE "Hello"')
    return text


def assign(given: dict[str, Any], options: Mapping[str, Any]) -> None:
    """Put what ``--param`` and ``--metadata`` say into ``given``, which has ``params`` and ``metadata``.

    Raises:
        click.UsageError: something is there already.
    """
    from omni_core.config.loading import parse_assignment  # 50 ms, for which `--help` need not wait

    for text in options["param"]:
        key, value = parse_assignment("--param", text, "KEY=VALUE")
        set_at(given, ("params", *key.split(".")), value, "--param")
    for text in options["metadata"]:
        key, value = parse_assignment("--metadata", text, "KEY=VALUE")
        set_at(given, ("metadata", key), value, "--metadata")


def set_at(tree: dict[str, Any], path: tuple[str, ...], value: Any, option: str) -> None:
    """Put ``value`` at ``path`` of nested mappings.

    Raises:
        click.UsageError: something is there already.
    """
    *parents, name = path
    for parent in parents:
        tree = tree.setdefault(parent, {})
        if not isinstance(tree, dict):
            break
    if not isinstance(tree, dict) or name in tree:
        raise click.UsageError(f"{option}: {'.'.join(path[1:])} is given twice")
    tree[name] = value
