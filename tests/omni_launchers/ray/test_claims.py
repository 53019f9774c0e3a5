"""The claims of units that join and leave a run: what they share, what is used again, and what is given back."""

from __future__ import annotations

import pytest

from omni_core.errors import StartupError
from omni_core.machines import Need
from omni_launchers.ray import cluster
from omni_launchers.ray.bundles import Bundle
from omni_launchers.ray.claims import Claim, Claims
from omni_launchers.ray.launcher import RayLauncher
from omni_launchers.ray.settings import Settings


def begun(*needs: Need) -> Claims:
    claims = Claims(0.5)
    claims.begin(needs)
    return claims


def test_a_unit_without_a_tie_gets_a_claim_of_its_own_which_is_given_back() -> None:
    claims = begun(Need("a"), Need("b", gpus=(0,)))
    late = claims.add(Need("c"))
    assert (late.is_own, late.beside, late.bundle.resources) == (True, None, {"CPU": 0.5})
    assert claims.of("c") is late
    assert claims.remove("c") == [late]
    assert claims.remove("c") == []


def test_a_replacement_uses_the_claim_of_the_start_that_an_older_one_has_left() -> None:
    claims = begun(Need("a"), Need("b", gpus=(4,)))
    first = claims.of("a")
    second = claims.add(Need("a.1"))
    assert claims.remove("a") == [], "a bundle of the start's group cannot be given back alone"
    assert claims.add(Need("a.2", cpus=2.0)) not in (first, second), "it holds too little"
    assert claims.remove("a.2")
    assert claims.add(Need("a.3")) is first
    assert claims.remove("a.1") == [second]
    assert claims.remove("b") == []
    again = claims.add(Need("b.1", gpus=(7,)))
    assert (again.gpus, again.bundle.gpus) == ((7,), (4,)), "its devices have the numbers of who is there now"


def test_a_replacement_shares_the_devices_of_the_one_that_drains() -> None:
    claims = begun(Need("a", gpus=(0, 1)), Need("b", gpus=(1,)))
    shared = claims.of("a")
    assert claims.add(Need("a.1", gpus=(0, 1))) is shared
    assert claims.remove("a") == claims.remove("b") == []
    assert claims.add(Need("b.1", gpus=(1,))) is shared
    assert shared.gpus == (0, 1)
    with pytest.raises(StartupError, match=r"c shares a GPU with a.1 and b.1, and needs further GPUs or labels"):
        claims.add(Need("c", gpus=(1, 2)))
    with pytest.raises(StartupError, match="further GPUs or labels"):
        claims.add(Need("c", gpus=(1,), labels={"rack": "b"}))
    assert claims.add(Need("d", host="h", gpus=(1,))) is not shared, "the number of another host is another device"


def test_units_of_one_host_are_beside_the_first_which_stays_while_they_do() -> None:
    claims = begun(Need("other"))
    first = claims.add(Need("a", host="h", gpus=(0,)))
    second = claims.add(Need("a.1", host="h", gpus=(1,)))
    third = claims.add(Need("a.2", host="h", gpus=(2,)))
    assert (first.beside, second.beside, third.beside) == (None, first, first)
    assert claims.remove("a") == [], "others must be on its node"
    assert claims.add(Need("a.3", host="h", gpus=(3,))) is first
    assert first.gpus == (3,)
    assert claims.remove("a.1") == [second]
    assert claims.remove("a.3") == []
    assert claims.remove("a.2") == [first, third]


class Group:
    """A placement group on a node."""

    def __init__(self, node: str) -> None:
        self.node = node


async def test_a_claim_that_ray_has_refused_to_make_anew_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not taken for one whose unit was removed."""
    launcher = RayLauncher.__new__(RayLauncher)
    launcher._settings, launcher._groups = Settings(), []
    first, second = Claim(Bundle((), "a", (), {}, {}), ()), Claim(Bundle((), "b", (), {}, {}), ())
    first.units, second.units = {"a"}, {"b"}
    first.group, second.beside, second.node = Group("new"), first, "old"
    second.group = Group("old")
    launcher._groups += [first.group, second.group]
    asked: list[str] = []

    def reserve(bundles: list[Bundle], strategy: str, node: str) -> Group:
        asked.append(node)
        if len(asked) == 1:
            raise RuntimeError("no answer")
        return Group(node)

    monkeypatch.setattr(cluster, "reserve", reserve)
    monkeypatch.setattr(cluster, "is_reserved", lambda group, seconds: True)
    monkeypatch.setattr(cluster, "give_back", lambda group: None)
    monkeypatch.setattr(cluster, "node_of", lambda group, index: group.node)
    with pytest.raises(RuntimeError, match="no answer"):
        await launcher._node_of(second)
    first.group.node = "old"  # the unit beside it is where it was before: nothing has to move
    assert await launcher._node_of(second) == "old"
    assert asked == ["new", "old"]
    second.units.clear()
    second.group = None
    with pytest.raises(StartupError, match="its unit has been removed"):
        await launcher._node_of(second)
