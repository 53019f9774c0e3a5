"""Options of the test suite."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak-seconds", type=float, default=25.0, help="how long tests/faults/test_soak.py runs")
    parser.addoption("--soak-seed", type=int, help="repeat the decisions of an earlier soak")
    parser.addoption("--slow", action="store_true", help="also run the tests that wait for most of a minute")
