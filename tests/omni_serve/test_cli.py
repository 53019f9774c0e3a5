"""The commands: wrong arguments are refused before anything starts; keys are made and removed."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from omni_core.errors import ConfigError
from omni_serve.auth import KeyRing
from omni_serve.cli import keys, serve
from omni_serve.listening import is_loopback, open_socket


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--host", "0.0.0.0"], "lets other machines in without a key"),
        (["--host", "192.168.1.1"], "--allow-public"),
        (["--tls-cert", __file__], "give both"),
        (["--limit", "audio_second=1"], "did you mean 'audio_seconds'"),
        (["--limit", "audio_seconds=x"], "must be a number"),
        (["--limit", "audio_seconds=0"], "above 0"),
        (["--voice-alias", "alloy"], "NAME=VALUE"),
        (["--admin", "127.0.0.1:0"], "no key has the scope admin"),
        (["--admin", "127.0.0.1:0", "--api-key", "a secret of mine"], "no key has the scope admin"),
        (["--uds", "127.0.0.1:0"], "must be a path with a /"),
        (["--api-key", "short"], "at least 8"),
        (["--keys", "/no/such/file"], "omni keys add"),
        (["--uds", "/no/such/folder/s"], "cannot listen"),
        (["--admin", "nowhere"], "HOST:PORT"),
    ],
)
def test_wrong_arguments(arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(serve, ["demo", "--port", "0", *arguments])
    assert result.exit_code != 0
    assert words in result.output + str(result.exception)


def test_a_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match=f"{address}: cannot listen"):
            open_socket(address)


def test_a_unix_socket_is_private_and_replaces_a_dead_one(tmp_path: Path) -> None:
    path = tmp_path / "s"
    first = open_socket(str(path))
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ConfigError, match="another server"):
        open_socket(str(path))
    first.close()
    open_socket(str(path)).close()


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True),
        ("localhost", True),
        ("::1", True),
        ("[::1]", True),
        ("0.0.0.0", False),
        ("::", False),
        ("host", False),
    ],
)
def test_loopback(host: str, local: bool) -> None:
    assert is_loopback(host) == local


def test_keys_are_made_listed_and_removed(tmp_path: Path) -> None:
    file = ["--file", str(tmp_path / "keys.json")]
    made = CliRunner().invoke(keys, ["add", "me", "--scope", "inference", "--concurrent", "2", *file])
    found = KeyRing.open(tmp_path / "keys.json").find(made.output.strip())
    assert found is not None
    assert (found.name, found.limits.concurrent) == ("me", 2)
    listed = CliRunner().invoke(keys, ["list", *file]).output
    assert "me: inference" in listed
    assert made.output.strip() not in listed
    assert CliRunner().invoke(keys, ["remove", "me", *file]).exit_code == 0
    assert KeyRing.open(tmp_path / "keys.json").keys == {}
    assert isinstance(CliRunner().invoke(keys, ["remove", "me", *file]).exception, ConfigError)
