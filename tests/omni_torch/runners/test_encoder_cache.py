"""Encoded media are cached by content, within a bound, and returned unchanged."""

from __future__ import annotations

import pytest
import torch

from omni_core.errors import ConfigError
from omni_torch.runners.encoder_cache import EncoderCache


class Encoder:
    """Encodes piece ``n`` to rows of ``n``, and counts."""

    def __init__(self, rows: int = 4) -> None:
        self.rows = rows
        self.calls: list[list[bytes]] = []

    def ask(self, cache: EncoderCache[tuple[torch.Tensor, ...]], *digests: bytes) -> list[int]:
        def missing(indices: list[int]) -> list[tuple[torch.Tensor, ...]]:
            self.calls.append([digests[index] for index in indices])
            large = torch.cat([torch.full((self.rows, 2), float(digests[index][0])) for index in indices])
            return [(part, -part) for part in large.split(self.rows)]

        pieces = cache.encode(digests, missing)
        assert all(torch.equal(first, -second) for first, second in pieces)
        return [int(first[0, 0]) for first, _ in pieces]


PIECE = 2 * 4 * 2 * 4
"""Bytes of one piece: two tensors of 4 by 2 float32."""


def test_a_piece_is_encoded_once_in_one_call_with_the_others_that_are_missing() -> None:
    cache: EncoderCache[tuple[torch.Tensor, ...]] = EncoderCache(100 * PIECE)
    encoder = Encoder()
    assert encoder.ask(cache, b"a", b"b", b"a") == [97, 98, 97]
    assert encoder.ask(cache, b"c", b"b", b"d") == [99, 98, 100]
    assert encoder.ask(cache, b"d", b"a") == [100, 97]
    assert encoder.calls == [[b"a", b"b"], [b"c", b"d"]]
    counters = cache.statistics()
    assert (counters["encoder_cache.hits"], counters["encoder_cache.misses"]) == (4, 4)


def test_the_size_is_bounded_and_eviction_is_least_recently_used() -> None:
    cache: EncoderCache[tuple[torch.Tensor, ...]] = EncoderCache(3 * PIECE)
    encoder = Encoder()
    encoder.ask(cache, b"a", b"b", b"c")
    encoder.ask(cache, b"a")
    encoder.ask(cache, b"d")
    assert cache.statistics()["encoder_cache.bytes"] == 3 * PIECE
    assert cache.statistics()["encoder_cache.evictions"] == 1
    encoder.calls.clear()
    encoder.ask(cache, b"a", b"c", b"d")
    assert encoder.calls == []
    encoder.ask(cache, b"b")
    assert encoder.calls == [[b"b"]]


def test_a_request_larger_than_the_cache_works() -> None:
    cache: EncoderCache[tuple[torch.Tensor, ...]] = EncoderCache(2 * PIECE)
    encoder = Encoder()
    assert encoder.ask(cache, b"a", b"b", b"c", b"d") == [97, 98, 99, 100]
    assert cache.statistics()["encoder_cache.bytes"] == 2 * PIECE
    huge: EncoderCache[tuple[torch.Tensor, ...]] = EncoderCache(PIECE - 1)
    assert [encoder.ask(huge, b"a") for _ in range(2)] == [[97], [97]]
    assert huge.statistics()["encoder_cache.bytes"] == 0


def test_cached_tensors_are_not_views_of_a_batch() -> None:
    cache: EncoderCache[tuple[torch.Tensor, ...]] = EncoderCache(100 * PIECE)
    Encoder().ask(cache, b"a", b"b")
    (piece,) = cache.encode([b"a"], lambda indices: pytest.fail("it is known"))
    assert piece[0].untyped_storage().nbytes() == PIECE // 2


def test_an_encoder_that_fails_leaves_nothing_behind() -> None:
    cache: EncoderCache[tuple[torch.Tensor, ...]] = EncoderCache(100 * PIECE)

    def choke(indices: list[int]) -> list[tuple[torch.Tensor, ...]]:
        raise ArithmeticError("choked")

    with pytest.raises(ArithmeticError):
        cache.encode([b"a"], choke)
    assert Encoder().ask(cache, b"a") == [97]


def test_a_negative_bound_is_refused() -> None:
    with pytest.raises(ConfigError, match="-1"):
        EncoderCache(-1)


def test_a_cleared_cache_is_empty() -> None:
    cache: EncoderCache[tuple[torch.Tensor, ...]] = EncoderCache(2 * PIECE)
    encoder = Encoder()
    encoder.ask(cache, b"a", b"b")
    cache.clear()
    assert cache.statistics()["encoder_cache.bytes"] == 0
    assert encoder.ask(cache, b"a", b"b") == [97, 98]
    assert encoder.calls == [[b"a", b"b"]] * 2
    assert cache.statistics()["encoder_cache.evictions"] == 0


def test_pieces_that_nobody_uses_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("omni_torch.runners.encoder_cache.time.monotonic", lambda: now)
    cache: EncoderCache[tuple[torch.Tensor, ...]] = EncoderCache(100 * PIECE)
    for name in (b"a", b"b"):
        cache.encode([name], lambda indices: [(torch.zeros(PIECE // 4),) for _ in indices])
    now += 3000.0
    cache.encode([b"a"], lambda indices: [])
    now += 1000.0
    assert cache.statistics()["encoder_cache.bytes"] == PIECE
    cache.encode([b"a"], lambda indices: [])
    now += 3600.0
    assert cache.statistics()["encoder_cache.bytes"] == 0
    assert cache.statistics()["encoder_cache.evictions"] == 2
