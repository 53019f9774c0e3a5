"""``omni hosts key | serve``: lets pipelines of other hosts run stages on this one."""

from __future__ import annotations

import asyncio
import ipaddress
import signal
from pathlib import Path

import click

from omni_core.cli.logs import log_options
from omni_core.config.addresses import is_loopback, split_address
from omni_core.errors import ConfigError


@click.group()
def hosts() -> None:
    """Let pipelines of other hosts run stages on this one."""


@hosts.command()
@click.argument("file", type=click.Path(path_type=Path))
def key(file: Path) -> None:
    """Make the keys of a group of hosts, into a new FILE that only you can read. Copy it to every host."""
    from omni_core.control.curve import CurveKeys

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
    host, _ = split_address(address)
    if key_file is None:
        reach = "this machine" if is_loopback(host) else "the network"
        raise ConfigError(
            f"--key: listening on {address} without a key would let anyone on {reach} start programs as you; "
            "make one with: omni hosts key FILE"
        )
    if _is_wildcard(host):
        raise ConfigError(f"--listen: no other host can connect to {host}; name one address of this one")
    asyncio.run(_serve(address, key_file))


def _is_wildcard(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return host == "*"


async def _serve(address: str, key_file: Path) -> None:
    from omni_core.control.curve import CurveKeys
    from omni_core.machines.server import HostServer

    server = HostServer(address, CurveKeys.read(key_file))
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    click.echo(f"serving on {server.address}; Ctrl-C ends it and every process it started")
    await stopped.wait()
    await server.close()
