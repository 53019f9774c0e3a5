"""The bundles of units: what must be on one node, and what it takes there."""

from __future__ import annotations

import pytest

from omni_core.errors import StartupError
from omni_core.machines import Need
from omni_launchers.ray.bundles import Bundle, bundles


def units(*needs: Need) -> list[tuple[str, ...]]:
    return [each.units for each in bundles(needs, 0.5)]


def test_units_without_a_tie_have_bundles_of_their_own() -> None:
    assert units(Need("a"), Need("b"), Need("c", gpus=(0,)), Need("d", gpus=(1,))) == [("a",), ("b",), ("c",), ("d",)]


def test_units_that_share_a_device_are_together_also_through_others() -> None:
    assert units(Need("a", gpus=(0, 1)), Need("b"), Need("c", gpus=(2, 3)), Need("d", gpus=(1, 2))) == [
        ("a", "c", "d"),
        ("b",),
    ]


def test_units_of_one_host_are_together_and_have_numbers_of_their_own() -> None:
    found = bundles([Need("a", host="x", gpus=(0,)), Need("b", gpus=(0,)), Need("c", host="x", gpus=(1,))], 0.5)
    assert [each.units for each in found] == [("a", "c"), ("b",)]
    assert [each.gpus for each in found] == [(0, 1), (0,)]


def test_a_bundle_has_the_sum_of_what_its_units_need_and_each_device_once() -> None:
    ranks = Need("ranks", ("thinker",), 2, gpus=(4, 7), memory=3 * 2**30, labels={"rack": "b"})
    (bundle,) = bundles([ranks, Need("vocoder.1", ("vocoder",), gpus=(7,), cpus=2.0, memory=2**30)], 0.5)
    assert bundle == Bundle(
        ("ranks", "vocoder.1"),
        "thinker and vocoder.1",
        (4, 7),
        {"CPU": 3.0, "GPU": 2.0, "memory": 4.0 * 2**30},
        {"rack": "b"},
    )
    assert str(bundle) == "thinker and vocoder.1 (3 CPU, 2 GPU, 4.0 GiB memory, rack=b)"


def test_units_that_must_be_together_cannot_need_different_labels() -> None:
    needs = [Need("a", gpus=(0,), labels={"rack": "b"}), Need("c", gpus=(0,), labels={"rack": "d"})]
    with pytest.raises(StartupError, match=r"a and c must be on one node.* rack is 'b' and 'd'"):
        bundles(needs, 0.5)
