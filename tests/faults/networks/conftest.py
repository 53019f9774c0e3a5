"""Fixtures of the tests over a slow, lossy or broken network."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from network_harness import Network, make_network

from omni_launchers.hosts.curve import CurveKeys


@pytest.fixture(scope="module")
def hosts() -> Iterator[Network]:
    with make_network() as made:
        yield made


@pytest.fixture
def network(hosts: Network, monkeypatch: pytest.MonkeyPatch) -> Network:
    """Two hosts and a link without a fault; this process is on the first one, stages can be imported on both."""
    hosts.both(delay=0.0, jitter=0.0, loss=0.0, rate=0.0, is_cut=False)
    monkeypatch.setenv("UCX_TLS", "tcp,self")
    monkeypatch.setattr(sys, "executable", str(hosts.python))
    return hosts


@pytest.fixture
def key_file(folder: Path) -> Path:
    CurveKeys.new().write(folder / "run.key")
    return folder / "run.key"
