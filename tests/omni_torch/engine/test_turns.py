"""Requests that continue after an end: each turn equals a separate request with the whole history as its prompt."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from asking import collect
from running import running
from toy_model import POISON_TOKEN, FeedbackRunner, ToyModel, ToyRunner, generate

from omni_core.model_runner import ARRequest, ModelRunner, SamplingParams
from omni_core.scheduling.base import IncomingMessage, OutgoingMessage
from omni_torch.engine.scheduler import EngineScheduler
from omni_torch.loop.continuation import extend

MODEL = ToyModel()
STOPS = frozenset(range(0, 97, 9))
SAFE = frozenset([POISON_TOKEN])
GREEDY = SamplingParams(max_new_tokens=14, stop_ids=STOPS, suppressed_ids=SAFE)
DRAWN = SamplingParams(max_new_tokens=10, temperature=1.0, repetition_penalty=1.2, seed=6, suppressed_ids=SAFE)
PROMPTS = [[3, 4], [5, 9, 2, 7], list(range(1, 40)), [11] * 30, [60] * 17]
TURNS = [[[8, 8, 30]], [[1, 2], list(range(50, 70)), [7]], [], [[90, 3, 3]], [[5], [6]]]


class TurnsRunner(ToyRunner):
    """Continues at the end of a turn with the next one of ``state["turns"]``."""

    def emit(self, request: ARRequest, token_id: int) -> Iterable[OutgoingMessage]:
        yield from super().emit(request, token_id)
        if request.finish_reason is not None and request.state["turns"]:
            request.state.setdefault("said", []).append(list(request.output_ids))
            extend(request, request.state["turns"].pop(0))

    def result(self, request: ARRequest) -> dict[str, Any]:
        return {"said": [*request.state.get("said", []), list(request.output_ids)]}


def expected(prompt: list[int], turns: list[list[int]], sampling: SamplingParams) -> list[list[int]]:
    said = [generate(MODEL, prompt, sampling)]
    for turn in turns:
        prompt = [*prompt, *said[-1][:-1], *turn]
        said.append(generate(MODEL, prompt, sampling))
    return said


def run(
    runner: ModelRunner, requests: dict[str, dict[str, Any]], **options: Any
) -> tuple[dict[str, Any], EngineScheduler]:
    scheduler = EngineScheduler(runner, **{"max_context": 512, "kv_blocks": 200, **options})
    for name, data in requests.items():
        scheduler.inbox.put(IncomingMessage(name, "new_request", data))
    with running(scheduler):
        final = collect(scheduler, len(requests))
    assert all(message.type == "result" for message in final.values()), final
    return {name: message.data for name, message in final.items()}, scheduler


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"chunk_size": 1},
        {"chunk_size": 7, "max_batch_tokens": 16},
        {"block_size": 1},
        {"max_running": 2},
        {"kv_blocks": 9},
        {"kv_blocks": 24, "block_size": 4, "chunk_size": 8},
        {"kv_blocks": 100, "block_size": 1, "max_batch_tokens": 5},
    ],
)
def test_every_turn_equals_a_request_of_its_own(options: dict[str, Any]) -> None:
    requests = {
        str(index): {"prompt": prompt, "turns": [list(turn) for turn in turns], "sampling": GREEDY}
        for index, (prompt, turns) in enumerate(zip(PROMPTS, TURNS, strict=True))
    }
    answers, scheduler = run(TurnsRunner(MODEL), requests, **options)
    for index, (prompt, turns) in enumerate(zip(PROMPTS, TURNS, strict=True)):
        assert answers[str(index)]["said"] == expected(prompt, turns, GREEDY), index
    state = scheduler.statistics()
    assert state["free_blocks"] == state["total_blocks"]
    assert state["running"] == state["waiting"] == state["pending"] == 0
    if options.get("kv_blocks", 200) < 200:
        assert state["preemptions"] > 0, "the cache was large enough: this shows nothing about preemption"


def test_a_turn_draws_new_numbers_and_keeps_the_repetition_history() -> None:
    def data() -> dict[str, Any]:
        return {"prompt": [3, 4], "turns": [[3, 4]], "sampling": DRAWN}

    answers, _ = run(TurnsRunner(MODEL), {"one": data(), "two": data()})
    assert answers["one"] == answers["two"], "a seed decides"
    first, second = answers["one"]["said"]
    request = ARRequest("r", None, [1, 2], DRAWN, output_ids=first, state=None)  # type: ignore[arg-type]
    before = request.random.seed
    extend(request, [5])
    assert request.random.seed != before
    assert first != second


def test_fed_embeddings_become_prompt() -> None:
    class Runner(FeedbackRunner):
        def receive(self, message: IncomingMessage) -> ARRequest | None:
            request = super().receive(message)
            assert request is not None
            request.prompt_embeds = self.model.embed(torch.tensor(request.prompt_ids))
            return request

        def emit(self, request: ARRequest, token_id: int) -> Iterable[OutgoingMessage]:
            yield from super().emit(request, token_id)
            if request.finish_reason is not None and request.state["turns"]:
                turn = request.state["turns"].pop(0)
                extend(request, turn, self.model.embed(torch.tensor(turn)))

    def ask(**options: Any) -> dict[str, Any]:
        requests = {
            str(n): {
                "prompt": PROMPTS[n],
                "turns": [[7, 8, 9], [4]],
                "sampling": SamplingParams(max_new_tokens=8, suppressed_ids=SAFE),
            }
            for n in range(3)
        }
        return run(Runner(MODEL), requests, **options)[0]

    assert ask() == ask(kv_blocks=75, block_size=1) == ask(chunk_size=2, max_running=1)


def test_half_given_embeddings_are_refused() -> None:
    plain = ARRequest("r", None, [1, 2], GREEDY, output_ids=[3])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="every position"):
        extend(plain, [4], torch.zeros(1, 8))
    embedded = ARRequest("r", None, [1], GREEDY, prompt_embeds=torch.zeros(1, 8), output_ids=[3])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="every position"):
        extend(embedded, [4])
    embedded.output_ids = [3, 4]
    with pytest.raises(ValueError, match="fed as ids"):
        extend(embedded, [4], torch.zeros(1, 8))


def test_a_runner_may_choose_by_itself() -> None:
    class Last(ToyRunner):
        def choose(self, logits: torch.Tensor, requests: list[ARRequest]) -> list[int]:
            return logits.argmin(-1).tolist()

    data = {"prompt": [3], "sampling": SamplingParams(max_new_tokens=4)}
    chosen, _ = run(Last(MODEL), {"r": data})
    usual, _ = run(ToyRunner(MODEL), {"r": data})
    assert len(chosen["r"]["ids"]) == 4
    assert chosen["r"]["ids"] != usual["r"]["ids"]
