"""The bodies of all requests together are bounded, and one key leaves room for the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from omni_serve_clients import http_client

from omni_core import AsyncPipe
from omni_serve import Settings, body_budget, create_app
from omni_serve.auth import KeyRing
from omni_serve.body_budget import BodyBudget, Held
from omni_serve.errors import ApiError
from omni_serve.limits import Admission
from omni_serve.settings import Limits

MIB = 2**20


def budget(keys: int, limits: Limits) -> BodyBudget:
    ring = KeyRing.open(None, {f"key {number}": f"a secret {number}" for number in range(keys)})
    return BodyBudget(Admission(Settings(limits=limits), ring), limits)


def filled(shared: BodyBudget, key: str) -> int:
    """Return how many MiB a key gets."""
    held = Held(shared, key)
    with pytest.raises(ApiError) as caught:
        while True:
            held.take(MIB)
    assert (caught.value.status, caught.value.code) == (503, "overloaded")
    assert int(caught.value.headers["retry-after"]) >= 1
    return held.size // MIB


@pytest.mark.parametrize(("keys", "shares"), [(0, [10, 0]), (1, [10, 0]), (2, [7, 3])])
def test_one_key_leaves_room_for_others(keys: int, shares: list[int]) -> None:
    shared = budget(keys, Limits(bodies_mib=10, body_mib=2, key_share=0.7))
    assert [filled(shared, key) for key in ("first", "second")] == shares
    assert shared.held == 10 * MIB


def test_a_whole_body_fits_in_and_what_is_given_back_is_free() -> None:
    shared = budget(2, Limits(bodies_mib=2, body_mib=8, key_share=0.1))
    held = Held(shared, "first")
    held.take(8 * MIB)
    with pytest.raises(ApiError):
        held.take(1)
    held.give_back()
    held.give_back()
    assert (shared.held, dict(shared.of_key)) == (0, {})
    assert filled(shared, "second") == 8


@pytest.mark.asyncio
async def test_bodies_wait_for_room_in_their_order() -> None:
    shared = budget(2, Limits(bodies_mib=4, body_mib=1, key_share=0.75))
    first, small = Held(shared, "first"), Held(shared, "second")
    await first.wait(3 * MIB)
    later = [asyncio.ensure_future(Held(shared, key).wait(size * MIB)) for key, size in (("first", 2), ("second", 2))]
    await asyncio.sleep(0)
    await small.wait(1000)  # it needs no room
    small.take(1000)
    first.take(MIB)  # what it has waited for is not counted twice
    assert (shared.held, [job.done() for job in later]) == (3 * MIB + 1000, [False, False])
    first.give_back()
    await asyncio.sleep(0)
    assert (shared.held, [job.done() for job in later]) == (2 * MIB + 1000, [True, False])
    later[1].cancel()
    await asyncio.gather(*later, return_exceptions=True)
    shared.give_back("first", 2 * MIB)
    small.give_back()
    assert (shared.held, shared._waiting) == (0, [])


@pytest.mark.asyncio(loop_scope="session")
async def test_stalled_bodies_are_bounded_together(pipe: AsyncPipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of any kind; and all is given back when they end."""
    monkeypatch.setattr(body_budget, "WAIT_SECONDS", 0.05)
    app = create_app(pipe, Settings(limits=Limits(bodies_mib=1, body_mib=1, text_body_mib=1)))
    shared = app.state.server.body_budget
    go_on = asyncio.Event()

    async def stalled() -> AsyncIterator[bytes]:
        for _ in range(4):
            yield b" " * (MIB // 10)
        await go_on.wait()
        yield b"{}"

    async def post(http: httpx2.AsyncClient, path: str, kind: str, body: Any) -> httpx2.Response:
        return await http.post(path, content=body, headers={"content-type": kind})

    async with http_client(app) as http:
        jobs = [
            asyncio.ensure_future(post(http, "/v1/chat/completions", "application/json", stalled())),
            asyncio.ensure_future(post(http, "/v1/audio/speech", "application/json", stalled())),
        ]
        async with asyncio.timeout(60):
            while shared.held < 8 * (MIB // 10):
                await asyncio.sleep(0.01)
        begun = []

        async def unread() -> AsyncIterator[bytes]:
            begun.append(True)
            yield b"{}"

        kind = {"content-type": "application/json", "content-length": str(MIB // 2)}
        assert (await http.post("/v1/responses", content=unread(), headers=kind)).status_code == 503
        assert begun == []
        form = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n' + b"a" * (MIB // 4)
        for body in (b" " * (MIB // 4), stalled()):
            answer = await post(http, "/v1/responses", "application/json", body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "overloaded")
            assert "retry-after" in answer.headers
        answer = await post(http, "/v1/audio/transcriptions", "multipart/form-data; boundary=x", form)
        assert answer.status_code == 503
        assert (await http.get("/health")).status_code == 200
        go_on.set()
        assert [(await job).status_code for job in jobs] == [400, 400]
    assert shared.held == 0
