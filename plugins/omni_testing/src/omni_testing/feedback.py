"""The conformance suite of feedback strategies (contract: :class:`omni_core.model_runner.FeedbackStrategy`), in a loop with a runner."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from omni_core.api import ARRequest, FeedbackStrategy, Forward, ForwardBatch, ForwardOutput, OutgoingMessage
from omni_testing.runner_driver import remembers
from omni_testing.runner_suite import GREEDY, TOKENS, RunnerSuite, errors_of, replaced
from omni_torch.runners.model_runner import FeedbackARModelRunner


class FeedbackConformance(RunnerSuite):
    """Subclass it, return a runner that is bound to your strategy, and say what its requests are; pytest runs every test."""

    def make(self) -> FeedbackARModelRunner:
        """Return a new runner with a new strategy; it may share its model with earlier ones."""
        raise NotImplementedError

    @torch.inference_mode()
    def test_the_strategy_is_asked_at_every_step(self) -> None:
        runner = self.make()
        watched = runner.feedback = _Watched(runner.feedback)
        execute = runner.execute

        def checked(batch: ForwardBatch, faster: Forward | None = None) -> list[tuple[ARRequest, int]]:
            watched.calls.clear()
            expected = _expected_writes(batch)
            prompts = any(s < len(r.prompt_ids) for r, s in zip(batch.requests, batch.starts, strict=True))
            chosen = execute(batch, faster)
            rows = batch.sample_rows.tolist()
            going_on = [
                (r.request_id, row) for (r, _), row in zip(chosen, rows, strict=True) if r.finish_reason is None
            ]
            calls: list[tuple[str, Any]] = [("write_buffers", expected)] if expected else []
            calls += [("prefill_forward", None)] if prompts else []
            calls += [("extract_output", going_on)] if going_on else []
            assert watched.calls == calls
            return chosen

        runner.execute = checked  # type: ignore[assignment, method-assign]
        for part in (None, 2) if self.splits_prompts else (None,):
            found = self._together(self._wanted("greedy"), runner, part=part)
            assert not errors_of(found)
            for answer in found.values():
                assert len(answer.fed) == len(answer.token_ids) - 1, "every token but the last is fed once, and kept"

    @torch.inference_mode()
    def test_feedback_stays_with_its_request(self) -> None:
        """A request is fed the same beside every other request, and beside itself."""
        alone = self._alone({"r": (0, GREEDY)})["r"]
        for number in range(self.concurrent):
            pair = {"r": (0, GREEDY), "other": (number, {**GREEDY, "max_new_tokens": 2 * TOKENS})}
            self._compare({"r": alone}, self._together(pair), f"beside request {number}")
            self._compare({"r": alone}, self._together(dict(reversed(pair.items()))), f"behind request {number}")

    @pytest.mark.parametrize("method", ["write_buffers", "extract_output"])
    @torch.inference_mode()
    def test_a_request_that_fails_its_strategy_fails_alone(self, method: str) -> None:
        runner = self.make()
        wanted = self._wanted("seeded")
        guilty, *innocent = wanted
        with replaced(runner, "feedback", _Watched(runner.feedback, fails=(method, guilty))):
            found = self._together(wanted, runner)
        assert isinstance(found[guilty].error, FloatingPointError), found[guilty]
        self._compare(self._alone({name: wanted[name] for name in innocent}), found, "beside one that failed")
        assert remembers(runner, guilty) is None


class _Watched(FeedbackStrategy):
    """A bound strategy whose calls are recorded, and which may fail for one request: ``(method, request id)``."""

    def __init__(self, strategy: FeedbackStrategy, fails: tuple[str, str] | None = None) -> None:
        self._strategy, self._fails = strategy, fails
        self.calls: list[tuple[str, Any]] = []

    def _note(self, method: str, requests: list[tuple[ARRequest, int]]) -> None:
        asked = [(request.request_id, row) for request, row in requests]
        if self._fails is None:
            self.calls.append((method, asked))
        elif self._fails in [(method, name) for name, _ in asked]:
            raise FloatingPointError("nonsense in the codes")

    def write_buffers(self, batch: ForwardBatch, requests: list[tuple[ARRequest, int]]) -> None:
        self._note("write_buffers", requests)
        self._strategy.write_buffers(batch, requests)

    def extract_output(
        self, batch: ForwardBatch, output: ForwardOutput, requests: list[tuple[ARRequest, int]]
    ) -> dict[str, list[OutgoingMessage]]:
        self._note("extract_output", requests)
        return self._strategy.extract_output(batch, output, requests)

    def prefill_forward(self, batch: ForwardBatch) -> ForwardOutput | None:
        if self._fails is None:
            self.calls.append(("prefill_forward", None))
        return self._strategy.prefill_forward(batch)


def _expected_writes(batch: ForwardBatch) -> list[tuple[str, int]]:
    """``(request id, row)`` of every request whose newest generated position is computed for the first time."""
    found, row = [], -1
    for request, start, length in zip(batch.requests, batch.starts, batch.lengths, strict=True):
        row += length
        if start + length == request.length and len(request.output_embeds) == len(request.output_ids) - 1:
            found.append((request.request_id, row))
    return found
