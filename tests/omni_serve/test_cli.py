"""The commands: wrong arguments are refused before anything starts; keys are made and removed."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from serve_stages import speaking_pipeline

from omni_core.cli.logs import JsonFormatter, TextFormatter
from omni_core.errors import ConfigError
from omni_serve import Settings, create_app
from omni_serve.auth import KeyRing
from omni_serve.cli import Hangup, _limits, keys, serve
from omni_serve.listening import is_loopback, open_socket
from omni_serve.section import apply_log_options, section_problems, with_section
from omni_serve.settings import RealtimeLimits


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--host", "0.0.0.0"], "lets other machines in without a key"),
        (["--host", "192.168.1.1"], "--allow-public"),
        (["--media-host", "example.org"], "--fetch-urls"),
        (["--fetch-urls", "--media-host", "https://example.org"], "must be a host"),
        (["--tls-cert", __file__], "give both"),
        (["--tls-cert", __file__, "--tls-key", __file__], "as PEM"),
        (["--voices", "/proc/nowhere"], "cannot be used"),
        (["--limit", "audio_second=1"], "did you mean 'audio_seconds'"),
        (["--limit", "audio_seconds=x"], "must be a number"),
        (["--limit", "audio_seconds=0"], "above 0"),
        (["--voice-alias", "alloy"], "NAME=VALUE"),
        (["--realtime", "sesions=3"], "did you mean 'sessions'"),
        (["--realtime", "sessions=x"], "must be a number"),
        (["--realtime", "sessions=0"], "above 0"),
        (["--realtime", "threshold=2"], "'threshold' must be <= 1.0"),
        (["--realtime", "detector=sillero"], "did you mean 'silero'"),
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


@pytest.mark.parametrize(
    ("section", "flags", "words"),
    [
        ("{host: 0.0.0.0}", [], "lets other machines in without a key"),
        ("{host: 0.0.0.0, limit: {audio_second: 1}}", [], "did you mean 'audio_seconds'"),
        ("{host: 0.0.0.0, uds: 'x'}", ["--host", "127.0.0.1"], "must be a path with a /"),
        ("{prot: 3}", [], "server.prot: unknown key; did you mean 'port'?"),
        ("{api_key: a secret of mine}", [], "server.api_key: is no part of a file"),
    ],
)
def test_a_deploy_file_has_the_flags_too(tmp_path: Path, section: str, flags: list[str], words: str) -> None:
    file = tmp_path / "deploy.yaml"
    file.write_text(f"pipeline: demo\nserver: {section}\n")
    result = CliRunner().invoke(serve, [str(file), *flags])
    assert result.exit_code != 0
    assert words in result.output + str(result.exception)


def test_limits_in_a_deploy_file_are_checked_before_anything_starts() -> None:
    section = {"limit": {"audio_second": 1, "audio_seconds": 2}, "realtime": ["sessions=x"]}
    assert [*section_problems(serve, "server", section)] == [
        "server.limit: audio_second: no such limit; did you mean 'audio_seconds'?",
        "server.realtime: sessions: must be a number, is 'x'",
    ]


def test_settings_of_conversations() -> None:
    texts = ("sessions=3", "detector=silero", "silence_duration_ms=200", "idle_seconds=9")
    given = _limits("--realtime", RealtimeLimits, texts)
    assert given == RealtimeLimits(sessions=3, detector="silero", silence_duration_ms=200, idle_seconds=9.0)


def test_a_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match=f"{address}: cannot listen: .* choose another port"):
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


def test_the_extra_that_fetches_is_asked_for_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "omni_media.fetch", raising=False)
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    result = CliRunner().invoke(serve, ["demo", "--port", "0", "--fetch-urls"])
    assert isinstance(result.exception, ConfigError)
    assert "pip install 'omni-media[urls]'" in str(result.exception)
    with pytest.raises(ConfigError, match=r"omni-media\[urls\]"):
        create_app(SimpleNamespace(config=speaking_pipeline()), Settings(fetch_urls=True))  # type: ignore[arg-type]


async def test_a_hangup_reads_the_keys_again(tmp_path: Path) -> None:
    made = KeyRing(path=tmp_path / "keys.json")
    made.save()
    ring = KeyRing.open(made.path)
    with Hangup(ring):
        secret = made.add("mine")
        made.save()
        os.kill(os.getpid(), signal.SIGHUP)
        async with asyncio.timeout(60):
            while ring.find(secret) is None:
                await asyncio.sleep(0.01)


@pytest.mark.parametrize(("ring", "why"), [(None, "is still starting"), (KeyRing(), "there is no file of keys")])
async def test_a_hangup_without_keys_is_ignored(
    ring: KeyRing | None, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Hangup(ring):
        os.kill(os.getpid(), signal.SIGHUP)
        async with asyncio.timeout(60):
            while not caplog.messages:
                await asyncio.sleep(0.01)
    (message,) = caplog.messages
    assert why in message


def test_the_log_can_be_set_up_in_a_deploy_file(monkeypatch: pytest.MonkeyPatch) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", root.level)
    for given, sections, level, form in (
        ([], {"log_level": "error", "log_format": "json"}, "ERROR", JsonFormatter),
        (["--log-level", "info"], {"log_level": "error"}, "INFO", TextFormatter),
    ):
        with serve.make_context("serve", ["demo", *given]) as context:
            apply_log_options(context, with_section(context, "server", sections))
        assert logging.getLevelName(root.level) == level
        assert isinstance(root.handlers[0].formatter, form)
