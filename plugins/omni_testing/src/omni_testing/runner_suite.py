"""The base of the conformance suites of model runners and feedback strategies.

No scheduler takes part: the suites make the batches themselves, keep K and V in plain tensors, and do for failed steps,
preemptions and aborts what a scheduler does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest
import torch

from omni_core.api import IncomingMessage
from omni_testing.comparing import alike
from omni_testing.runner_driver import Answer, Driver
from omni_torch.runners.model_runner import ARModelRunner

TOKENS = 8
"""Tokens that a suite asks for; a request may end earlier by itself."""

GREEDY: dict[str, Any] = {"temperature": 0.0, "max_new_tokens": TOKENS}

Wanted = dict[str, tuple[int, dict[str, Any]]]
"""By request id: the request's number and its sampling parameters."""


class RunnerSuite:
    """The part that the suites of runners and of feedback strategies share: the requests, and ways to ask them.

    Attributes:
        concurrent: requests that are computed together.
        splits_prompts: a prompt that is computed in parts gives what it gives as a whole.
        recomputes: a request whose cache was taken away goes on exactly (engines do that when their memory is full).
    """

    concurrent: ClassVar[int] = 4
    splits_prompts: ClassVar[bool] = True
    recomputes: ClassVar[bool] = True

    def make(self) -> ARModelRunner:
        """Return a new runner; it may share its model with earlier ones."""
        raise NotImplementedError

    def messages(self, request_id: str, number: int, sampling: dict[str, Any]) -> list[IncomingMessage]:
        """Return everything that a request gets, in order; new objects at every call.

        Args:
            number: which request; different numbers are different prompts.
            sampling: fields of ``SamplingParams`` that the request asks for, as plain data (``stop_ids`` is a list).
        """
        raise NotImplementedError

    def bad(self, request_id: str) -> list[IncomingMessage]:
        """Return the messages of a request that ``receive`` refuses; none if it refuses nothing."""
        return []

    def same(self, one: Any, other: Any) -> bool:
        """Return whether the data of two results or stream messages are equal, floating-point numbers up to 1e-4."""
        return alike(one, other)

    @staticmethod
    def _need(ability: bool, otherwise: str) -> None:
        if not ability:
            pytest.skip(otherwise)

    def _wanted(self, kind: str) -> Wanted:
        seeded = {"temperature": 1.0, "max_new_tokens": TOKENS}
        return {
            f"{kind}{number}": (number, GREEDY if kind == "greedy" else {**seeded, "seed": number + 1})
            for number in range(self.concurrent)
        }

    def _give(self, driver: Driver, request_id: str, number: int, sampling: dict[str, Any]) -> None:
        for message in self.messages(request_id, number, sampling):
            driver.give(message)

    @torch.inference_mode()
    def _together(self, wanted: Wanted, runner: ARModelRunner | None = None, **options: Any) -> dict[str, Answer]:
        """Return the answers of requests that are given at once. ``options`` are the driver's."""
        driver = Driver(runner or self.make(), **options)
        for name, (number, sampling) in wanted.items():
            self._give(driver, name, number, sampling)
        driver.run()
        return driver.answers

    def _alone(self, wanted: Wanted) -> dict[str, Answer]:
        """Return the answers of requests that are asked one after the other, each of a new runner."""
        return {name: self._together({name: each})[name] for name, each in wanted.items()}

    def _compare(self, expected: dict[str, Answer], found: dict[str, Answer], what: str) -> None:
        for name, one in expected.items():
            other = found[name]
            assert one.error is None, f"request {name} fails: {one.error!r}"
            assert other.error is None, f"request {name} fails {what}: {other.error!r}"
            assert other.token_ids == one.token_ids, f"request {name} has other tokens {what}"
            assert other.finish_reason == one.finish_reason, name
            assert self.same(one.result, other.result), f"request {name} has another result {what}"
            assert self.same(one.messages, other.messages), f"request {name} streams something else {what}"
            assert alike(one.fed, other.fed), f"request {name} is fed something else {what}"


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Replace a method or attribute of an instance for a while."""
    own = {name: vars(owner)[name]} if name in vars(owner) else {}
    vars(owner)[name] = value
    try:
        yield
    finally:
        del vars(owner)[name]
        vars(owner).update(own)


def errors_of(answers: dict[str, Answer]) -> list[BaseException]:
    """Return the errors of the requests that failed."""
    return [answer.error for answer in answers.values() if answer.error is not None]
