"""A section of a deploy file as the flags of a command: the names, the values, and which of both wins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from omni_core.cli.source import source_options
from omni_core.errors import ConfigError
from omni_serve.section import section_problems, with_section


@click.command()
@source_options
@click.option("--port", default=8000, type=click.IntRange(0, 65535))
@click.option("--keys", "keys_file")
@click.option("--folder", type=click.Path(path_type=Path))
@click.option("--no-page", is_flag=True)
@click.option("--limit", multiple=True)
@click.option("--api-key", envvar="SECTION_TEST_KEY")
@click.pass_context
def command(context: click.Context, /, **options: Any) -> None:
    """Serve."""


def given(values: dict[str, Any], *arguments: str) -> dict[str, Any]:
    context = command.make_context("command", list(arguments))
    return with_section(context, "server", values)


def test_a_section_is_in_place_of_defaults_and_flags_win(monkeypatch: pytest.MonkeyPatch) -> None:
    section = {"port": 9000, "keys": "k.json", "no_page": True, "limit": {"audio_seconds": 60, "x": 1}}
    found = given(section)
    assert (found["port"], found["keys_file"], found["no_page"]) == (9000, "k.json", True)
    assert tuple(found["limit"]) == ("audio_seconds=60", "x=1")
    assert given(section, "--port", "8000")["port"] == 8000, "a flag wins even with the default's value"
    assert tuple(given({"limit": ["a=1"]})["limit"]) == ("a=1",)
    assert given({"folder": 3})["folder"] == Path("3"), "a number as a name, as on the command line"
    monkeypatch.setenv("SECTION_TEST_KEY", "secret")
    assert given(section)["api_key"] == "secret"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"prot": 1}, "server.prot: unknown key; did you mean 'port'?"),
        ({"option": ["a=1"]}, "server.option: unknown key"),
        ({"port": 70000}, "server.port: 70000 is not in the range"),
        ({"port": "high"}, "server.port: 'high' is not a valid integer"),
        ({"port": [1]}, "server.port: must be one value, is [1]"),
        ({"port": True}, "server.port: must be a value, is True"),
        ({"port": 9000.7}, "server.port: '9000.7' is not a valid integer"),
        ({"folder": [1]}, "server.folder: must be one value, is [1]"),
        ({"limit": ["a=1", None]}, "server.limit: must be a text or a number, is None"),
        ({"limit": {"a": [1]}}, "server.limit: a must be a text or a number, is [1]"),
        ({"keys": float("nan")}, "server.keys: must be finite, is nan"),
        ({"no_page": 1}, "server.no_page: must be true or false, is 1"),
        ({"limit": "a=1"}, "server.limit: must be a list, is 'a=1'"),
        (
            {"api_key": "secret"},
            "server.api_key: is no part of a file, which others may read; set the variable SECTION_TEST_KEY",
        ),
    ],
)
def test_what_the_command_does_not_take_is_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        given(values)
    assert words in str(caught.value)
    assert words in next(iter(section_problems(command, "server", values)))
