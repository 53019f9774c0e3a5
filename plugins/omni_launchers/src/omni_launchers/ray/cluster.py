"""The calls of Ray: the only module that imports it. Functions block; the launcher calls them in threads.

What is made belongs to the driver: Ray ends the actors and the placement group when the driver's process ends.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, cast

from attrs import frozen

if "ray" not in sys.modules:
    # A lost node is told by the launcher; Ray would print its log to standard output, which is for answers.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".*")
import ray
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from omni_core.api import StartupError
from omni_launchers.hosts.curve import CurveKeys
from omni_launchers.ray.agent import Agent
from omni_launchers.ray.bundles import Bundle, amount
from omni_launchers.ray.settings import Settings

_DIAL_SECONDS = 5.0
"""The time to reach the head; Ray itself tries for minutes."""

_lock = threading.Lock()
_runs = 0
_is_ours = False


@frozen
class ClusterNode:
    """A living node: its id, its address, all that it has, and its labels."""

    id: str
    address: str
    resources: Mapping[str, float]
    labels: Mapping[str, str]

    def holds(self, bundle: Bundle) -> bool:
        """Return whether the node, if nobody else used it, would hold a bundle."""
        has_all = all(self.resources.get(name, 0.0) >= wanted for name, wanted in bundle.resources.items())
        return has_all and all(_matches(self.labels.get(name), value) for name, value in bundle.labels.items())

    def __str__(self) -> str:
        has = [amount(name, self.resources[name]) for name in ("CPU", "GPU", "memory") if self.resources.get(name)]
        own = [f"{name}={value}" for name, value in self.labels.items() if not name.startswith("ray.io/")]
        return f"{self.address} ({', '.join(has + own)})"


def _matches(label: str | None, wanted: str) -> bool:
    """Compare a label with a plain value; what has one of Ray's operators is left to Ray."""
    return wanted.startswith(("!", "in(")) or label == wanted


def connect(settings: Settings) -> None:
    """Connect this process to the cluster, unless it is; once for each run.

    Raises:
        StartupError: there is no cluster there, it is of another version, or this process uses another one.
    """
    global _runs, _is_ours
    with _lock:
        if not ray.is_initialized():
            given = os.environ.get("RAY_ADDRESS", "auto") if settings.address == "auto" else settings.address
            if given != "auto":
                _dial(given)
            try:
                ray.init(
                    address=given,
                    runtime_env=settings.runtime_env or None,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                )
            except ConnectionError:
                raise StartupError(
                    "launcher.settings.address: no Ray cluster runs on this machine; start one with `ray start --head`, join one with "
                    "`ray start --address HOST:PORT`, or give the address"
                ) from None
            except Exception as error:
                lines = " ".join(str(error).split())
                raise StartupError(
                    f"launcher.settings.address: Ray at {given} refuses this process: {lines}"
                ) from error
            _is_ours = True
        elif settings.runtime_env and not _runs:
            raise StartupError("launcher.settings.runtime_env: this program has called ray.init; give it there")
        elif settings.address not in ("auto", ray.get_runtime_context().gcs_address):
            raise StartupError(
                f"launcher.settings.address: this process is connected to {ray.get_runtime_context().gcs_address} already"
            )
        _runs += 1


def _dial(address: str) -> None:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _DIAL_SECONDS).close()
    except (OSError, ValueError) as error:
        raise StartupError(
            f"launcher.settings.address: no Ray cluster answers at {address} ({error}); is it HOST:PORT of its head, and is it up?"
        ) from None


def disconnect() -> None:
    """Undo :func:`connect`; the last run of this process that does so closes the connection, if a run opened it."""
    global _runs, _is_ours
    with _lock:
        _runs -= 1
        if not _runs and _is_ours:
            _is_ours = False
            ray.shutdown()


def nodes() -> list[ClusterNode]:
    """Return the nodes that live."""
    return [
        ClusterNode(each["NodeID"], each["NodeManagerAddress"], each["Resources"], each["Labels"])
        for each in ray.nodes()
        if each["Alive"]
    ]


def own_node() -> str:
    """Return the id of the node of this process."""
    return str(ray.get_runtime_context().get_node_id())


def available() -> str:
    """Say what nobody uses in the cluster now, for messages."""
    free = ray.available_resources()
    return ", ".join(amount(name, free.get(name, 0.0)) for name in ("CPU", "GPU", "memory"))


def reserve(bundles: Sequence[Bundle], strategy: str, node: str = "") -> PlacementGroup:
    """Ask for a placement group, on a certain ``node`` or anywhere; it may not be there yet."""
    place = {"ray.io/node-id": node} if node else {}
    labels = [each.labels | place for each in bundles]
    return placement_group([each.resources for each in bundles], strategy, bundle_label_selector=labels)


def is_reserved(group: PlacementGroup, seconds: float) -> bool:
    """Wait until every bundle has a node, for so many seconds."""
    return bool(group.wait(seconds))


def node_of(group: PlacementGroup, bundle: int) -> str | None:
    """Return the id of a bundle's node; ``None``: it has none now, since its node was lost.

    Raises:
        StartupError: the group was removed.
    """
    table = placement_group_table(group)
    if table.get("state") == "REMOVED":
        raise StartupError("its placement group was removed from the Ray cluster")
    return table["bundles_to_node_id"].get(bundle) or None


def give_back(group: PlacementGroup) -> None:
    """Remove a placement group."""
    remove_placement_group(group)


def _gpu_ids() -> list[str]:
    return [str(each) for each in ray.get_gpu_ids()]


def ask_gpus(group: PlacementGroup, bundle: int, count: int) -> Awaitable[list[str]]:
    """Ask for the ids of a bundle's GPUs, as ``CUDA_VISIBLE_DEVICES`` has them on its node: of a task that runs there."""
    strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)
    task = ray.remote(num_cpus=0, num_gpus=count, max_retries=-1)(_gpu_ids)
    return cast("Awaitable[list[str]]", task.options(scheduling_strategy=strategy).remote())


class RemoteAgent:
    """The agent on a node, as this process sees it.

    Args:
        node: its id.
        host: its address.
    """

    def __init__(self, node: str, host: str, keys: CurveKeys) -> None:
        strategy = NodeAffinitySchedulingStrategy(node, soft=False)
        actor: Any = ray.remote(num_cpus=0, max_restarts=0)(Agent)
        self._actor = actor.options(scheduling_strategy=strategy).remote(host, keys.public, keys.secret)

    async def address(self) -> str:
        """Return the address of its host server.

        Raises:
            ConnectionError: it could not be started there.
        """
        try:
            address = str(await self._actor.address.remote())
        except RayError as error:
            raise ConnectionError(f"no agent can be started there: {_brief(error)}") from None
        if not address:
            raise ConnectionError("the host server has ended at its start; its log is in that of its Ray worker")
        return address

    async def end(self) -> str:
        """Wait for the end of the agent or its server, and return the reason."""
        try:
            return f"its host server has ended (code {await self._actor.serve.remote()})"
        except RayError as error:
            return f"its Ray agent has ended: {_brief(error)}"

    def kill(self) -> None:
        """End it now."""
        ray.kill(self._actor)


def _brief(error: RayError) -> str:
    """Return the lines of an error of Ray's that tell the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith(("class_name", "actor_id", "pid", "namespace", "ip"))]
    return " ".join(told[:3])[:300]
