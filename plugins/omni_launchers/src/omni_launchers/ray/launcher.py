"""The launcher of Ray clusters: one placement group per run, and a host of omni-launchers on each of its nodes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar, get_args

from omni_core.api import ConfigError, Grant, Launcher, LauncherOptions, LocalMachine, Need, RunMachine, StartupError
from omni_core.runtime_api import ControlPlane
from omni_launchers.hosts import messages, versions
from omni_launchers.hosts.curve import CurveKeys, CurveNetwork, open_listener, spec_of
from omni_launchers.hosts.host import FIRST_PAUSE, LONGEST_PAUSE, Host
from omni_launchers.ray.bundles import Bundle
from omni_launchers.ray.claims import Claim, Claims
from omni_launchers.ray.nodes import Node, name_of
from omni_launchers.ray.settings import Settings

if TYPE_CHECKING:
    from ray.util.placement_group import PlacementGroup

    from omni_launchers.ray.cluster import ClusterNode

logger = logging.getLogger(__name__)

_CLOSE_SECONDS = 1.0
"""The time that nodes have to hear of the end of a run."""

_SLICE_SECONDS = 0.5
"""The longest time that a thread waits for Ray, which cannot be cancelled, in one call."""


class RayLauncher(Launcher):
    """Places units where Ray places their bundles. Those on the runner's own node are its children, and need no agent."""

    anywhere: ClassVar[bool] = True

    def __init__(self, options: LauncherOptions) -> None:
        self._settings = options.read_settings(Settings)
        if find_spec("ray") is None:
            raise ConfigError("launcher.name: ray: Ray is not installed here; pip install ray")
        self._run, self._directory = options.run, options.directory
        self._keys = CurveKeys.new()
        self.network_spec = spec_of(self._keys)
        self.here: LocalMachine = LocalMachine(options.directory)
        self._address = ""
        self._versions, self._digest = versions.installed(), versions.digest(options.config)
        self._claims = Claims(self._settings.cpus)
        self._groups: list[PlacementGroup] = []
        self._nodes: dict[str, Node] = {}
        self._waiting: dict[str, str] = {}
        self._control: ControlPlane | None = None
        self._connecting: asyncio.Future[None] | None = None
        self._is_released = False

    def network(self) -> CurveNetwork:
        return CurveNetwork(self._keys, open_listener(self._address))

    async def acquire(self, needs: Sequence[Need]) -> None:
        claims = self._claims.begin(needs)
        self._connecting = asyncio.ensure_future(asyncio.to_thread(_connect, self._settings))
        await asyncio.shield(self._connecting)
        from omni_launchers.ray import cluster

        there, own = await asyncio.to_thread(lambda: (cluster.nodes(), cluster.own_node()))
        self._check([each.bundle for each in claims], there)
        here = next(each for each in there if each.id == own)
        self._address = here.address
        self._listen(here)
        await self._reserve(claims)

    async def add(self, need: Need) -> None:
        from omni_launchers.ray import cluster

        claim = self._claims.add(need)
        if claim.group is not None:
            return
        try:
            self._check([claim.bundle], await asyncio.to_thread(cluster.nodes))
            await self._reserve([claim])
        except BaseException:
            await asyncio.shield(self.remove(need.unit))
            raise

    async def remove(self, unit: str) -> None:
        for claim in self._claims.remove(unit):
            await self._give_back(claim)

    async def _give_back(self, claim: Claim) -> None:
        from omni_launchers.ray import cluster

        if claim.group is not None:
            self._groups.remove(claim.group)
            claim.devices.clear()  # a group made anew may hold others of a node
            group, claim.group = claim.group, None
            await asyncio.to_thread(cluster.give_back, group)

    def _check(self, bundles: Sequence[Bundle], there: Sequence[ClusterNode]) -> None:
        """Refuse what no node could hold even alone."""
        lacking = [each for each in bundles if not any(node.holds(each) for node in there)]
        if lacking and not self._settings.autoscaling:
            have = "; ".join(map(str, there))
            raise StartupError(
                f"no node of the Ray cluster can hold {'; or '.join(map(str, lacking))}; there are: {have}"
            )

    async def _reserve(self, claims: Sequence[Claim]) -> None:
        """Ask for a placement group with a bundle for each claim, and wait for it."""
        from omni_launchers.ray import cluster

        beside, node = claims[0].beside, ""
        if beside is not None:
            node = await self._node_of(beside)
        bundles = [each.bundle for each in claims]
        group = await asyncio.to_thread(cluster.reserve, bundles, self._settings.strategy, node)
        self._groups.append(group)
        for claim in claims:
            claim.group, claim.node = group, node
        deadline = time.monotonic() + self._settings.ready_seconds
        while not await asyncio.to_thread(cluster.is_reserved, group, _SLICE_SECONDS):
            if time.monotonic() >= deadline:
                wanted = "; ".join(map(str, bundles))
                free = await asyncio.to_thread(cluster.available)
                raise StartupError(
                    f"the Ray cluster has not reserved what the stages need within {self._settings.ready_seconds:g} s "
                    f"(launcher.settings.ready_seconds): {wanted}; free in the whole cluster: {free}"
                )

    def _listen(self, here: ClusterNode) -> None:
        address = self._address
        self.here = LocalMachine(self._directory, address, lambda: open_listener(address), name_of(here))
        network = CurveNetwork(self._keys, open_listener(address))
        self._reply_to = network.address
        self._own = here.id
        endpoint = f"ipc://{self._directory}/ray.sock"
        self._control = ControlPlane(endpoint, self._on_message, network=network, on_lost=self._lost)
        self._control.listen()

    async def place(self, unit: str) -> Grant:
        claim = self._claims.of(unit)
        pause = FIRST_PAUSE
        try:
            while True:
                self._waiting[unit] = f"Ray to place {claim.bundle}"
                node = await self._node_of(claim)
                self._waiting[unit] = f"the agent on Ray node {node}"
                try:
                    ids = await self._gpus_of(claim, node)
                    machine = await self._machine(node)
                except ConnectionError as error:
                    logger.warning("%s: node %s cannot be used: %s", unit, node, error)
                    await asyncio.sleep(pause)  # until Ray knows that too
                    pause = min(2 * pause, LONGEST_PAUSE)
                    continue
                numbers = {number: place for place, number in enumerate(claim.gpus)}
                return Grant(machine, {"CUDA_VISIBLE_DEVICES": ",".join(ids)}, numbers)
        finally:
            self._waiting.pop(unit, None)

    async def _node_of(self, claim: Claim) -> str:
        """Wait until a claim has a node. One that is beside another which has moved is made anew there."""
        from omni_launchers.ray import cluster

        while True:
            async with claim.lock:
                if claim.beside is not None and await self._node_of(claim.beside) != claim.node:
                    await self._give_back(claim)
                if claim.group is None:  # also after Ray has refused the one before
                    if not claim.units:
                        raise StartupError("its unit has been removed")
                    await self._reserve([claim])
                group = claim.group
            if group is None:  # given back meanwhile
                continue
            node = await asyncio.to_thread(cluster.node_of, group, claim.index)
            if node is not None:
                return node
            await asyncio.to_thread(cluster.is_reserved, group, _SLICE_SECONDS)

    async def _gpus_of(self, claim: Claim, node: str) -> list[str]:
        from omni_launchers.ray import cluster

        if not claim.gpus:
            return []
        async with claim.lock:
            if node not in claim.devices:
                assert claim.group is not None
                claim.devices[node] = await cluster.ask_gpus(claim.group, claim.index, len(claim.gpus))
            return claim.devices[node]

    async def _machine(self, node: str) -> RunMachine:
        if node == self._own:
            return self.here
        if node not in self._nodes:
            from omni_launchers.ray import cluster

            found = [each for each in await asyncio.to_thread(cluster.nodes) if each.id == node]
            if not found:
                raise ConnectionError("it has left the cluster")
            if node not in self._nodes:  # still
                self._nodes[node] = Node(found[0], self._host(name_of(found[0])), self._keys)
        return await self._nodes[node].machine()

    def _host(self, name: str) -> Host:
        assert self._control is not None
        return Host(self._run, name, self._control, self._reply_to, self._versions, self._digest)

    def waits_for(self, unit: str) -> str:
        return self._waiting.get(unit, "")

    def _on_message(self, message: Any) -> None:
        if isinstance(message, get_args(messages.HostMessage)):
            name = message.run.split("~", 2)[2]
            for node in self._nodes.values():
                if node.host.name == name:
                    node.host.handle(message)
        else:
            logger.error("a launcher cannot handle a %s", type(message).__name__)

    def _lost(self, endpoint: str, reason: str) -> None:
        for node in self._nodes.values():
            if node.host.endpoint == endpoint:
                node.host.lost(reason)

    async def release(self) -> None:
        """End the fork server, tell the nodes that the run is over, and give back what Ray holds for it."""
        if self._is_released:
            return
        self._is_released = True
        self.here.close()
        closing = [each for node in self._nodes.values() if (each := node.host.close()) is not None]
        if closing:
            await asyncio.wait(closing, timeout=_CLOSE_SECONDS)
        if self._connecting is not None:
            connected = (await asyncio.gather(self._connecting, return_exceptions=True))[0] is None
            for node in self._nodes.values():
                await node.close()
            if connected:
                await asyncio.to_thread(_disconnect, self._groups)
        if self._control is not None:
            self._control.close()


def _connect(settings: Settings) -> None:
    from omni_launchers.ray import cluster  # imports Ray, which takes a second

    cluster.connect(settings)


def _disconnect(groups: Sequence[PlacementGroup]) -> None:
    from omni_launchers.ray import cluster

    try:
        for group in groups:
            cluster.give_back(group)
    finally:
        cluster.disconnect()
