"""The page about Ray works as written."""

from __future__ import annotations

from pathlib import Path

import pytest
from tutorials import Reader, follow, reader

from omni_testing.ours.ray import LocalCluster

__all__ = ["reader"]


@pytest.mark.timeout(240)
def test_the_page_about_ray(reader: Reader, cluster: LocalCluster) -> None:
    reader.environment["RAY_ADDRESS"] = cluster.address
    follow(Path(__file__).parents[3] / "docs" / "ray.md", reader)
