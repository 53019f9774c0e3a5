"""The conformance suite of model runners (contract: :class:`omni_core.model_runner.ModelRunner`)."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from attrs import evolve

from omni_core.api import ARRequest, Forward, ForwardBatch, ForwardOutput, InvalidRequestError, RandomStream
from omni_testing.comparing import alike
from omni_testing.runner_driver import Driver, remembers
from omni_testing.runner_suite import GREEDY, TOKENS, RunnerSuite, errors_of, replaced
from omni_torch.runners.model_runner import ARModelRunner
from omni_torch.sampling.sample import sample

with_each_kind_of_sampling = pytest.mark.parametrize("kind", ["greedy", "seeded"])


class ModelRunnerConformance(RunnerSuite):
    """Subclass it, say how your runner is made and what its requests are, and pytest runs every test."""

    @torch.inference_mode()
    def test_a_request_is_returned_once(self) -> None:
        runner = self.make()
        returned = [runner.receive(message) for message in self.messages("r", 0, GREEDY)]
        (request,) = [each for each in returned if each is not None]
        assert request.request_id == "r"
        assert request.prompt_ids, "the prompt is empty"
        assert request.output_ids == []
        assert request.computed == 0
        if request.prompt_embeds is not None:
            assert request.prompt_embeds.shape == (len(request.prompt_ids), runner.model.hidden_size)
        if request.prompt_positions is not None:
            assert request.prompt_positions.shape[-1] == len(request.prompt_ids)

    @torch.inference_mode()
    def test_messages_are_left_as_they_are(self) -> None:
        driver = Driver(self.make())
        given = self.messages("r", 0, GREEDY)
        for message in given:
            driver.give(message)
        driver.run()
        assert alike(given, self.messages("r", 0, GREEDY)), "a message's data was changed; other stages read it too"

    @torch.inference_mode()
    def test_messages_that_come_late_change_nothing(self) -> None:
        self._need(len(self.messages("r", 0, GREEDY)) > 1, "its requests are one message each")
        for name, wanted in self._wanted("greedy").items():
            driver = Driver(self.make())
            for message in self.messages(name, *wanted):
                driver.give(message)
                while driver.step():
                    continue
            driver.run()
            self._compare(self._alone({name: wanted}), driver.answers, "when its messages come one by one")

    @torch.inference_mode()
    def test_a_bad_request_hurts_only_itself(self) -> None:
        self._need(bool(self.bad("bad")), "it refuses nothing")
        wanted, runner = self._wanted("greedy"), self.make()
        driver = Driver(runner)
        for name, each in wanted.items():
            for message in self.bad(f"bad-{name}"):
                driver.give(message)
            self._give(driver, name, *each)
        driver.run()
        for name in wanted:
            error = driver.answers[f"bad-{name}"].error
            assert isinstance(error, InvalidRequestError), (
                f"a bad request must raise InvalidRequestError, not {error!r}"
            )
        self._compare(self._alone(wanted), driver.answers, "beside a bad one")

    @with_each_kind_of_sampling
    def test_company_changes_no_answer(self, kind: str) -> None:
        wanted = self._wanted(kind)
        assert len({tuple(each.token_ids) for each in self._alone(wanted).values()}) > 1, "all requests answer alike"
        self._compare(self._alone(wanted), self._together(wanted), "beside others")

    @with_each_kind_of_sampling
    def test_the_order_of_company_changes_nothing(self, kind: str) -> None:
        wanted = self._wanted(kind)
        turned = dict(reversed(wanted.items()))
        self._compare(self._together(wanted), self._together(turned), "in another order")

    @with_each_kind_of_sampling
    @torch.inference_mode()
    def test_prompts_beside_running_requests_change_nothing(self, kind: str) -> None:
        wanted, driver = self._wanted(kind), Driver(self.make())
        for name, each in wanted.items():
            self._give(driver, name, *each)
            driver.step()
        driver.run()
        self._compare(self._alone(wanted), driver.answers, "when others come and go")

    @with_each_kind_of_sampling
    def test_a_prompt_may_come_in_parts(self, kind: str) -> None:
        self._need(self.splits_prompts, "it computes prompts as a whole")
        wanted = self._wanted(kind)
        whole = self._together(wanted)
        for part in (1, 3):
            self._compare(whole, self._together(wanted, part=part), f"with its prompt in parts of {part}")

    @with_each_kind_of_sampling
    def test_asked_again_it_answers_the_same(self, kind: str) -> None:
        wanted, runner = self._wanted(kind), self.make()
        first = self._together(wanted, runner)
        self._compare(first, self._together(wanted, runner), "when asked again")
        self._compare(first, self._together(wanted), "of a new runner")

    def test_another_seed_is_another_answer(self) -> None:
        sampling = {"temperature": 1.5, "top_k": 0, "top_p": 1.0, "max_new_tokens": TOKENS}
        found = self._together({f"seed{seed}": (0, {**sampling, "seed": seed}) for seed in range(6)})
        assert len({tuple(each.token_ids) for each in found.values()}) > 1, "six seeds give one answer"

    def test_a_request_ends_when_it_says(self) -> None:
        free = self._alone({"free": (0, GREEDY)})["free"].token_ids
        assert len(free) >= 4, "messages() must give requests that do not end by themselves within four tokens"
        stop = self._alone({"stop": (0, {**GREEDY, "stop_ids": [free[3]]})})["stop"]
        assert (stop.token_ids, stop.finish_reason) == (free[: free.index(free[3]) + 1], "stop")
        short = self._alone({"short": (0, {**GREEDY, "max_new_tokens": 2})})["short"]
        assert short.token_ids == free[:2]
        assert short.finish_reason == ("stop" if len(free) == 2 else "length")
        other = self._alone({"other": (0, {**GREEDY, "suppressed_ids": [free[0]]})})["other"]
        assert other.token_ids
        assert free[0] not in other.token_ids, "a suppressed id was chosen"

    @torch.inference_mode()
    def test_tokens_are_chosen_by_the_base(self) -> None:
        """Penalties, filters and the draw are those of ``omni_torch.sampling.sample``, with the request's parameters."""
        asked = {"temperature": 0.8, "top_k": 5, "top_p": 0.9, "repetition_penalty": 1.5, "seed": 3}
        runner, logits = self.make(), list[torch.Tensor]()
        execute, compute = runner.execute, runner.model.compute_logits

        def compute_logits(hidden: torch.Tensor) -> torch.Tensor:
            logits.append(compute(hidden))
            return logits[-1].clone()

        def checked(batch: ForwardBatch, faster: Forward | None = None) -> list[tuple[ARRequest, int]]:
            logits.clear()
            chosen = execute(batch, faster)
            rows = torch.cat(logits) if logits else torch.empty(0)
            assert len(rows) == len(chosen)
            for row, (request, token) in zip(rows, chosen, strict=True):
                for name, value in asked.items():
                    assert getattr(request.sampling, name) == value, f"{name} is not what the request asked for"
                assert token == sample(row.unsqueeze(0), [_before_its_last_token(request)])[0]
            return chosen

        with replaced(runner.model, "compute_logits", compute_logits), replaced(runner, "execute", checked):
            found = self._together({f"r{n}": (n, {**asked, "max_new_tokens": TOKENS}) for n in range(2)}, runner)
        assert not errors_of(found)

    @torch.inference_mode()
    def test_hooks_are_called_in_order(self) -> None:
        runner, calls = self.make(), list[str]()
        before, forward, after = runner.before_forward, runner.forward, runner.after_forward
        sampling, execute = runner.after_sampling, runner.execute

        def before_forward(batch: ForwardBatch) -> None:
            assert batch.input_embeds is not None, "before_forward: input_embeds are not there yet"
            assert batch.input_embeds.shape == (len(batch.input_ids), runner.model.hidden_size)
            calls.append("before_forward")
            before(batch)

        def watched_forward(batch: ForwardBatch, faster: Forward) -> ForwardOutput:
            calls.append("forward")
            output = forward(batch, faster)
            assert output.hidden.shape == (len(batch.input_ids), runner.model.hidden_size)
            return output

        def after_forward(batch: ForwardBatch, output: ForwardOutput) -> None:
            calls.append("after_forward")
            after(batch, output)

        def after_sampling(batch: ForwardBatch, output: ForwardOutput, chosen: list[tuple[ARRequest, int]]) -> None:
            calls.append("after_sampling")
            assert all(request.output_ids[-1] == token for request, token in chosen)
            sampling(batch, output, chosen)

        def checked(batch: ForwardBatch, faster: Forward | None = None) -> list[tuple[ARRequest, int]]:
            calls.clear()
            chosen = execute(batch, faster)
            expected = ["before_forward", "forward", "after_forward", "after_sampling"]
            assert calls == expected[: 4 if batch.sampled else 3]
            return chosen

        hooks: dict[str, Callable[..., Any]] = {
            "before_forward": before_forward,
            "forward": watched_forward,
            "after_forward": after_forward,
            "after_sampling": after_sampling,
            "execute": checked,
        }
        for name, hook in hooks.items():
            setattr(runner, name, hook)
        for part in (None, 2) if self.splits_prompts else (None,):
            assert not errors_of(self._together(self._wanted("greedy"), runner, part=part))

    @torch.inference_mode()
    def test_tokens_come_in_the_order_of_the_batch(self) -> None:
        runner = self.make()
        execute = runner.execute

        def checked(batch: ForwardBatch, faster: Forward | None = None) -> list[tuple[ARRequest, int]]:
            chosen = execute(batch, faster)
            expected = [batch.requests[index].request_id for index in batch.sampled]
            assert [request.request_id for request, _ in chosen] == expected
            for request, token in chosen:
                assert request.output_ids[-1] == token, "a request is given another one's token"
            return chosen

        with replaced(runner, "execute", checked):
            found = self._together(self._wanted("greedy"), runner)
        assert not errors_of(found)

    @torch.inference_mode()
    def test_batches_are_left_as_they_are(self) -> None:
        runner = self.make()
        execute = runner.execute

        def checked(batch: ForwardBatch, faster: Forward | None = None) -> list[tuple[ARRequest, int]]:
            before = _what_the_scheduler_owns(batch)
            known = [len(request.output_ids) for request in batch.requests]
            chosen = execute(batch, faster)
            for name, value in _what_the_scheduler_owns(batch).items():
                assert alike(before[name], value), f"the runner has changed {name}, which is the scheduler's"
            for index, request in enumerate(batch.requests):
                assert len(request.output_ids) == known[index] + (index in batch.sampled)
            return chosen

        with replaced(runner, "execute", checked):
            found = self._together(self._wanted("seeded"), runner, part=2 if self.splits_prompts else None)
        assert not errors_of(found)

    @torch.inference_mode()
    def test_a_step_that_failed_is_repeated_exactly(self) -> None:
        wanted, runner = self._wanted("seeded"), self.make()
        compute, calls = runner.model.compute_logits, list[int]()

        def fails_once(hidden: torch.Tensor) -> torch.Tensor:
            calls.append(1)
            if len(calls) == 3:
                raise RuntimeError("a fault of the device")
            logits: torch.Tensor = compute(hidden)
            return logits

        with replaced(runner.model, "compute_logits", fails_once):
            found = self._together(wanted, runner)
        assert len(calls) > 3
        self._compare(self._alone(wanted), found, "after a step that failed and was repeated")

    @torch.inference_mode()
    def test_a_request_that_fails_a_step_fails_alone(self) -> None:
        wanted, runner = self._wanted("seeded"), self.make()
        before = runner.before_forward
        guilty, *innocent = wanted

        def before_forward(batch: ForwardBatch) -> None:
            before(batch)
            if any(request.request_id == guilty and len(request.output_ids) == 2 for request in batch.requests):
                raise FloatingPointError("nonsense in the inputs")

        with replaced(runner, "before_forward", before_forward):
            found = self._together(wanted, runner)
        assert isinstance(found[guilty].error, FloatingPointError), found[guilty]
        self._compare(self._alone({name: wanted[name] for name in innocent}), found, "beside one that failed")

    @torch.inference_mode()
    def test_a_preempted_request_goes_on_exactly(self) -> None:
        self._need(self.recomputes, "it computes nothing again")
        wanted, driver = self._wanted("seeded"), Driver(self.make())
        for name, each in wanted.items():
            self._give(driver, name, *each)
        for _ in range(3):
            driver.step()
        for name in list(driver.requests)[::2]:
            driver.preempt(name)
        driver.run()
        self._compare(self._alone(wanted), driver.answers, "when its cache was taken away in between")

    def test_nothing_is_kept_of_requests_that_ended(self) -> None:
        runner = self.make()
        self._end_in_every_way(runner, "first")  # what is made once is there after this
        tensors = _living_tensors()
        for name in ("second", "third", "fourth"):
            self._end_in_every_way(runner, name)
            for end in ("finished", "aborted", "early", "bad", "unknown"):
                where = remembers(runner, f"{name}-{end}")
                assert where is None, f"after release() the runner still knows the request that {end!r}: {where}"
        left = _living_tensors() - tensors
        assert left <= 0, f"{left} tensors are left of requests that have ended"

    @torch.inference_mode()
    def _end_in_every_way(self, runner: ARModelRunner, name: str) -> None:
        driver = Driver(runner)
        self._give(driver, f"{name}-finished", 0, GREEDY)
        self._give(driver, f"{name}-aborted", 1, GREEDY)
        driver.give(self.messages(f"{name}-early", 2, GREEDY)[0])
        for message in self.bad(f"{name}-bad"):
            driver.give(message)
        for _ in range(3):
            driver.step()
        for end in ("aborted", "aborted", "early", "unknown"):
            driver.forget(f"{name}-{end}")
        driver.run()

    @torch.inference_mode()
    def test_a_name_that_was_forgotten_starts_afresh(self) -> None:
        runner, name = self.make(), "again"
        driver = Driver(runner)
        self._give(driver, name, 1, GREEDY)
        for _ in range(3):
            driver.step()
        driver.forget(name)
        wanted = {name: (0, GREEDY)}
        self._compare(self._alone(wanted), self._together(wanted, runner), "under the name of one that was aborted")


def _before_its_last_token(request: ARRequest) -> ARRequest:
    """The request as it was when its last token was chosen, with random numbers of its own seed."""
    random = RandomStream(request.sampling.seed, request.random.stream)
    return evolve(request, output_ids=request.output_ids[:-1], random=random, seen_ids=None, finish_reason=None)


def _what_the_scheduler_owns(batch: ForwardBatch) -> dict[str, Any]:
    tensors = {name: getattr(batch, name).clone() for name in ("input_ids", "positions", "sample_rows")}
    lists = {name: list(getattr(batch, name)) for name in ("starts", "lengths", "sampled")}
    owned: dict[str, Any] = {**tensors, **lists, "the requests": [each.request_id for each in batch.requests]}
    for request in batch.requests:
        given = [request.prompt_embeds, request.prompt_positions]
        copies = [None if each is None else each.clone() for each in given]
        plain = [list(request.prompt_ids), request.sampling, request.computed, request.position_delta]
        owned[f"the prompt, the sampling or the progress of {request.request_id}"] = [*copies, *plain]
    return owned


def _living_tensors() -> int:
    gc.collect()
    return sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects())
