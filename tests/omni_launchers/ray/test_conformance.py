"""The launcher of Ray clusters passes the suite of launchers."""

from __future__ import annotations

import pytest

from omni_testing.ours.ray import LocalCluster, RayConformance


class TestRay(RayConformance):
    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _cluster(cls, cluster: LocalCluster) -> None:
        cls.cluster, cls.settings = cluster, {"address": cluster.address}
