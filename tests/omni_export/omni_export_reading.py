"""Readers of what the command has written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
from ruamel.yaml import YAML

from omni_core.cli.main import omni

Objects = dict[tuple[str, str], dict[str, Any]]


def documents(text: str) -> list[Any]:
    """Return the documents of a YAML text as plain data."""
    return [each for each in YAML(typ="safe", pure=True).load_all(text) if each is not None]


def objects(text: str) -> Objects:
    """Return the objects of Kubernetes in a text, by kind and name, which differ."""
    read = documents(text)
    found = {(each["kind"], each["metadata"]["name"]): each for each in read}
    assert len(found) == len(read)
    return found


def parsed(command: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Return the name and the parameters of an ``omni`` command line, as ``omni`` itself reads it.

    Raises:
        click.UsageError: it would refuse the line.
    """
    assert command[0].rpartition("/")[2] == "omni"
    context = omni.make_context("omni", list(command[1:]))
    names = []
    while isinstance(context.command, click.Group):
        rest = [*context._protected_args, *context.args]
        name, found, rest = context.command.resolve_command(context, rest)
        assert found is not None
        names.append(str(name))
        context = found.make_context(name, rest, parent=context)
    return " ".join(names), context.params
