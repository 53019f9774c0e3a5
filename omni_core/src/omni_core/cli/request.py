"""The parts of a request that are given on the command line: a message on standard input, parameters and metadata."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import click

MOST_INPUT = 16 * 2**20
"""Bytes of a message from standard input."""


def standard_input() -> str:
    """Read the message from standard input.

    Raises:
        click.UsageError: it is empty, too long, or no text.
    """
    given = sys.stdin.buffer.read(MOST_INPUT + 1) if sys.stdin is not None else b""
    if len(given) > MOST_INPUT:
        raise click.UsageError(f"the message on standard input is longer than {MOST_INPUT >> 20} MiB")
    try:
        text = given.decode().strip()
    except UnicodeDecodeError as error:
        raise click.UsageError(f"the message on standard input is not UTF-8 text: {error}") from None
    if not text:
        raise click.UsageError("nothing to answer: standard input is empty; give a message, such as --text")
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
