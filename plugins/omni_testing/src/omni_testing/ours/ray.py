"""The suite of launchers on the launcher of Ray clusters: a head and two nodes on this machine, with GPUs that do not exist."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from typing import Any, ClassVar

import pytest

from omni_core.api import Need
from omni_testing import LauncherConformance

_NODE = {"num_cpus": 8, "object_store_memory": 80 * 2**20}
_SYSTEM = {"enable_worker_prestart": False, "prestart_worker_first_driver": False, "health_check_period_ms": 1000}


class LocalCluster:
    """A Ray cluster of several nodes on this machine, which share its address: they differ by node id only.

    Args:
        nodes: the label ``rack`` of each node beside the head; each has ``gpus`` GPUs.
    """

    def __init__(self, *nodes: str, gpus: int = 2) -> None:
        from ray.cluster_utils import Cluster

        self.gpus = gpus
        head: dict[str, Any] = {**_NODE, "num_gpus": 0, "include_dashboard": False, "_system_config": _SYSTEM}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self.address: str = self._cluster.address
        self._nodes: dict[str, Any] = {}
        for rack in nodes:
            self.add(rack)

    def add(self, rack: str) -> str:
        """Add a node and return its id."""
        made = self._cluster.add_node(**_NODE, num_gpus=self.gpus, labels={"rack": rack})
        self._nodes[made.node_id] = made
        return str(made.node_id)

    def remove(self, node: str) -> None:
        """Kill a node; ``node``: how its id begins."""
        (found,) = (each for each in self._nodes if each.startswith(node))
        self._cluster.remove_node(self._nodes.pop(found), allow_graceful=False)

    def close(self) -> None:
        """End every process of the cluster."""
        self._cluster.shutdown()


class RayConformance(LauncherConformance):
    """The launcher ``ray``. Its units of two hosts are told apart by a label of the nodes."""

    launcher = "omni_launchers.ray.launcher:RayLauncher"
    hosts: ClassVar[tuple[str, ...]] = ("b", "c")
    gpus: ClassVar[int] = 2

    cluster: LocalCluster

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _cluster(cls) -> Iterator[None]:
        with closing(LocalCluster("b", "c")) as cluster:
            cls.cluster = cluster
            cls.settings = {"address": cluster.address}
            yield

    def needs(self) -> list[Need]:
        from attrs import evolve

        return [evolve(each, labels={"rack": each.host} if each.host else {}) for each in super().needs()]

    def impossible(self) -> Need:
        return Need("impossible", ("impossible",), processes=4, gpus=(0, 1, 2, 3))

    async def lose(self, machine: str) -> None:
        await asyncio.to_thread(self.cluster.remove, machine.partition("/")[2])

    async def bring_back(self, machine: str) -> None:
        self.cluster.add("b")  # Ray makes nodes in the main thread only
