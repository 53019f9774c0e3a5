"""``omni serve`` and ``omni keys``."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self, TypeVar

import click
from attrs import AttrsInstance, evolve, fields

from omni_cli.deploy.options import resolve_config
from omni_core.api import ConfigError, PipelineConfig, did_you_mean
from omni_core.runtime_api import SOURCE_OPTIONS, Tasks, completed, log_options, with_source
from omni_serve.auth import SCOPES, KeyLimits, KeyRing, describe
from omni_serve.logs import Background, access_log, audit_log, in_background, write
from omni_serve.section import apply_log_options, with_section
from omni_serve.settings import Limits, RealtimeLimits, Settings

T = TypeVar("T", bound=AttrsInstance)

logger = logging.getLogger(__name__)

_FOLDER = click.Path(file_okay=False, path_type=Path)
_FILE = click.Path(exists=True, dir_okay=False)


class _Setting(click.ParamType):  # type: ignore[type-arg, unused-ignore]  # generic in new versions only
    """``NAME=VALUE``, of a class of settings; numbers are above 0. A deploy file is checked by it too."""

    name = "setting"

    def __init__(self, title: str, kind: type[AttrsInstance]) -> None:
        self._title, self._kind = title, kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text as it is."""
        name, equals, text = str(value).partition("=")
        if not (name and equals and text):
            self.fail(f"{value}: must be NAME=VALUE", param, ctx)
        known = {each.name: each for each in fields(self._kind)}
        if name not in known:
            self.fail(f"{name}: no such {self._title}{did_you_mean(name, known)}", param, ctx)
        of_type = type(known[name].default)
        try:
            number = of_type(text)
        except ValueError:
            self.fail(f"{name}: must be a number, is {text!r}", param, ctx)
        if of_type is not str and not 0 < number < math.inf:
            self.fail(f"{name}: must be above 0, is {text}", param, ctx)
        return str(value)


@click.command()
@with_source
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="The port.")
@click.option("--uds", metavar="PATH", help="Listen on a Unix socket instead.")
@click.option("--api-key", envvar="OMNI_API_KEY", show_envvar=True, help="A key that clients must send.")
@click.option(
    "--keys", "keys_file", type=click.Path(dir_okay=False, path_type=Path), help="A file of keys (omni keys)."
)
@click.option("--allow-public", is_flag=True, help="Listen on a public address without a key.")
@click.option("--public-metrics", is_flag=True, help="Serve /metrics without a key.")
@click.option("--model-name", help="The model's name for clients. By default the pipeline's.")
@click.option(
    "--alias", multiple=True, metavar="NAME", help="A further name of the model, such as tts-1; may be repeated."
)
@click.option("--any-model", is_flag=True, help="Answer whatever model name a client sends.")
@click.option(
    "--voice-alias", multiple=True, metavar="NAME=VOICE", help="A further name of a voice; * is every other one."
)
@click.option("--voices", type=_FOLDER, help="Keep uploaded voices in this folder. By default uploads are refused.")
@click.option("--fetch-urls", is_flag=True, help="Fetch media that requests name by public URLs.")
@click.option(
    "--media-host",
    multiple=True,
    metavar="HOST",
    help="Fetch from this host only, or from all below *.NAME; may be repeated.",
)
@click.option("--cors", multiple=True, metavar="ORIGIN", help="A web page's origin that may use this server.")
@click.option("--tls-cert", type=_FILE, help="The certificate, as PEM.")
@click.option("--tls-key", type=_FILE, help="The certificate's private key.")
@click.option(
    "--concurrent", default=128, show_default=True, type=click.IntRange(1), help="Requests in the pipeline at once."
)
@click.option("--queued", default=1024, show_default=True, type=click.IntRange(0), help="Requests that may wait.")
@click.option(
    "--request-seconds", default=600.0, show_default=True, type=click.FloatRange(0), help="Deadline; 0: none."
)
@click.option(
    "--limit",
    type=_Setting("limit", Limits),
    multiple=True,
    metavar="NAME=NUMBER",
    help="A limit on requests, such as audio_seconds=60.",
)
@click.option(
    "--realtime",
    type=_Setting("setting", RealtimeLimits),
    multiple=True,
    metavar="NAME=VALUE",
    help="A setting of conversations by voice, such as sessions=64 or detector=silero; may be repeated.",
)
@click.option(
    "--drain-seconds",
    default=30.0,
    show_default=True,
    type=click.FloatRange(0),
    help="For running requests, at SIGTERM.",
)
@click.option("--admin", metavar="ADDRESS", help="The operator's endpoints: HOST:PORT, or the path of a Unix socket.")
@click.option("--no-warm-up", is_flag=True, help="Be ready without running the pipeline's warm-up requests.")
@click.option("--no-page", is_flag=True, help="Do not serve the page at /.")
@click.option("--no-docs", is_flag=True, help="Do not serve /openapi.json and the page /docs.")
@click.option("--no-access-log", is_flag=True, help="Do not log a line for each request (omni.access).")
@log_options
@click.pass_context
def serve(context: click.Context, /, **options: Any) -> None:
    """Serve PIPELINE to OpenAI's clients: a registered name, a deploy file or preset, a checkpoint folder or a hub id."""
    from omni_serve.listening import check_certificate, is_loopback, open_socket  # loads the web framework
    from omni_serve.media import check_fetching
    from omni_serve.realtime.vad import detector_class
    from omni_serve.voice_store import VoiceStore

    resolved = resolve_config(**{name: options[name] for name in ("pipeline", *SOURCE_OPTIONS)})
    config = resolved.config
    options = with_section(context, "server", config.server)
    if options["uds"] is not None and "/" not in options["uds"]:
        raise click.UsageError(f"--uds {options['uds']}: must be a path with a /, such as ./{options['uds']}")
    settings = _settings(options)
    detector_class(settings.realtime.detector)
    address = options["uds"] or f"{options['host']}:{options['port']}"
    if bool(options["tls_cert"]) != bool(options["tls_key"]):
        raise click.UsageError("--tls-cert and --tls-key: give both")
    # Mistakes are found before anything starts.
    if options["tls_cert"]:
        check_certificate(options["tls_cert"], options["tls_key"])
    if options["voices"]:
        VoiceStore(options["voices"])
    is_local = options["uds"] is not None or is_loopback(options["host"])
    if not is_local and not (settings.keys or settings.keys_file) and not options["allow_public"]:
        raise click.UsageError(
            f"--host {options['host']} lets other machines in without a key: give --api-key or --keys, or --allow-public"
        )
    check_fetching(settings)
    ring = KeyRing.open(settings.keys_file, settings.keys)
    listener = open_socket(address)
    admin = open_socket(options["admin"]) if options["admin"] else None
    if options["admin"] and "/" not in options["admin"] and not any(key.may("admin") for key in ring.keys.values()):
        raise click.UsageError(
            f"--admin {options['admin']}: no key has the scope admin; make one with `omni keys add NAME --scope admin` and give "
            "--keys, or name the path of a Unix socket"
        )
    apply_log_options(context, options)
    access_log.setLevel(logging.WARNING if options["no_access_log"] else logging.INFO)
    audit_log.setLevel(logging.INFO)
    # At INFO it logs the URLs of WebSockets whole, with what a client has put into the query.
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    config = completed(config, resolved.located)
    try:
        with in_background() as log:
            asyncio.run(_serve(config, options, settings, listener, admin, log))
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.exit(128 + signal.SIGINT)
    finally:
        for each in (options["uds"], options["admin"]):
            if each and "/" in each:
                Path(each).unlink(missing_ok=True)
    if log.is_stalled:  # all has ended; the interpreter's own end would wait for what nobody takes
        os._exit(0)


def _settings(options: dict[str, Any]) -> Settings:
    from omni_serve.listening import LOOPBACK_HOSTS, is_loopback

    return Settings(
        model=options["model_name"],
        aliases=options["alias"],
        any_model=options["any_model"],
        voice_aliases=dict(_pair("--voice-alias", each) for each in options["voice_alias"]),
        limits=_limits("--limit", Limits, options["limit"]),
        realtime=_limits("--realtime", RealtimeLimits, options["realtime"]),
        concurrent=options["concurrent"],
        queued=options["queued"],
        request_seconds=options["request_seconds"] or None,
        keys_file=options["keys_file"],
        keys={"command line": options["api_key"]} if options["api_key"] else {},
        public_metrics=options["public_metrics"],
        voices_dir=options["voices"],
        fetch_urls=options["fetch_urls"],
        media_hosts=options["media_host"],
        cors_origins=options["cors"],
        drain_seconds=options["drain_seconds"],
        warm_up=not options["no_warm_up"],
        page=not options["no_page"],
        docs=not options["no_docs"],
        hosts=LOOPBACK_HOSTS if not options["uds"] and is_loopback(options["host"]) else (),
    )


def _pair(option: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise click.UsageError(f"{option} {text}: must be NAME=VALUE")
    return name, value


def _limits(option: str, kind: type[T], texts: tuple[str, ...]) -> T:
    """Return the settings of one class that ``NAME=VALUE`` texts give, which :class:`_Setting` has checked."""
    known = {each.name: each for each in fields(kind)}
    given: dict[str, Any] = {}
    for name, value in (_pair(option, text) for text in texts):
        given[name] = type(known[name].default)(value)
    try:
        return kind(**given)
    except ValueError as error:
        raise click.UsageError(f"{option}: {error.args[0]}") from None


async def _serve(
    config: PipelineConfig, options: dict[str, Any], settings: Settings, listener: Any, admin: Any, log: Background
) -> None:
    from omni_core import open_async
    from omni_serve.admin import create_admin_app
    from omni_serve.app import create_app
    from omni_serve.listening import (
        LOOPBACK_HOSTS,
        Ending,
        freeze_start,
        is_loopback,
        return_memory,
        signals,
        web_server,
    )

    return_memory()
    task = asyncio.current_task()
    assert task is not None
    at_signal: list[Callable[[], object]] = [task.cancel]
    hangup = Hangup()
    with signals(lambda: at_signal[-1]()), hangup:
        # The queue before the pipeline is ours: it is fair, and what is in it can be given up.
        config = evolve(config, max_in_flight=max(config.max_in_flight, settings.concurrent))
        pipe = open_async(config, on_progress=lambda stage, state: log.say(f"{stage}: {state}"))
        async with pipe:
            app = create_app(pipe, settings)
            tls = {"cert": options["tls_cert"], "key": options["tls_key"]}
            most = settings.limits.connections_per_address
            served = web_server(app, drain_seconds=settings.drain_seconds, connections_per_address=most, **tls)
            servers = [(served, listener)]
            if admin is not None:
                keyless = "/" in options["admin"]
                is_local = not keyless and is_loopback(options["admin"].rpartition(":")[0] or "127.0.0.1")
                hosts = LOOPBACK_HOSTS if is_local else ()
                operator = create_admin_app(app.state.server, keyless=keyless, hosts=hosts)
                servers.append((web_server(operator, drain_seconds=1), admin))

            admission = app.state.server.admission
            ending = Ending(admission, [server for server, _ in servers], settings.drain_seconds, log.say)
            at_signal.append(ending)
            hangup.ring = app.state.server.keys
            freeze_start()
            _announce(app.state.server.model, listener, options, log.say)
            await asyncio.gather(*(server.serve(sockets=[each]) for server, each in servers))
            at_signal.append(lambda: None)  # a second signal must not cut the end of the pipeline's processes


class Hangup:
    """Handles SIGHUP, which would end the process: the file of keys is read again, if there is one.

    Attributes:
        ring: the keys of the running server; ``None`` before it has read them.
    """

    def __init__(self, ring: KeyRing | None = None) -> None:
        self.ring = ring
        self._tasks = Tasks()

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._loop.add_signal_handler(signal.SIGHUP, self._begin)
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.remove_signal_handler(signal.SIGHUP)

    def _begin(self) -> None:
        if self.ring is None or self.ring.path is None:
            why = (
                "the server is still starting"
                if self.ring is None
                else "there is no file of keys (--keys) to read again"
            )
            logger.warning("SIGHUP does nothing: %s", why)
            return
        self._tasks.start(self._reload(self.ring))

    async def _reload(self, ring: KeyRing) -> None:
        try:
            await asyncio.to_thread(ring.reload)
        except ConfigError as error:
            logger.error("the file of keys was not read again; the keys are as before: %s", error)
        else:
            write(audit_log, "done", "", method="SIGHUP", keys=len(ring.keys))


def _announce(model: str, listener: Any, options: dict[str, Any], say: Callable[[str], object]) -> None:
    """Say where to call."""
    scheme = "https" if options["tls_cert"] else "http"
    if options["uds"]:
        say(f"Serving {model} at {options['uds']}")
        return
    host, port = listener.getsockname()[:2]
    host = f"[{host}]" if ":" in host else host
    if not options["no_page"]:
        say(f"Talk to it at {scheme}://{host}:{port}/")
    say(f"Serving {model} at {scheme}://{host}:{port}/v1")


@click.group()
def keys() -> None:
    """Make, list and remove the API keys of a server. The file holds hashes: a key is shown once."""


_keys_file = click.option(
    "--file", "path", type=click.Path(dir_okay=False, path_type=Path), default="omni-keys.json", show_default=True
)
_NUMBER = click.FloatRange(0, min_open=True)


@keys.command()
@click.argument("name")
@_keys_file
@click.option(
    "--scope", multiple=True, type=click.Choice(SCOPES), help="What it opens. By default inference and voices."
)
@click.option("--requests-per-minute", type=_NUMBER)
@click.option("--tokens-per-minute", type=_NUMBER, help="Tokens of prompts and answers.")
@click.option("--audio-seconds-per-minute", type=_NUMBER, help="Seconds of speech and of transcribed recordings.")
@click.option("--concurrent", type=click.IntRange(1), help="Requests at once.")
@click.option("--share", type=_NUMBER, default=1.0, show_default=True, help="Its share when requests wait.")
def add(name: str, path: Path, scope: tuple[str, ...], **limits: Any) -> None:
    """Make a key called NAME and print it."""
    ring = KeyRing.open(path) if path.exists() else KeyRing(path=path)
    secret = ring.add(name, scope or ("inference", "voices"), KeyLimits(**limits))
    ring.save()
    click.echo(secret)


@keys.command("list")
@_keys_file
def list_keys(path: Path) -> None:
    """List the keys."""
    for key in KeyRing.open(path).keys.values():
        shown = describe(key)
        limits = ", ".join(f"{each}={value:g}" for each, value in shown["limits"].items() if value is not None)
        click.echo(f"{key.name}: {', '.join(key.scopes)} ({limits})")


@keys.command()
@click.argument("name")
@_keys_file
def remove(name: str, path: Path) -> None:
    """Remove the key called NAME; a running server reads the file again at SIGHUP, or when its operator asks."""
    ring = KeyRing.open(path)
    if name not in ring.keys:
        raise ConfigError(f"{path}: no key is called {name!r}{did_you_mean(name, ring.keys)}")
    del ring.keys[name]
    ring.save()
