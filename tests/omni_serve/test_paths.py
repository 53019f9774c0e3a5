"""The path below a mount."""

from __future__ import annotations

import pytest

from omni_serve.paths import route_path


@pytest.mark.parametrize(
    ("path", "root", "below"),
    [
        ("/v1/models", "", "/v1/models"),
        ("/omni/v1/models", "/omni", "/v1/models"),
        ("/omni", "/omni", ""),
        ("/omnibus/v1", "/omni", "/omnibus/v1"),
        ("/v1/models", "/omni", "/v1/models"),  # behind a proxy that has cut the prefix
    ],
)
def test_the_path_below_a_mount(path: str, root: str, below: str) -> None:
    assert route_path({"path": path, "root_path": root}) == below


def test_a_server_may_leave_the_root_out() -> None:
    assert route_path({"path": "/v1/models"}) == "/v1/models"
