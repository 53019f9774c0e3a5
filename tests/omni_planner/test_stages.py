"""Simulated stages decide as the runtime's schedulers do."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from attrs import define, evolve, field
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1] / "omni_torch/engine"))

from toy_model import POISON_TOKEN, ToyModel, ToyRunner

from omni_core.config.schema import StageConfig
from omni_core.errors import ConfigError
from omni_core.model_runner import SamplingParams
from omni_core.protocol.messages import OmniRequest, StagePayload
from omni_core.scheduling.base import IncomingMessage
from omni_planner.engine_stage import EngineStage
from omni_planner.profile import CLIENT, Costing, Seconds, StageProfile, Visit
from omni_planner.requests import Arrival, Flight
from omni_planner.stages import CHUNK, DONE, PAYLOAD, FunctionStage, StreamStage, streamed
from omni_planner.vocoder_stage import VocoderStage
from omni_torch.engine.batching import Batcher, Plan
from omni_torch.engine.scheduler import EngineScheduler
from omni_torch.vocoder.deadlines import Deadlines
from omni_torch.vocoder.scheduler import VocoderScheduler


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


costs = st.tuples(*(st.sampled_from([count / 1024 for count in each]) for each in ((16, 128), (0, 8, 64), (0, 1, 16))))
"""Seconds of a step, of each of its decodes, and of each position of its prompts; sums of them are exact."""


@settings(max_examples=max(200, settings.default.max_examples), deadline=None)
@given(
    requests,
    st.integers(1, 4),
    st.sampled_from([9, 14, 40]),
    st.sampled_from([8, 24, 64]),
    st.sampled_from([None, "omni_torch.vocoder.deadlines:Deadlines"]),
    costs,
)
def test_an_engine_plans_the_same_steps(
    asked: list[tuple[int, int, int]],
    max_running: int,
    kv_blocks: int,
    max_batch_tokens: int,
    policy: str | None,
    costs: tuple[float, float, float],
) -> None:
    """Random schedules, with preemptions, and requests that are held back by what steps are predicted to take: the same requests compute
    as many positions in the same order in each step. `--hypothesis-profile thorough` runs 3,000.
    """
    options: dict[str, Any] = {
        "max_running": max_running, "kv_blocks": kv_blocks, "max_batch_tokens": max_batch_tokens,
        "chunk_size": 16, "block_size": 8, "patience": 5 if policy is None else None, "policy": policy,
    }  # fmt: skip
    real = EngineScheduler(ToyRunner(ToyModel()), prefix_cache=False, max_context=256, **options)

    def seconds(decodes: float, positions: float) -> float:
        return costs[0] + costs[1] * decodes + costs[2] * positions

    simulated = EngineStage("engine", StageProfile("engine"), lambda _, made: (seconds(made[1], made[3]), 0.0), options)
    plans: dict[int, list[list[tuple[str, int]]]] = {id(real.batcher): [], id(simulated.batcher): []}
    original = Batcher.plan
    now = began = 0.0  # on the clock, and when the turn began
    real.clock, simulated.now = lambda: now, lambda: began

    def noted(batcher: Batcher, can_step: Any, when: float) -> Plan:
        nonlocal now
        made = original(batcher, can_step, when)
        plans[id(batcher)].append([(request.request_id, count) for request, count in made.work])
        if batcher is real.batcher:
            decodes = sum(count == 1 and bool(request.output_ids) for request, count in made.work)
            now += seconds(decodes, sum(count for _, count in made.work) - decodes)
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
            turn, began = turn + 1, now
    assert plans[id(simulated.batcher)] == plans[id(real.batcher)]
    assert real.batcher.preemptions == simulated.batcher.preemptions
    real.stop()


def test_a_request_that_no_cache_holds_is_an_error_that_says_so() -> None:
    stage = EngineStage("thinker", StageProfile("engine"), free, {"kv_blocks": 2})
    stage.inbox.append((flight("a", thinker=Visit([CLIENT], [CLIENT], {}, 30, 4)), PAYLOAD, CLIENT))
    with pytest.raises(ConfigError, match="33 positions does not fit into a KV cache of 32"):
        stage.turn()


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


def test_the_first_chunk_of_an_answer_leaves_before_its_step_ends() -> None:
    """Two prompts and a decode in one step of a second, of which a fifth came after the first chunk where there was one prompt."""
    profile = StageProfile("engine", after_first={"kind": 0.2})
    stage = EngineStage("thinker", profile, lambda _, counts: (counts[0], 0.0), {})
    visit = Visit([CLIENT], ["talker"], {"decode": 3, "talker": 3}, 5, 3)

    def steps(*names: str) -> list[tuple[float, list[str]]]:
        stage.inbox.extend((flight(name, thinker=visit), PAYLOAD, CLIENT) for name in names)
        return [(cost, [f"{of.name} {to}" for of, _, (to, *_), _ in sent]) for (cost, _), sent in stage.turn()]

    assert steps("a") == [(pytest.approx(0.8), ["a decode"]), (pytest.approx(0.2), ["a talker"])]
    first, second, third = steps("b", "c")
    assert first == (pytest.approx(2 * 0.8), ["a decode", "a talker", "b decode"])
    assert second == (pytest.approx(2 * 0.1), ["b talker", "c decode"])
    assert third == (pytest.approx(2 * 0.1), ["c talker"])
    assert [len(sent) for _, sent in steps()] == [8], (
        "two chunks of each, and the end of the stream and the result of the first"
    )


def test_a_vocoder_makes_the_passes_of_the_runtime() -> None:
    profile = StageProfile("vocoder")
    profile.cost("").observe({"frames": 1.0}, 0.001)
    stage = VocoderStage("vocoder", profile, costing_of(profile), {"initial_chunk": 2, "chunk": 3, "growth": None})
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


@define
class _Sounds:
    """A vocoder whose passes take simulated time; a frame is two samples, in all 80 ms. ``passes``: streams and frames of each."""

    seconds: Callable[[int, int], float]
    now: float = 0.0
    passes: list[tuple[int, int]] = field(factory=list)
    device, sample_rate, codebooks, codebook_size = torch.device("cpu"), 25, 1, 1

    def begin(self) -> None:
        """Keep nothing of a stream."""

    def decode(self, work: list[tuple[None, torch.Tensor]]) -> list[torch.Tensor]:
        self.passes.append((len(work), sum(len(frames) for _, frames in work)))
        self.now += self.seconds(*self.passes[-1])
        return [torch.zeros(2 * len(frames)) for _, frames in work]


@settings(max_examples=max(200, settings.default.max_examples), deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 40), st.integers(1, 6)), min_size=1, max_size=7),
    st.integers(1, 5),
    st.integers(1, 12),
    st.sampled_from([None, 0.5, 1.0, 2.0]),
    st.sampled_from([None, 1, 3]),
    st.sampled_from([None, "omni_torch.vocoder.deadlines:Deadlines"]),
    costs,
)
def test_a_vocoder_makes_the_same_passes_and_sends_the_same_sound(
    asked: list[tuple[int, int, int]],  # turn of the first frames, frames, and how many come in a turn
    initial_chunk: int,
    chunk: int,
    growth: float | None,
    max_running: int | None,
    policy: str | None,
    costs: tuple[float, float, float],
) -> None:
    """Random schedules in which sound is late, or held back by a policy: in each turn the same passes and the same pieces."""
    made: list[tuple[int, int]] = []

    def costing(_: str, counts: Sequence[float]) -> Seconds:
        if counts[0]:
            made.append((int(counts[1]), int(counts[2])))
        return (seconds(*made[-1]) if counts[0] else 0.0), 0.0

    def seconds(streams: int, frames: int) -> float:
        return costs[0] + costs[1] * streams + costs[2] * frames

    options: dict[str, Any] = {
        "initial_chunk": initial_chunk,
        "chunk": chunk,
        "growth": growth,
        "max_running": max_running,
        "policy": policy,
    }
    vocoder = _Sounds(seconds)
    real, simulated = (
        VocoderScheduler(vocoder, **options),
        VocoderStage("vocoder", StageProfile("vocoder"), costing, options),
    )
    began = 0.0
    real.clock, simulated.now = lambda: vocoder.now, lambda: began
    frame, turn = torch.zeros(1, dtype=torch.int64), 0
    left = [frames for _, frames, _ in asked]
    visits = {"talker": Visit(targets=["vocoder"]), "vocoder": Visit(["talker"], [CLIENT])}
    flights = [flight(str(index), **visits) for index in range(len(asked))]
    while any(left) or real.unfinished or real.wait is not None:
        for index, (first, _, rate) in enumerate(asked):
            coming = min(rate, left[index]) if turn >= first else 0
            left[index] -= coming
            messages: list[tuple[Any, Any]] = [(CHUNK, frame)] * coming
            if coming and not left[index]:
                messages += [(DONE, None), (PAYLOAD, StagePayload(str(index), OmniRequest(), None))]
            for what, data in messages:
                real.inbox.put(IncomingMessage(str(index), "stream_chunk" if what == CHUNK else what, data, "talker"))
                simulated.inbox.append((flights[index], what, "talker"))
        heard: list[tuple[str, str, int]] = []
        if len(real.inbox) or real.unfinished or real.wait is not None:
            real.wait = 0.0
            assert real.turn()
            for message in real.outbox.drain():
                is_piece = message.type == "stream"
                heard.append(
                    (message.request_id, CHUNK if is_piece else PAYLOAD, len(message.data.samples) // 2 * is_piece)
                )
        steps = simulated.turn()
        assert [(each.name, what, frames) for _, outputs in steps for each, what, _, frames in outputs] == heard
        assert (made, simulated.wait) == (vocoder.passes, real.wait)
        if vocoder.now == began:  # nothing was computed, so time may pass without making steps appear slow
            vocoder.now += max(1, math.ceil(1024 * min(real.wait or 0.0, 1.0))) / 1024
        turn, began = turn + 1, vocoder.now
    assert sum(frames for _, frames in made) == sum(frames for _, frames, _ in asked)


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


def test_a_function_takes_what_waits_as_a_batch_and_waits_for_it_to_fill() -> None:
    seen: list[tuple[float, ...]] = []
    now = 5.0

    def costing(kind: str, counts: Sequence[float]) -> Seconds:
        seen.append(tuple(counts))
        return 2.0, 0.0

    stage = FunctionStage("encode", StageProfile("function"), costing, {"batch_size": 3, "batch_wait": 0.5})
    stage.now = lambda: now

    def come(*names: str) -> list[list[str]]:
        for each in names:
            stage.inbox.append((flight(each, encode=Visit(targets=["next"], prompt=10)), PAYLOAD, CLIENT))
        return [[sent.name for sent, *_ in outputs] for _, outputs in stage.turn()]

    assert come("a") == []
    assert stage.wait == 0.5
    now = 5.25
    assert come("b") == []
    assert stage.wait == 0.25, "from the first request on"
    assert come("c", "d") == [["a", "b", "c"]]
    assert seen == [(1, 3, 0, 30, 300, 1)], "positions, pairs of them, and one pass"
    assert come() == []
    now += stage.wait or 0.0
    assert come() == [["d"]]
    assert (come(), stage.wait) == ([], None)
    plain = FunctionStage("encode", StageProfile("function"), costing, {"max_batch_size": 2})
    for each in "ab":
        plain.inbox.append((flight(each, encode=Visit(targets=["next"])), PAYLOAD, CLIENT))
    assert [len(outputs) for _, outputs in plain.turn()] == [2]


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
