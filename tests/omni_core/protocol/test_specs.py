"""The peers in the spec of a process change while it runs."""

from __future__ import annotations

from omni_core.protocol.process_messages import PeerJoinedMessage
from omni_core.protocol.specs import ProcessSpec


def test_a_peer_joins_and_leaves() -> None:
    spec = ProcessSpec(
        name="p",
        stages=[],
        endpoint="e",
        coordinator_endpoint="c",
        stage_endpoints={"a": {0: "at a"}, "b": {0: "at a"}, "d": {0: "at d"}},
        addresses={"at a": "ipc://a"},
        relay_towards={"at a": "shm"},
        same_gpu={"a": ["at a"]},
    )
    joined = PeerJoinedMessage("at a.1", ["a", "b"], 1, "shm", "nixl", ["a", "b"])
    for _ in range(2):  # the dictionaries of several specs may be one
        spec.add_peer(joined)
    assert spec.stage_endpoints == {"a": {0: "at a", 1: "at a.1"}, "b": {0: "at a", 1: "at a.1"}, "d": {0: "at d"}}
    assert spec.relay_towards == {"at a": "shm", "at a.1": "shm"}
    assert spec.relay_across == {"at a.1": "nixl"}
    assert spec.same_gpu == {"a": ["at a", "at a.1"], "b": ["at a.1"]}
    for _ in range(2):
        spec.drop_peer("at a")
    assert spec.stage_endpoints == {"a": {1: "at a.1"}, "b": {1: "at a.1"}, "d": {0: "at d"}}
    assert (spec.relay_towards, spec.relay_across, spec.addresses) == ({"at a.1": "shm"}, {"at a.1": "nixl"}, {})
    assert spec.same_gpu == {"a": ["at a.1"], "b": ["at a.1"]}
