"""``omni hosts key | serve | join``: lets pipelines of other hosts run stages on this one."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import signal
from pathlib import Path

import click

from omni_core.api import ConfigError
from omni_core.runtime_api import log_options, split_address

_STANDARD_INPUT = 0


@click.group()
def hosts() -> None:
    """Let pipelines of other hosts run stages on this one."""


@hosts.command()
@click.argument("file", type=click.Path(path_type=Path))
def key(file: Path) -> None:
    """Make the keys of a group of hosts, into a new FILE that only you can read. Copy it to every host."""
    from omni_launchers.hosts.curve import CurveKeys

    try:
        CurveKeys.new().write(file)
    except FileExistsError:
        raise ConfigError(
            f"{file} exists; hosts that use its keys could not connect any more if it were replaced"
        ) from None
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}") from error
    click.echo(f"{file}: copy it to every host by a secure channel; its owner can start programs as you on each")


@hosts.command()
@click.option("--listen", "address", required=True, metavar="tcp://HOST:PORT", help="An address of this host.")
@click.option("--key", "key_file", type=click.Path(path_type=Path), help="The file that `omni hosts key` made.")
@log_options
def serve(address: str, key_file: Path | None) -> None:
    """Start and watch processes for the pipelines of hosts with the same key, until Ctrl-C.

    Their configs name this host under `hosts`, and their stages choose it by `host`.
    """
    if key_file is None:
        host, _ = split_address(address)
        reach = "this machine" if _is_loopback(host) else "the network"
        raise ConfigError(
            f"--key: listening on {address} without a key would let anyone on {reach} start programs as you; "
            "make one with: omni hosts key FILE"
        )
    asyncio.run(_serve(address, key_file))


@hosts.command()
@click.argument("head", metavar="tcp://HOST:PORT")
@click.option(
    "--key", "key_file", required=True, type=click.Path(path_type=Path), help="The key file of the run; - : see above."
)
@click.option("--as", "name", metavar="NAME", help="Join as the host of this name.")
@click.option("--stage", metavar="NAME", help="Join as the host of this stage.")
@click.option(
    "--listen", "address", metavar="tcp://HOST:PORT", help="An address of this host.  [default: towards HEAD]"
)
@click.option("--digest", default="", metavar="HEX", help="Work for the config with this digest only.")
@log_options
def join(head: str, key_file: Path, name: str | None, stage: str | None, address: str | None, digest: str) -> None:
    """Run stages for the pipeline that accepts hosts at tcp://HOST:PORT (`--accept` there), until Ctrl-C.

    Waits for the pipeline, and joins it again whenever the connection has ended. With `--key -` the keys are read from standard
    input, and the command joins once: it ends with the pipeline, with the connection, and with standard input.
    """
    if (name is None) == (stage is None):
        raise click.UsageError("give --as NAME or --stage NAME")
    split_address(head)
    asyncio.run(_join(head, key_file, name or "", stage or "", address, digest))


def _interrupted() -> asyncio.Future[None]:
    """Return a future that is done when the command is to end."""
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[None] = loop.create_future()

    def stop() -> None:
        if not stopped.done():
            stopped.set_result(None)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    return stopped


def _key_lines() -> str:
    """Read two lines of standard input, and nothing behind them."""
    found = b""
    while found.count(b"\n") < 2 and (byte := os.read(_STANDARD_INPUT, 1)):
        found += byte
    return found.decode(errors="replace")


def _ends(stopped: asyncio.Future[None]) -> None:
    """End the command with its standard input; what is written there is not read."""
    if not os.read(_STANDARD_INPUT, 4096):
        asyncio.get_running_loop().remove_reader(_STANDARD_INPUT)
        if not stopped.done():
            stopped.set_result(None)


async def _serve(address: str, key_file: Path) -> None:
    from omni_launchers.hosts.curve import CurveKeys
    from omni_launchers.hosts.server import HostServer

    server = HostServer(address, CurveKeys.read(key_file))
    stopped = _interrupted()
    click.echo(f"serving on {server.address}; Ctrl-C ends it and every process it started")
    await stopped
    await server.close()


async def _join(head: str, key_file: Path, name: str, stage: str, address: str | None, digest: str) -> None:
    from omni_launchers.hosts.curve import CurveKeys
    from omni_launchers.hosts.joining import Joining, own_address
    from omni_launchers.hosts.server import HostServer

    once = str(key_file) == "-"
    keys = CurveKeys.parse(_key_lines(), "standard input") if once else CurveKeys.read(key_file)
    server = HostServer(address or own_address(head), keys)
    stopped = _interrupted()
    if once:
        try:
            asyncio.get_running_loop().add_reader(_STANDARD_INPUT, _ends, stopped)
        except PermissionError:
            await server.close()
            raise ConfigError("--key -: standard input must be a pipe, which stays open for the run") from None
    joining = Joining(server, head, name, stage, digest, once)
    click.echo(f"joining {head} from {server.address}; Ctrl-C ends it and every process it started")
    try:
        await asyncio.wait([stopped, joining.refused], return_when=asyncio.FIRST_COMPLETED)
        if joining.refused.done():
            joining.refused.result()
    finally:
        joining.close()
        await server.close()


def _is_loopback(host: str) -> bool:
    """Return whether only this machine can reach ``host``."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
