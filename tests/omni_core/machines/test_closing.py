"""The end of a run on other hosts: its runner waits until they have acknowledged it, because closing a socket drops its
queue.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from omni_core.config.schema import EndpointsConfig, PipelineConfig, StageConfig
from omni_core.machines import hosts as hosts_module
from omni_core.machines.hosts import Hosts
from omni_core.protocol.machines import CloseRun, OpenRun, RunClosed, RunOpened


class Control:
    def __init__(self) -> None:
        self.sent: list[tuple[str, Any]] = []

    def send(self, endpoint: str, message: Any) -> None:
        self.sent.append((endpoint, message))


async def opened() -> tuple[Hosts, Control]:
    """The hosts of a run, one of which has opened it."""
    stage = StageConfig(name="a", factory="m:f", process="a", terminal=True, host="b")
    config = PipelineConfig(
        model_path="none",
        stages=[stage],
        hosts={"b": "tcp://127.0.0.2:1"},
        endpoints=EndpointsConfig(None, "127.0.0.1", "no.key"),
    )
    hosts, control = Hosts(config, Path("/run/omni")), Control()
    there = hosts._others["b"]
    opening = asyncio.create_task(there.open(control, "run", "tcp://127.0.0.1:2", 1))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    hosts.handle(RunOpened("run", "b", "/there", "127.0.0.2", ["tcp://127.0.0.2:3"]))
    assert (await opening).directory == "/there"
    assert isinstance(control.sent.pop()[1], OpenRun)
    return hosts, control


async def test_closing_waits_for_the_hosts_acknowledgement() -> None:
    hosts, control = await opened()
    closing = asyncio.create_task(hosts.close())
    await asyncio.sleep(0.01)
    assert control.sent == [("host://b", CloseRun("run"))]
    assert not closing.done()
    assert hosts.handle(RunClosed("run", "b"))
    await asyncio.wait_for(closing, 0.5)


async def test_closing_does_not_wait_for_a_host_that_is_lost() -> None:
    hosts, control = await opened()
    closing = asyncio.create_task(hosts.close())
    await asyncio.sleep(0.01)
    hosts._lost("host://b", "gone")
    await asyncio.wait_for(closing, 0.5)
    await asyncio.wait_for(hosts.close(), 0.5)
    assert len(control.sent) == 1


async def test_closing_waits_for_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts_module, "_CLOSE_SECONDS", 0.02)
    hosts, _ = await opened()
    await asyncio.wait_for(hosts.close(), 0.5)


async def test_a_server_acknowledges_the_end_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("zmq")
    from omni_core import __version__
    from omni_core.control.curve import CurveKeys
    from omni_core.machines.server import HostServer

    server = HostServer("tcp://127.0.0.1:0", CurveKeys.new())
    told: list[Any] = []
    monkeypatch.setattr(server._control, "tell", lambda run, message: told.append(message))
    server._on_message(OpenRun("run", "b", "tcp://127.0.0.1:2", 1, __version__))
    server._on_message(CloseRun("run"))
    server._on_message(CloseRun("run"))
    assert [type(each) for each in told] == [RunOpened, RunClosed]
    await server.close()
