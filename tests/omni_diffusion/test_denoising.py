"""The denoising loop with a network of a few numbers: it keeps the contract of step schedulers, and requests do not disturb each other."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from omni_core.errors import InvalidRequestError
from omni_core.protocol.messages import OmniRequest, StagePayload
from omni_core.scheduling.base import IncomingMessage, OutgoingMessage, Scheduler
from omni_diffusion.denoising import DenoisingScheduler, Latents, guided
from omni_diffusion.schedule import Schedules
from omni_testing import StepSchedulerConformance

SCHEDULES = Schedules({"use_dynamic_shifting": True, "shift_terminal": None})


class Wave:
    """A network: every position becomes a mean of the sample, its time and its condition. Padding that counts would be seen."""

    def __init__(self) -> None:
        self.adapters: list[str | None] = []
        self.rows: list[int] = []

    def begin(self, payload: StagePayload) -> Latents:
        given = payload.data
        if "fail" in given:
            raise InvalidRequestError("a bad request")
        noise = torch.randn(1, 4, 2, generator=torch.Generator().manual_seed(given["seed"]))
        words = {
            role: torch.full((length, 3), float(length)) for role, length in given.get("words", {"positive": 2}).items()
        }
        if given.get("poison"):
            words["positive"] = torch.full((2, 3), -1.0)
        return Latents(
            sample=noise,
            schedule=SCHEDULES.make(given["steps"], 4),
            conditions=words,
            guidance=3.0,
            shapes=((1, 2, given.get("width", 2)),),
            adapter=given.get("adapter"),
            previews=frozenset(given.get("previews", ())),
            wants_progress=given.get("stream", False),
            extra={"seconds": given.get("seconds", 0.0)},
        )

    def use_adapter(self, name: str | None) -> None:
        self.adapters.append(name)

    def predict(
        self,
        samples: torch.Tensor,
        timesteps: torch.Tensor,
        conditions: torch.Tensor,
        mask: torch.Tensor | None,
        shapes: Sequence[tuple[int, int, int]],
    ) -> torch.Tensor:
        self.rows.append(len(samples))
        if bool((conditions == -1.0).any()):
            raise ValueError("a poisoned condition")
        time.sleep(0.002)
        counted = torch.ones(conditions.shape[:2]) if mask is None else mask.float()
        means = (conditions.mean(-1) * counted).sum(1) / counted.sum(1)
        return 0.5 * samples + 0.001 * timesteps[:, None, None] + 0.1 * means[:, None, None]


class TestDenoising(StepSchedulerConformance):
    def make(self) -> Scheduler:
        return DenoisingScheduler(Wave(), max_batch_size=4)

    def good(self, number: int) -> Any:
        words = {"positive": 1 + number % 3} | ({"negative": 2} if number % 2 else {})
        return {"seed": number, "steps": 2 + number % 5, "words": words}

    def bad(self) -> Any:
        return {"fail": True}

    def long(self) -> Any:
        return {"seed": 0, "steps": 900}

    def bad_at_a_step(self) -> Any:
        return {"seed": 0, "steps": 3, "poison": True}

    def same(self, one: Any, other: Any) -> bool:
        if isinstance(one, list):
            return len(one) == len(other)
        if "latents" not in one:
            return bool(one == other)
        return torch.allclose(one["latents"], other["latents"], atol=1e-6)


def served(model: Wave, *requests: dict[str, Any], size: int = 8) -> list[OutgoingMessage]:
    scheduler, found = DenoisingScheduler(model, size), []
    for number, data in enumerate(requests):
        payload = StagePayload(f"r{number}", OmniRequest(), data)
        scheduler.inbox.put(IncomingMessage(f"r{number}", "new_request", payload))
    while sum(each.type != "stream" for each in found) < len(requests):
        assert scheduler.turn()
        found += scheduler.outbox.drain()
    return found


def test_requests_of_one_size_and_adapter_share_steps() -> None:
    model = Wave()
    served(model, *({"seed": seed, "steps": 2} for seed in range(3)), {"seed": 3, "steps": 2, "width": 4})
    assert model.rows == [3, 3, 1, 1], "the larger image, which is more work, comes after them"
    model = Wave()
    served(model, *({"seed": 1, "steps": 1, "adapter": name} for name in (None, "sketch", None)))
    assert (model.rows, model.adapters) == ([2, 1], [None, "sketch"])


def ended_in_order(*requests: tuple[int, dict[str, Any]]) -> list[str]:
    """Return the names of requests in the order of their ends; each arrives after a number of turns, and no two share a step."""
    scheduler, due, ended, turns = DenoisingScheduler(Wave(), 1), list(requests), [], 0
    while len(ended) < len(requests):
        while due and due[0][0] <= turns:
            name = f"r{len(requests) - len(due)}"
            scheduler.inbox.put(
                IncomingMessage(name, "new_request", StagePayload(name, OmniRequest(), due.pop(0)[1] | {"seed": 1}))
            )
        assert scheduler.turn()
        turns += 1
        ended += [each.request_id for each in scheduler.outbox.drain()]
    return ended


def test_short_requests_end_first_and_equal_ones_in_the_order_in_which_they_came() -> None:
    assert ended_in_order((0, {"steps": 9}), (0, {"steps": 2}), (0, {"steps": 5}), (0, {"steps": 2})) == [
        "r1", "r3", "r2", "r0",
    ]  # fmt: skip
    guided_too = {"steps": 4, "words": {"positive": 2, "negative": 5}}
    assert ended_in_order((0, guided_too), (0, {"steps": 6})) == ["r1", "r0"], "a step with guidance is twice the work"


def test_a_long_request_is_overtaken_until_it_is_due() -> None:
    """Two more steps of others arrive in every second turn, so that without the bound the long one would end last."""
    others = [(2 * number, {"steps": 2}) for number in range(30)]
    order = ended_in_order((0, {"steps": 8}), *others)
    assert 4 <= order.index("r0") <= 16, "16 turns after it began it is due"


def test_guidance_is_a_row_more_and_conditions_of_one_length_share_a_batch() -> None:
    model = Wave()
    served(model, {"seed": 1, "steps": 1, "words": {"positive": 2, "negative": 5}}, {"seed": 2, "steps": 1})
    assert model.rows == [2, 1]


def test_a_batch_with_padding_equals_batches_without() -> None:
    """As on a GPU, where conditions of all lengths are one batch."""
    scheduler = DenoisingScheduler(Wave())
    words = [{"positive": 2}, {"positive": 7}, {"positive": 4}]
    payloads = [
        StagePayload("r", OmniRequest(), {"seed": seed, "steps": 1, "words": each}) for seed, each in enumerate(words)
    ]
    pairs = [(state, state.conditions["positive"]) for state in map(scheduler.begin, payloads)]
    padded = scheduler._predicted(pairs)
    for pair, found in zip(pairs, padded, strict=True):
        assert torch.allclose(found, scheduler._predicted([pair])[0], atol=1e-6)


def test_steps_are_told_with_previews_where_they_are_asked_for() -> None:
    told = [
        each.data
        for each in served(Wave(), {"seed": 1, "steps": 4, "stream": True, "previews": (2, 4)})
        if each.type == "stream"
    ]
    assert [(each["step"], each["steps"]) for each in told] == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert [each["latents"] is not None for each in told] == [False, True, False, False]
    assert not [each for each in served(Wave(), {"seed": 1, "steps": 4}) if each.type == "stream"]


def test_latents_that_overflowed_are_an_error_and_no_image() -> None:
    class Overflowing(Wave):
        def predict(self, samples: torch.Tensor, *others: Any) -> torch.Tensor:
            return samples * torch.inf

    (ended,) = served(Overflowing(), {"seed": 1, "steps": 2})
    assert ended.type == "error"
    assert "not finite" in str(ended.data)


def test_guidance_keeps_the_length_of_each_position() -> None:
    positive, negative = torch.randn(2, 5, 8, dtype=torch.float64).unbind()
    combined = guided({"positive": positive[None], "negative": negative[None]}, 7.0)
    assert torch.allclose(combined.norm(dim=-1), positive[None].norm(dim=-1))
    assert guided({"positive": positive}, 7.0) is positive


@pytest.mark.parametrize("steps", [1, 2, 7, 50])
def test_a_schedule_ends_without_noise(steps: int) -> None:
    schedule = SCHEDULES.make(steps, 4)
    assert schedule.steps == steps
    assert schedule.sigmas[-1] == 0
    assert bool((schedule.sigmas.diff() < 0).all())
