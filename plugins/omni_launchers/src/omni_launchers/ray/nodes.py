"""One node of the cluster as a machine of a run: an agent is started there when it is first needed, and again when it was lost."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from omni_core.api import RunMachine, watched
from omni_launchers.hosts.curve import CurveKeys
from omni_launchers.hosts.host import Host

if TYPE_CHECKING:
    from omni_launchers.ray.cluster import ClusterNode, RemoteAgent

logger = logging.getLogger(__name__)


def name_of(node: ClusterNode) -> str:
    """Return the name of a node for logs and messages: its address, and what tells it from others of that address."""
    return f"{node.address}/{node.id[:12]}"


class Node:
    """A node with the run's host there.

    Args:
        host: opened at the address of each agent in turn.
    """

    def __init__(self, node: ClusterNode, host: Host, keys: CurveKeys) -> None:
        self._node, self._keys = node, keys
        self.host = host
        self._agent: RemoteAgent | None = None
        self._watching: asyncio.Future[None] | None = None
        self._opening = asyncio.Lock()

    async def machine(self) -> RunMachine:
        """Return the run's machine there, with an agent that lives.

        Raises:
            ConnectionError: the agent has ended, or none can be started: the node may be gone. StartupError: the host refuses the run.
        """
        async with self._opening:
            if self.host.is_open:
                return await self.host.machine()
            if self._watching is None or self._watching.done():
                self._watching = await self._start()
            opening = asyncio.ensure_future(self.host.machine())  # tries again while the agent lives
            try:
                both: list[asyncio.Future[Any]] = [opening, self._watching]
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                if opening.done():
                    return opening.result()
                raise ConnectionError(self.host.problem)
            finally:
                opening.cancel()

    async def _start(self) -> asyncio.Future[None]:
        from omni_launchers.ray.cluster import RemoteAgent

        await self.close()
        agent = self._agent = await asyncio.to_thread(RemoteAgent, self._node.id, self._node.address, self._keys)
        self.host.is_at(await agent.address())
        return watched(
            self._watch(agent), f"the watch of node {self._node.address}", lambda error: self._lost(str(error))
        )

    async def _watch(self, agent: RemoteAgent) -> None:
        self._lost(await agent.end())

    def _lost(self, reason: str) -> None:
        self.host.lost(reason)
        self.host.problem = reason

    async def close(self) -> None:
        """End the agent, and with it what it has started."""
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None
        if self._agent is not None:
            agent, self._agent = self._agent, None
            await asyncio.to_thread(agent.kill)
