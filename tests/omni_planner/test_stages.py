"""Simulated stages decide as the runtime's schedulers do."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1] / "omni_engine"))

from toy_model import POISON_TOKEN, ToyModel, ToyRunner

from omni_core.config.schema import StageConfig
from omni_core.model_runner import SamplingParams
from omni_core.protocol.messages import OmniRequest
from omni_core.scheduling.base import IncomingMessage
from omni_engine.batching import Batcher, Plan
from omni_engine.scheduler import EngineScheduler
from omni_planner.engine_stage import EngineStage
from omni_planner.profile import CLIENT, Costing, Seconds, StageProfile, Visit
from omni_planner.requests import Arrival, Flight
from omni_planner.stages import CHUNK, DONE, PAYLOAD, FunctionStage, StreamStage, streamed
from omni_planner.vocoder_stage import VocoderStage
from omni_torch.deadlines import Deadlines


def free(kind: str, counts: Sequence[float]) -> Seconds:
    """Let turns cost nothing."""
    return 0.0, 0.0


def costing_of(profile: StageProfile) -> Costing:
    return profile.costing(StageConfig(name="any", factory="m:f"))


def flight(name: str, **sample: Visit) -> Flight:
    return Flight(name, Arrival(0.0, "kind", sample), 0.0)


requests = st.lists(
    st.tuples(st.integers(0, 12), st.integers(1, 60), st.integers(1, 12)),  # turn of arrival, prompt, outputs
    min_size=1,
    max_size=9,
)


@settings(max_examples=150, deadline=None)
@given(
    requests,
    st.integers(1, 4),
    st.sampled_from([9, 14, 40]),
    st.sampled_from([8, 24, 64]),
    st.sampled_from([None, "omni_torch.deadlines:Deadlines"]),
)
def test_an_engine_plans_the_same_steps(
    asked: list[tuple[int, int, int]], max_running: int, kv_blocks: int, max_batch_tokens: int, policy: str | None
) -> None:
    """Thousands of steps, with preemptions: the same requests compute as many positions in the same order in each."""
    options: dict[str, Any] = {
        "max_running": max_running, "kv_blocks": kv_blocks, "max_batch_tokens": max_batch_tokens,
        "chunk_size": 16, "block_size": 8, "patience": 5 if policy is None else None, "policy": policy,
    }  # fmt: skip
    real = EngineScheduler(ToyRunner(ToyModel()), prefix_cache=False, max_context=256, **options)
    simulated = EngineStage("engine", StageProfile("engine"), free, options)
    plans: dict[int, list[list[tuple[str, int]]]] = {id(real.batcher): [], id(simulated.batcher): []}
    original = Batcher.plan
    real.clock = simulated.now = lambda: 0.3 * turn  # a step takes no time on it, and listeners are late between them

    def noted(batcher: Batcher, can_step: Any, now: float) -> Plan:
        made = original(batcher, can_step, now)
        plans[id(batcher)].append([(request.request_id, count) for request, count in made.work])
        return made

    arrivals = sorted((turn, index) for index, (turn, _, _) in enumerate(asked))
    turn = 0
    with torch.inference_mode(), patch.object(Batcher, "plan", noted):
        while arrivals or real.loop.pending:
            while arrivals and (arrivals[0][0] <= turn or not real.loop.pending):
                _, index = arrivals.pop(0)
                _, prompt, outputs = asked[index]
                sampling = SamplingParams(max_new_tokens=outputs, suppressed_ids=frozenset({POISON_TOKEN}))
                data = {"prompt": [1 + index] * prompt, "sampling": sampling}
                real.inbox.put(IncomingMessage(str(index), PAYLOAD, data, None, None, OmniRequest()))
                visit = Visit([CLIENT], [CLIENT], {}, prompt, outputs)
                simulated.inbox.append((flight(str(index), engine=visit), PAYLOAD, CLIENT))
                real.loop._receive(real.inbox.drain()[0])
            assert real.loop.turn()
            simulated.turn()
            turn += 1
    assert plans[id(simulated.batcher)] == plans[id(real.batcher)]
    assert real.batcher.preemptions == simulated.batcher.preemptions
    real.stop()


def test_an_engine_that_is_fed_by_a_stream_waits_for_it() -> None:
    profile = StageProfile("engine", admit_after=2)
    stage = EngineStage("talker", profile, free, {})
    visits = {"thinker": Visit(chunks={"talker": 3}), "talker": Visit(["thinker"], [CLIENT], {CLIENT: 4}, 5, 4)}
    made = flight("a", **visits)

    def outputs() -> list[str]:
        return [what for _, outputs in stage.turn() for _, what, *_ in outputs]

    stage.inbox.append((made, CHUNK, "thinker"))
    assert outputs() == []
    stage.inbox.append((made, CHUNK, "thinker"))
    assert outputs() == [CHUNK]
    assert outputs() == []
    stage.inbox.append((made, CHUNK, "thinker"))
    assert outputs() == [CHUNK]
    stage.inbox.append((made, DONE, "thinker"))
    assert [outputs(), outputs(), outputs()] == [[CHUNK], [CHUNK, PAYLOAD], []]


def test_a_vocoder_makes_the_passes_of_the_runtime() -> None:
    profile = StageProfile("vocoder")
    profile.cost("").observe({"frames": 1.0}, 0.001)
    stage = VocoderStage("vocoder", profile, costing_of(profile), {"initial_chunk": 2, "chunk": 3})
    visits = {
        "talker": Visit(targets=["vocoder"], chunks={"vocoder": 6}),
        "vocoder": Visit(["talker"], [CLIENT], {CLIENT: 3}),
    }
    made = flight("a", **visits)
    for _ in range(6):
        stage.inbox.append((made, CHUNK, "talker"))
    for frames in (2, 3):
        steps = stage.turn()
        assert [round(seconds * 1000) for (seconds, _), _ in steps] == [0, frames]
        assert [[what for _, what, *_ in outputs] for _, outputs in steps] == [[], [CHUNK]]
    assert stage.turn() == []
    stage.inbox.append((made, DONE, "talker"))
    stage.inbox.append((made, PAYLOAD, "talker"))
    steps = stage.turn()
    assert [round(seconds * 1000) for (seconds, _), _ in steps] == [0, 1]
    assert [what for _, what, *_ in steps[-1][1]] == [CHUNK, PAYLOAD]
    assert stage.turn() == []


class OneSecondLater(Deadlines):
    """A policy whose first sound goes out a second after it is ready."""

    def starts(self, request_id: str, made: float, needed: float, now: float) -> float:
        return made + 1.0


def test_a_vocoder_sends_the_first_sound_when_its_policy_says() -> None:
    settings = {"initial_chunk": 2, "chunk": 3, "policy": f"{__name__}:OneSecondLater"}
    stage = VocoderStage("vocoder", StageProfile("vocoder"), free, settings)
    now = 5.0
    stage.now = lambda: now
    visits = {
        "talker": Visit(targets=["vocoder"], chunks={"vocoder": 6}),
        "vocoder": Visit(["talker"], [CLIENT], {CLIENT: 3}),
    }
    made = flight("a", **visits)
    for _ in range(2):
        stage.inbox.append((made, CHUNK, "talker"))
    assert [outputs for _, outputs in stage.turn()] == [[], []]
    assert stage.turn() == []
    assert stage.wait == 1.0
    now = 6.0
    [(_, outputs)] = stage.turn()
    assert [what for _, what, *_ in outputs] == [CHUNK]
    assert stage.turn() == []
    assert stage.wait is None


def test_a_stream_stage_hands_on_as_many_chunks_as_were_measured() -> None:
    stage = StreamStage("decode", StageProfile("stream"), free)
    visits = {
        "thinker": Visit(targets=["decode"], chunks={"decode": 6}),
        "decode": Visit(["thinker"], [CLIENT], {CLIENT: 4}),
    }
    made, sent = flight("a", **visits), list[str]()
    for what in [*[CHUNK] * 6, PAYLOAD, DONE]:
        stage.inbox.append((made, what, "thinker"))
        sent += [each for _, outputs in stage.turn() for _, each, *_ in outputs]
    assert sent == [*[CHUNK] * 4, PAYLOAD]
    assert sum(streamed(4, 6, made) for made in range(1, 7)) == 4


def test_a_stream_begins_with_the_first_output_and_lacks_the_last() -> None:
    assert [streamed(5, 6, made) for made in range(1, 7)] == [1, 1, 1, 1, 1, 0], (
        "the token that ends a text is not sent"
    )
    assert [streamed(2, 6, made) for made in range(1, 7)] == [1, 0, 0, 1, 0, 0]
    assert [streamed(8, 4, made) for made in range(1, 5)] == [2, 2, 2, 2]
    assert streamed(3, 0, 1) == 0


def test_a_function_that_streams_makes_its_chunks_one_after_the_other() -> None:
    """To the client with the frames that each has, to a stage without; its result comes with the last one."""
    stage = FunctionStage("speak", StageProfile("function"), lambda kind, counts: (3.0, 6.0))
    visit = Visit(targets=[CLIENT], chunks={CLIENT: 3, "next": 2, "none": 0}, prompt=700)
    one = flight("one", speak=visit)
    stage.inbox.append((one, PAYLOAD, "before"))
    steps = stage.turn()
    assert [cost for cost, _ in steps] == [(1.0, 2.0)] * 3
    sent = [[(what, to, frames) for _, what, to, frames in outputs] for _, outputs in steps]
    first, second, last = sent
    to_client = [frames for outputs in sent for what, to, frames in outputs if (what, to) == (CHUNK, [CLIENT])]
    assert sum(to_client) == 700
    assert len(to_client) == 3
    assert max(to_client) - min(to_client) <= 1
    assert sum((CHUNK, ["next"], 0) in outputs for outputs in sent) == 2
    assert (CHUNK, ["next"], 0) in first
    assert last[-2:] == [(DONE, ["next", "none"], 0), (PAYLOAD, [CLIENT], 0)]
    assert all(what == CHUNK for what, _, _ in [*first, *second])
    for chunks, frames in (({CLIENT: 2, "next": 3}, [350, 350]), ({CLIENT: 0}, [])):
        stage.inbox.append((flight("two", speak=evolve(visit, chunks=chunks)), PAYLOAD, "before"))
        sent = [[(what, to, count) for _, what, to, count in outputs] for _, outputs in stage.turn()]
        assert [count for outputs in sent for what, to, count in outputs if (what, to) == (CHUNK, [CLIENT])] == frames
        assert sent[-1][-1] == (PAYLOAD, [CLIENT], 0)
    stage.inbox.append((flight("plain", speak=Visit(targets=[CLIENT])), PAYLOAD, "before"))
    ((cost, outputs),) = stage.turn()
    assert cost == (3.0, 6.0)
    assert [what for _, what, _, _ in outputs] == [PAYLOAD]
