"""Schedules, the cache and pixels."""

from __future__ import annotations

import pytest
import torch

from omni_core.errors import ConfigError
from omni_diffusion.content_cache import ContentCache, digest
from omni_diffusion.pixels import from_bytes, pack, to_bytes, unpack
from omni_diffusion.schedule import Schedules


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"_class_name": "DDIMScheduler"}, "the scheduler DDIMScheduler is not supported; FlowMatchEuler"),
        ({"stochastic_sampling": True}, "stochastic_sampling is not supported"),
    ],
)
def test_schedules_that_are_not_supported_are_named(config: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Schedules(config)


def test_the_cache_forgets_what_was_used_least_lately() -> None:
    cache: ContentCache[bytes] = ContentCache(10, len)
    for name in ("a", "b", "c"):
        cache.put(digest(name), name.encode() * 4)
        if name == "b":
            assert cache.get(digest("a")) == b"aaaa"
    assert [cache.get(digest(name)) for name in ("a", "b", "c")] == [b"aaaa", None, b"cccc"]
    assert (cache.nbytes, cache.hits, cache.misses) == (8, 3, 1)
    cache.put(digest("d"), b"d" * 11)
    assert cache.get(digest("d")) is None
    cache.clear()
    assert cache.nbytes == 0


def test_contents_are_told_apart_by_their_borders() -> None:
    assert digest("ab", b"c") != digest("a", b"bc")


def test_packing_is_undone() -> None:
    latents = torch.randn(2, 4, 6, 8)
    packed = pack(latents)
    assert packed.shape == (2, 12, 16)
    assert torch.equal(unpack(packed, 6, 8), latents)
    assert torch.equal(packed[0, 0], latents[0, :, :2, :2].flatten())


def test_pixels_are_rounded_and_bounded() -> None:
    pixels = torch.randint(0, 256, (1, 3, 5, 3), dtype=torch.uint8)
    assert torch.equal(to_bytes(from_bytes(pixels)), pixels)
    assert to_bytes(torch.tensor([[-9.0, 9.0, 0.0]]).view(1, 3, 1, 1)).tolist() == [[[[0, 255, 128]]]]
